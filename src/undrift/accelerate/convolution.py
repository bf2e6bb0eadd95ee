"""`nn.Conv2d` for many clients at once, by the kernels of `kernels.py`.

Under `vmap`, PyTorch turns convolutions whose weights differ from client to client into grouped ones. `accelerate`
makes the convolutions of a module, while a cohort is `together`, call our own function instead, whose rules for `vmap`
and for gradients know that there is one more axis. A convolution followed by ReLU and a 2×2 maximum (in either order,
which gives the same numbers) inside an `nn.Sequential` becomes one kernel. Outside of `together` nothing changes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_together: ContextVar[bool] = ContextVar("_together", default=False)


class Spec(NamedTuple):
    """A convolution without its tensors."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    pooled: bool  # 2×2 maximum and ReLU afterwards
    dtype: torch.dtype  # of the factors; gradients of parameters are in single precision

    def size(self, given: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the output, before pooling."""
        high, wide = (
            (g + 2 * p - d * (k - 1) - 1) // t + 1
            for g, k, t, p, d in zip(given, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        )
        return high, wide


def available() -> bool:
    """Whether there is a GPU that Triton can compile for."""
    return (
        torch.cuda.is_available()
        and importlib.util.find_spec("triton") is not None
        and torch.cuda.get_device_capability() >= (8, 0)  # tensor cores that know tf32 and bf16
    )


@contextmanager
def together(active: bool) -> Iterator[None]:
    """Convolutions of accelerated modules are for many clients at once, if `active`."""
    token = _together.set(active)
    try:
        yield
    finally:
        _together.reset(token)


def accelerate(module: nn.Module) -> bool:
    """Prepare the convolutions of a module in place; says whether there are any that can be."""
    found = False
    for part in module.modules():
        if type(part) is nn.Conv2d and _suits(part) and "forward" not in vars(part):
            found, part.forward = True, partial(_convolution, part, None)  # type: ignore[method-assign]
        if type(part) is nn.Sequential:
            children = list(part)
            for conv, (a, b) in zip(children, pairwise(children[1:]), strict=False):
                relu, pool = (a, b) if isinstance(a, nn.ReLU) else (b, a)
                if type(conv) is nn.Conv2d and _suits(conv) and type(relu) is nn.ReLU and _halves(pool):
                    found, conv.forward = True, partial(_convolution, conv, (a, b))  # type: ignore[method-assign]
                    for other in (a, b):
                        other.forward = partial(_unless_fused, other, conv, (a, b))
    return found


def _suits(conv: nn.Conv2d) -> bool:
    return conv.groups == 1 and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _halves(pool: nn.Module) -> bool:
    """A maximum over 2×2 pixels that do not overlap."""
    return (
        type(pool) is nn.MaxPool2d
        and pool.kernel_size in (2, (2, 2))
        and pool.stride in (2, (2, 2))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not pool.ceil_mode
        and not pool.return_indices
    )


Chain = tuple[nn.Module, nn.Module]


def _fused(conv: nn.Module, chain: Chain | None) -> bool:
    """Whether the kernel also does what follows; not if somebody watches what lies between."""
    if chain is None or not _together.get():
        return False
    first, second = chain
    between = (conv._forward_hooks, first._forward_pre_hooks, first._forward_hooks, second._forward_pre_hooks)
    return not any(between)


def _unless_fused(part: nn.Module, conv: nn.Module, chain: Chain, x: Tensor) -> Tensor:
    result: Tensor = x if _fused(conv, chain) else type(part).forward(part, x)
    return result


def _convolution(conv: nn.Conv2d, chain: Chain | None, x: Tensor) -> Tensor:
    if not _together.get():
        return nn.Conv2d.forward(conv, x)
    half = torch.is_autocast_enabled(x.device.type)
    spec = Spec(
        _pair(conv.kernel_size),
        _pair(conv.stride),
        _pair(conv.padding),
        _pair(conv.dilation),
        _fused(conv, chain),
        torch.get_autocast_dtype(x.device.type) if half else x.dtype,
    )
    output: Tensor = _apply(_Convolution, x, conv.weight, conv.bias, spec)[0]
    return output


def _apply(function: type[torch.autograd.Function], *given: Any) -> Any:
    return function.apply(*given)


def _pair(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value, value)


class _Convolution(torch.autograd.Function):
    """Output [B, O, H', W'], and for a pooled one which pixel of a window was taken (see `kernels`)."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, spec: Spec) -> tuple[Tensor, Tensor]:
        out, code = _stacked_forward(x[None], weight[None], None if bias is None else bias[None], spec)
        return out[0], code[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, _, ctx.spec = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    def vmap(info: Any, axes: Any, x: Tensor, weight: Tensor, bias: Tensor | None, spec: Spec) -> Any:
        given = None if bias is None else _stacked(bias, axes[2])
        return _stacked_forward(_stacked(x, axes[0]), _stacked(weight, axes[1]), given, spec), (0, 0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        x, weight, code = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        d_weight, d_bias = (
            _apply(_WeightGradient, gradient, x, code, ctx.spec) if needs_weight or needs_bias else (None, None)
        )
        d_x = _apply(_InputGradient, gradient, x, weight, code, ctx.spec) if needs_x else None
        return d_x, d_weight, d_bias if needs_bias else None, None


class _WeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(gradient: Tensor, x: Tensor, code: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
        weights, biases = _stacked_weight_gradient(gradient[None], x[None], code[None], spec)
        return weights[0], biases[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, axes: Any, *given: Any) -> Any:
        gradient, x, code = (_stacked(v, axis) for v, axis in zip(given[:3], axes[:3], strict=True))
        return _stacked_weight_gradient(gradient, x, code, given[3]), (0, 0)


class _InputGradient(torch.autograd.Function):
    @staticmethod
    def forward(gradient: Tensor, x: Tensor, weight: Tensor, code: Tensor, spec: Spec) -> Tensor:
        return _stacked_input_gradient(gradient[None], x[None], weight[None], code[None], spec)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, axes: Any, *given: Any) -> Any:
        gradient, x, weight, code = (_stacked(v, axis) for v, axis in zip(given[:4], axes[:4], strict=True))
        return _stacked_input_gradient(gradient, x, weight, code, given[4]), 0


# With a leading axis of clients, of length one where all of them share a tensor.


def _stacked(tensor: Tensor, axis: int | None) -> Tensor:
    return tensor[None] if axis is None else tensor.movedim(axis, 0)


def _kernels() -> Any:
    """Imported here, as Triton is not everywhere."""
    from undrift.accelerate import kernels

    return kernels


def _stacked_forward(x: Tensor, weight: Tensor, bias: Tensor | None, spec: Spec) -> tuple[Tensor, Tensor]:
    clients = max(len(x), len(weight), 1 if bias is None else len(bias))
    geometry = _kernels().Geometry(spec.kernel, spec.stride, spec.padding, spec.dilation)
    size, dtype = spec.size((x.shape[-2], x.shape[-1])), spec.dtype
    given = None if bias is None else bias.contiguous()
    out, code = _kernels().convolve(
        _last(x, dtype), _last(weight, dtype), given, size, geometry, clients, pool=spec.pooled
    )
    nothing = torch.empty(clients, 0, dtype=torch.uint8, device=x.device)
    return _first(out), nothing if code is None else code


def _stacked_weight_gradient(gradient: Tensor, x: Tensor, code: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    geometry = _kernels().Geometry(spec.kernel, spec.stride, spec.padding, spec.dilation)
    size, dtype = spec.size((x.shape[-2], x.shape[-1])), spec.dtype
    clients = max(len(gradient), len(x))
    chosen = _each(code, clients) if spec.pooled else None
    weights, biases = _kernels().correlate(
        _last(x, dtype), _each(_last(gradient, dtype), clients), chosen, size, geometry
    )
    return weights, biases


def _stacked_input_gradient(gradient: Tensor, x: Tensor, weight: Tensor, code: Tensor, spec: Spec) -> Tensor:
    """A convolution with the kernels turned round, of outputs that lie `stride` apart."""
    clients = max(len(gradient), len(weight))
    given = _last(gradient, spec.dtype)
    size = (x.shape[-2], x.shape[-1])
    if spec.pooled:
        given = _kernels().unpool(given, code, spec.size(size))
    margin = tuple(d * (k - 1) - p for k, p, d in zip(spec.kernel, spec.padding, spec.dilation, strict=True))
    geometry = _kernels().Geometry(spec.kernel, (1, 1), margin, spec.dilation, spec.stride)
    outputs, channels, kh, kw = weight.shape[1:]
    flat = weight.contiguous().view(len(weight), outputs, channels * kh * kw)
    turned = _kernels().turned(flat, spec.dtype, flip=kh * kw).view(len(weight), channels, kh, kw, outputs)
    return _first(_kernels().convolve(given, turned, None, size, geometry, clients)[0]).to(x.dtype)


def _each(tensor: Tensor, clients: int) -> Tensor:
    """One for every client, also where all have the same."""
    return tensor.expand(clients, *tensor.shape[1:]).contiguous()


def _last(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Channels last in memory: [n, B, C, H, W] → [n, B, H, W, C]."""
    view = tensor.permute(0, 1, 3, 4, 2)
    if view.is_contiguous():
        return view.to(dtype)
    flat = tensor.contiguous().flatten(3)
    result: Tensor = _kernels().turned(flat, dtype).view(view.shape)
    return result


def _first(tensor: Tensor) -> Tensor:
    """The view of it with channels first."""
    return tensor.permute(0, 1, 4, 2, 3)
