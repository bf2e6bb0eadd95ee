"""The recurrence of an LSTM for many clients at once.

It is an autograd function of its own: whatever does not depend on the previous time step is computed for all steps at
once, so that a step takes a matrix product and a few operations (one on a GPU) instead of the many that autograd would
record. `accelerate` lets `nn.LSTM`, which supports neither `vmap` nor `torch.func.grad`, use it under them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undrift.core import torch_private

State = tuple[Tensor, Tensor]


def layer(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Hidden states [B, T, U] and the last cell [B, U] for samples [B, T, inputs]; both start at zero."""
    inputs = F.linear(x, weight_ih, bias)  # [B, T, 4 U]: all steps in one product
    device, half = x.device.type, torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(device) if half else inputs.dtype
    with torch.autocast(device, enabled=False):
        hidden, last, *_ = _apply(_Recurrence, inputs.to(dtype), weight_hh.to(dtype))
    return hidden, last


def suits(part: nn.RNNBase) -> bool:
    """Whether a layer can be trained for many clients at once."""
    return type(part) is nn.LSTM and not part.bidirectional and not part.proj_size and not part.dropout


def accelerate(module: nn.Module) -> None:
    """Let the LSTMs of a module use this recurrence under `vmap` and `torch.func.grad`; elsewhere nothing changes."""
    for part in module.modules():
        if isinstance(part, nn.LSTM) and suits(part) and "forward" not in vars(part):
            vars(part)["forward"] = partial(_lstm_forward, part)


def _lstm_forward(part: nn.LSTM, input: Any, hx: State | None = None) -> tuple[Tensor, State]:
    """The results of `nn.LSTM.forward`, whose arguments have the same names."""
    if not torch_private.in_functorch():
        return nn.LSTM.forward(part, input, hx)
    if hx is not None or not isinstance(input, Tensor) or input.ndim != 3:
        raise NotImplementedError("nn.LSTM for many clients supports neither an initial state nor packed sequences")
    x = input if part.batch_first else input.transpose(0, 1)
    states: list[tuple[Tensor, Tensor]] = []
    for number in range(part.num_layers):
        weight_ih, weight_hh = (getattr(part, f"weight_{kind}_l{number}") for kind in ("ih", "hh"))
        bias = getattr(part, f"bias_ih_l{number}") + getattr(part, f"bias_hh_l{number}") if part.bias else None
        x, last = layer(x, weight_ih, weight_hh, bias)
        states.append((x[:, -1], last))
    hidden, cell = (torch.stack(parts) for parts in zip(*states, strict=True))
    return x if part.batch_first else x.transpose(0, 1), (hidden, cell)


def _apply(function: type[torch.autograd.Function], *given: Tensor) -> Any:
    return function.apply(*given)


