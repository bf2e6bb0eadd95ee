"""The recurrence of an LSTM for many clients at once.

It is a function with a derivative of its own: what does not depend on the previous step is computed for all steps at
once, so that a step is a product and a few operations, on a GPU one, instead of the many that a tape would record.
`accelerate` lets PyTorch's own `nn.LSTM`, which knows neither `vmap` nor `torch.func.grad`, use it under them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


def transformed() -> bool:
    """Whether somebody is under `vmap` or `torch.func.grad`."""
    return bool(torch._C._are_functorch_transforms_active())


def layer(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Hidden states [B, T, U] and the last cell [B, U] for samples [B, T, inputs]; both start at zero."""
    inputs = F.linear(x, weight_ih, bias)  # [B, T, 4 U]: all steps in one product
    kind, half = x.device.type, torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(kind) if half else inputs.dtype
    with torch.autocast(kind, enabled=False):
        hidden, last, *_ = _apply(_Recurrence, inputs.to(dtype), weight_hh.to(dtype))
    return hidden, last


def suits(part: nn.RNNBase) -> bool:
    """Whether a layer can be trained for many clients at once."""
    return type(part) is nn.LSTM and not part.bidirectional and not part.proj_size and not part.dropout


def accelerate(module: nn.Module) -> None:
    """Prepare the LSTMs of a module in place; outside of transformations nothing changes."""
    for part in module.modules():
        if isinstance(part, nn.LSTM) and suits(part) and "forward" not in vars(part):
            vars(part)["forward"] = partial(_forward_of, part)


def _forward_of(part: nn.LSTM, input: Any, hx: State | None = None) -> tuple[Tensor, State]:
    """What `nn.LSTM` gives for arguments of the same names."""
    if not transformed():
        return nn.LSTM.forward(part, input, hx)
    if hx is not None or not isinstance(input, Tensor) or input.ndim != 3:
        raise NotImplementedError("an nn.LSTM for many clients starts at zero and takes samples of one length")
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
    """Hidden states [B, T, U] and the last cell [B, U] of what the inputs contribute to the gates [B, T, 4U]; with
    gates and cells, which the derivative needs."""

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


# Of n clients at once. In memory time comes first: [n, B, T, ...] is a view of [T, n, B, ...].


def _forward(inputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, the last cell, gates after their sigmoid or tanh, and cells."""
    n, units = max(len(inputs), len(weight)), weight.shape[-1]
    given = inputs.expand(n, *inputs.shape[1:]).movedim(2, 0).contiguous()
    turned = weight.mT.expand(n, units, 4 * units)
    walk = _fused_forward if given.is_cuda else _plain_forward
    hidden, gates, cells = walk(given, turned)
    return hidden.movedim(0, 2), cells[-1].clone(), gates.movedim(0, 2), cells.movedim(0, 2)


def _backward(
    gradient: Tensor, last: Tensor, weight: Tensor, hidden: Tensor, gates: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor]:
    n = max(map(len, (gradient, last, weight, hidden)))
    given = (v.expand(n, *v.shape[1:]) for v in (gradient, hidden, gates, cells))
    gradient, hidden, gates, cells = (v.movedim(2, 0) for v in given)
    walk = _fused_backward if gates.is_cuda else _plain_backward
    found = walk(gradient, last.expand(n, *last.shape[1:]), weight.expand(n, *weight.shape[1:]), gates, cells)
    later = found[1:].permute(1, 3, 0, 2).flatten(2)  # [n, 4U, (T-1) B]
    return found.movedim(0, 2), later @ hidden[:-1].movedim(1, 0).flatten(1, 2)


def _plain_forward(given: Tensor, turned: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    units = turned.shape[1]
    gates = given.clone()
    hidden, cells = (given.new_empty(*given.shape[:-1], units) for _ in range(2))
    for t in range(len(given)):
        now, cell = gates[t], cells[t]
        if t:
            torch.baddbmm(now, hidden[t - 1], turned, out=now)
        take, keep, new, show = now.chunk(4, -1)
        now[..., : 2 * units].sigmoid_()
        new.tanh_()
        show.sigmoid_()
        torch.mul(take, new, out=cell)
        if t:
            cell.addcmul_(keep, cells[t - 1])
        torch.mul(show, cell.tanh(), out=hidden[t])
    return hidden, gates, cells


def _plain_backward(gradient: Tensor, cell: Tensor, weight: Tensor, gates: Tensor, cells: Tensor) -> Tensor:
    take, keep, new, show = gates.chunk(4, -1)
    shown, before = cells.tanh(), torch.cat([torch.zeros_like(cells[:1]), cells[:-1]])
    # How the sums in front of the gates act on the cell, three of them, and the last one on the hidden state.
    slopes = torch.cat([new * take * (1 - take), before * keep * (1 - keep), take * (1 - new.square())], -1)
    slopes = torch.cat([slopes, shown * show * (1 - show)], -1)
    revealed = show * (1 - shown.square())  # how the cell acts on the hidden state
    found = torch.empty_like(slopes)
    for t in reversed(range(len(gates))):
        state = gradient[t] if t == len(gates) - 1 else torch.baddbmm(gradient[t], found[t + 1], weight)
        cell = torch.addcmul(cell, state, revealed[t])
        torch.mul(torch.cat([cell, cell, cell, state], -1), slopes[t], out=found[t])
        cell = cell * keep[t]
    return found


# The same by PyTorch's fused cells, which only GPUs have.


def _fused_forward(given: Tensor, turned: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape, units = given.shape[1:-1], turned.shape[1]
    recurrent, cell = torch.zeros_like(given[0]), given.new_zeros(shape.numel(), units)
    hidden: list[Tensor] = []
    gates: list[Tensor] = []
    cells: list[Tensor] = []
    for now in given:
        if hidden:
            recurrent = torch.bmm(hidden[-1], turned)
        state, cell, gate = torch.ops.aten._thnn_fused_lstm_cell(now.flatten(0, -2), recurrent.flatten(0, -2), cell)
        hidden.append(state.view(*shape, units))
        gates.append(gate.view(*shape, 4 * units))
        cells.append(cell.view(*shape, units))
    return torch.stack(hidden), torch.stack(gates), torch.stack(cells)


def _fused_backward(gradient: Tensor, last: Tensor, weight: Tensor, gates: Tensor, cells: Tensor) -> Tensor:
    shape, nothing = gates.shape[1:], torch.zeros_like(cells[0])
    found: list[Tensor] = []
    cell = last.flatten(0, -2).contiguous()
    for t in reversed(range(len(gates))):
        state = torch.baddbmm(gradient[t], found[-1], weight) if found else gradient[t].contiguous()
        before = cells[t - 1] if t else nothing
        given = (v.flatten(0, -2) for v in (before, cells[t], gates[t]))
        slope, cell, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(state.flatten(0, -2), cell, *given, False)
        found.append(slope.view(shape))
    return torch.stack(found[::-1])