class _Recurrence(torch.autograd.Function):
    """From the inputs' contribution to the gates [B, T, 4U]: hidden states [B, T, U] and the last cell [B, U].

    Gates and cells are returned, too, as the derivative needs them.
    """

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return tuple(v[0] for v in _forward(inputs[None], weight[None]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        hidden, _, gates, cells = output
        ctx.mark_non_differentiable(gates, cells)
        ctx.save_for_backward(inputs[1], hidden, gates, cells)

    @staticmethod
    def vmap(info: Any, axes: Any, *given: Tensor) -> Any:
        return _forward(*_stacked(given, axes)), (0, 0, 0, 0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, last: Tensor, *_: Any) -> Any:
        return _apply(_Derivative, gradient, last, *ctx.saved_tensors)


class _Derivative(torch.autograd.Function):
    """Gradients of the inputs' contribution and of the weight."""

    @staticmethod
    def forward(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(v[0] for v in _backward(*(v[None] for v in given)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, axes: Any, *given: Tensor) -> Any:
        return _backward(*_stacked(given, axes)), (0, 0)


def _stacked(given: tuple[Tensor, ...], axes: tuple[int | None, ...]) -> list[Tensor]:
    """With a leading axis of clients, of length one where all of them share a tensor."""
    return [v[None] if axis is None else v.movedim(axis, 0) for v, axis in zip(given, axes, strict=True)]


# For n clients at once. In memory, time is the first axis: [n, B, T, ...] is a view of [T, n, B, ...].


def _forward(inputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, the last cell, gates after their sigmoid or tanh, and cells."""
    n, units = max(len(inputs), len(weight)), weight.shape[-1]
    by_step = inputs.expand(n, *inputs.shape[1:]).movedim(2, 0).contiguous()
    transposed = weight.mT.expand(n, units, 4 * units)
    run_steps = _fused_forward if _has_fused_cell(by_step) else _plain_forward
    hidden, gates, cells = run_steps(by_step, transposed)
    return hidden.movedim(0, 2), cells[-1].clone(), gates.movedim(0, 2), cells.movedim(0, 2)


def _backward(
    gradient: Tensor, last: Tensor, weight: Tensor, hidden: Tensor, gates: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor]:
    n = max(map(len, (gradient, last, weight, hidden)))
    each = (v.expand(n, *v.shape[1:]) for v in (gradient, hidden, gates, cells))
    gradient, hidden, gates, cells = (v.movedim(2, 0) for v in each)
    run_steps = _fused_backward if _has_fused_cell(gates) else _plain_backward
    by_step = run_steps(
        gradient=gradient,
        last=last.expand(n, *last.shape[1:]),
        weight=weight.expand(n, *weight.shape[1:]),
        gates=gates,
        cells=cells,
    )
    later = by_step[1:].permute(1, 3, 0, 2).flatten(2)  # [n, 4U, (T-1) B]
    return by_step.movedim(0, 2), later @ hidden[:-1].movedim(1, 0).flatten(1, 2)


def _has_fused_cell(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch_private.fused_lstm_cell() is not None


def _plain_forward(inputs: Tensor, transposed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    units = transposed.shape[1]
    gates = inputs.clone()
    hidden, cells = (inputs.new_empty(*inputs.shape[:-1], units) for _ in range(2))
    for t in range(len(inputs)):
        now, cell = gates[t], cells[t]
        if t:
            torch.baddbmm(now, hidden[t - 1], transposed, out=now)
        input_gate, forget_gate, candidate, output_gate = now.chunk(4, -1)
        now[..., : 2 * units].sigmoid_()
        candidate.tanh_()
        output_gate.sigmoid_()
        torch.mul(input_gate, candidate, out=cell)
        if t:
            cell.addcmul_(forget_gate, cells[t - 1])
        torch.mul(output_gate, cell.tanh(), out=hidden[t])
    return hidden, gates, cells


def _plain_backward(gradient: Tensor, last: Tensor, weight: Tensor, gates: Tensor, cells: Tensor) -> Tensor:
    """Gradients of the sums in front of the gates [T, n, B, 4U]; `last` is the gradient of the last cell."""
    i, f, g, o = gates.chunk(4, -1)  # input gate, forget gate, candidate, output gate
    squashed, before = cells.tanh(), torch.cat([torch.zeros_like(cells[:1]), cells[:-1]])
    # Derivatives of the cell by the first three sums, and of the hidden state by the last.
    slopes = torch.cat([g * i * (1 - i), before * f * (1 - f), i * (1 - g.square())], -1)
    slopes = torch.cat([slopes, squashed * o * (1 - o)], -1)
    hidden_by_cell = o * (1 - squashed.square())
    gradients = torch.empty_like(slopes)
    cell = last
    for t in reversed(range(len(gates))):
        state = gradient[t] if t == len(gates) - 1 else torch.baddbmm(gradient[t], gradients[t + 1], weight)
        cell = torch.addcmul(cell, state, hidden_by_cell[t])
        torch.mul(torch.cat([cell, cell, cell, state], -1), slopes[t], out=gradients[t])
        cell = cell * f[t]
    return gradients


# The same with PyTorch's fused cells, which exist on GPUs only.


def _fused_forward(inputs: Tensor, transposed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    fused = torch_private.fused_lstm_cell()
    assert fused is not None
    shape, units = inputs.shape[1:-1], transposed.shape[1]
    recurrent, cell = torch.zeros_like(inputs[0]), inputs.new_zeros(shape.numel(), units)
    hidden: list[Tensor] = []
    gates: list[Tensor] = []
    cells: list[Tensor] = []
    for now in inputs:
        if hidden:
            recurrent = torch.bmm(hidden[-1], transposed)
        state, cell, gate = fused[0](now.flatten(0, -2), recurrent.flatten(0, -2), cell)
        hidden.append(state.view(*shape, units))
        gates.append(gate.view(*shape, 4 * units))
        cells.append(cell.view(*shape, units))
    return torch.stack(hidden), torch.stack(gates), torch.stack(cells)


def _fused_backward(gradient: Tensor, last: Tensor, weight: Tensor, gates: Tensor, cells: Tensor) -> Tensor:
    fused = torch_private.fused_lstm_cell()
    assert fused is not None
    shape, zero = gates.shape[1:], torch.zeros_like(cells[0])
    gradients: list[Tensor] = []
    cell = last.flatten(0, -2).contiguous()
    for t in reversed(range(len(gates))):
        state = torch.baddbmm(gradient[t], gradients[-1], weight) if gradients else gradient[t].contiguous()
        before = cells[t - 1] if t else zero
        saved = (v.flatten(0, -2) for v in (before, cells[t], gates[t]))
        slope, cell, _ = fused[1](state.flatten(0, -2), cell, *saved, False)
        gradients.append(slope.view(shape))
    return torch.stack(gradients[::-1])
