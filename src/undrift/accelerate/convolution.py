"""`nn.Conv2d` for many clients at once, with the kernels of `kernels.py`.

Under `vmap`, PyTorch turns convolutions whose weights differ from client to client into grouped ones. `accelerate`
makes the convolutions of a module call our own function instead while `for_many_clients` is active; its rules for
`vmap` and for gradients know about the axis of clients. Inside an `nn.Sequential`, a convolution followed by ReLU and
2×2 max pooling (in either order, which gives the same numbers) becomes one kernel. Outside of `for_many_clients`
nothing changes.
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

from undrift.accelerate.geometry import Geometry
from undrift.core import torch_private

_many_clients: ContextVar[bool] = ContextVar("_many_clients", default=False)


class Spec(NamedTuple):
    """A convolution without its tensors."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    pooled: bool  # followed by ReLU and 2×2 max pooling
    dtype: torch.dtype  # of inputs and weights; gradients of parameters are in single precision

    def size(self, input_size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the output, before pooling."""
        height, width = (
            (s + 2 * p - d * (k - 1) - 1) // t + 1
            for s, k, t, p, d in zip(input_size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        )
        return height, width


def available() -> bool:
    """Whether there is a GPU that Triton can compile for."""
    return (
        torch.cuda.is_available()
        and importlib.util.find_spec("triton") is not None
        and torch.cuda.get_device_capability() >= (8, 0)  # tensor cores that support tf32 and bf16
    )


@contextmanager
def for_many_clients(active: bool) -> Iterator[None]:
    """Inside, if `active`, convolutions of accelerated modules are computed for many clients at once."""
    token = _many_clients.set(active)
    try:
        yield
    finally:
        _many_clients.reset(token)


def accelerate(module: nn.Module) -> bool:
    """Prepare the convolutions of a module in place; returns whether any of them is supported."""
    found = False
    for part in module.modules():
        if type(part) is nn.Conv2d and _supported(part) and "forward" not in vars(part):
            found, part.forward = True, partial(_convolution, part, None)  # type: ignore[method-assign]
        if isinstance(part, nn.Sequential) and type(part).forward is nn.Sequential.forward:
            children = list(part)
            for conv, (a, b) in zip(children, pairwise(children[1:]), strict=False):
                relu, pool = (a, b) if isinstance(a, nn.ReLU) else (b, a)
                if type(conv) is nn.Conv2d and _supported(conv) and type(relu) is nn.ReLU and _pools_by_two(pool):
                    found, conv.forward = True, partial(_convolution, conv, (a, b))  # type: ignore[method-assign]
                    for other in (a, b):
                        other.forward = partial(_unless_fused, other, conv, (a, b))
    return found


def _supported(conv: nn.Conv2d) -> bool:
    return conv.groups == 1 and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _pools_by_two(pool: nn.Module) -> bool:
    """Max pooling over 2×2 pixels that do not overlap."""
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
    """Whether the kernel includes ReLU and pooling; not if a hook looks at what lies between."""
    if chain is None or not _many_clients.get():
        return False
    first, second = chain
    return not (
        any(map(torch_private.has_forward_hooks, (conv, first)))
        or any(map(torch_private.has_forward_pre_hooks, (first, second)))
    )


def _unless_fused(part: nn.Module, conv: nn.Module, chain: Chain, x: Tensor) -> Tensor:
    result: Tensor = x if _fused(conv, chain) else type(part).forward(part, x)
    return result


def _convolution(conv: nn.Conv2d, chain: Chain | None, x: Tensor) -> Tensor:
    if not _many_clients.get():
        return nn.Conv2d.forward(conv, x)
    half = torch.is_autocast_enabled(x.device.type)
    spec = Spec(
        kernel=_pair(conv.kernel_size),
        stride=_pair(conv.stride),
        padding=_pair(conv.padding),
        dilation=_pair(conv.dilation),
        pooled=_fused(conv, chain),
        dtype=torch.get_autocast_dtype(x.device.type) if half else x.dtype,
    )
    output: Tensor = _apply(_Convolution, x, conv.weight, conv.bias, spec)[0]
    return output


def _apply(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    return function.apply(*inputs)


def _pair(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value, value)


class _Convolution(torch.autograd.Function):
    """Output [B, O, H', W'], and with pooling the chosen pixel of every window (see `kernels`)."""

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
        biases = None if bias is None else _stacked(bias, axes[2])
        return _stacked_forward(_stacked(x, axes[0]), _stacked(weight, axes[1]), biases, spec), (0, 0)

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
    def vmap(info: Any, axes: Any, *inputs: Any) -> Any:
        gradient, x, code = (_stacked(v, axis) for v, axis in zip(inputs[:3], axes[:3], strict=True))
        return _stacked_weight_gradient(gradient, x, code, inputs[3]), (0, 0)


class _InputGradient(torch.autograd.Function):
    @staticmethod
    def forward(gradient: Tensor, x: Tensor, weight: Tensor, code: Tensor, spec: Spec) -> Tensor:
        return _stacked_input_gradient(gradient[None], x[None], weight[None], code=code[None], spec=spec)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, axes: Any, *inputs: Any) -> Any:
        gradient, x, weight, code = (_stacked(v, axis) for v, axis in zip(inputs[:4], axes[:4], strict=True))
        return _stacked_input_gradient(gradient, x, weight, code=code, spec=inputs[4]), 0


# With a leading axis of clients, of length one where all of them share a tensor.


def _stacked(tensor: Tensor, axis: int | None) -> Tensor:
    return tensor[None] if axis is None else tensor.movedim(axis, 0)


def _kernels() -> Any:
    """Imported here, as Triton may be missing."""
    from undrift.accelerate import kernels

    return kernels


def _stacked_forward(x: Tensor, weight: Tensor, bias: Tensor | None, spec: Spec) -> tuple[Tensor, Tensor]:
    clients = max(len(x), len(weight), 1 if bias is None else len(bias))
    geometry = Geometry(spec.kernel, spec.stride, spec.padding, spec.dilation)
    size, dtype = spec.size((x.shape[-2], x.shape[-1])), spec.dtype
    out, code = _kernels().convolve(
        _channels_last(x, dtype),
        _channels_last(weight, dtype),
        None if bias is None else bias.contiguous(),
        size=size,
        geometry=geometry,
        clients=clients,
        pool=spec.pooled,
    )
    no_code = torch.empty(clients, 0, dtype=torch.uint8, device=x.device)
    return _channels_first(out), no_code if code is None else code


def _stacked_weight_gradient(gradient: Tensor, x: Tensor, code: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    geometry = Geometry(spec.kernel, spec.stride, spec.padding, spec.dilation)
    size, dtype = spec.size((x.shape[-2], x.shape[-1])), spec.dtype
    clients = max(len(gradient), len(x))
    chosen = _each(code, clients) if spec.pooled else None
    weights, biases = _kernels().correlate(
        _channels_last(x, dtype),
        _each(_channels_last(gradient, dtype), clients),
        chosen,
        size=size,
        geometry=geometry,
    )
    return weights, biases


def _stacked_input_gradient(gradient: Tensor, x: Tensor, weight: Tensor, *, code: Tensor, spec: Spec) -> Tensor:
    """A transposed convolution: with flipped kernels, of outputs that lie `stride` apart."""
    clients = max(len(gradient), len(weight))
    slopes = _channels_last(gradient, spec.dtype)
    size = (x.shape[-2], x.shape[-1])
    if spec.pooled:
        slopes = _kernels().unpool(slopes, code, spec.size(size))
    high, wide = (d * (k - 1) - p for k, p, d in zip(spec.kernel, spec.padding, spec.dilation, strict=True))
    geometry = Geometry(spec.kernel, (1, 1), (high, wide), spec.dilation, spread=spec.stride)
    outputs, channels, kh, kw = weight.shape[1:]
    flat = weight.contiguous().view(len(weight), outputs, channels * kh * kw)
    flipped = _kernels().transposed(flat, spec.dtype, flip=kh * kw).view(len(weight), channels, kh, kw, outputs)
    out, _ = _kernels().convolve(slopes, flipped, None, size=size, geometry=geometry, clients=clients)
    return _channels_first(out).to(x.dtype)


def _each(tensor: Tensor, clients: int) -> Tensor:
    """A copy for every client, also where all share one tensor."""
    return tensor.expand(clients, *tensor.shape[1:]).contiguous()


def _channels_last(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """[n, B, C, H, W] → [n, B, H, W, C], contiguous."""
    view = tensor.permute(0, 1, 3, 4, 2)
    if view.is_contiguous():
        return view.to(dtype)
    flat = tensor.contiguous().flatten(3)
    result: Tensor = _kernels().transposed(flat, dtype).view(view.shape)
    return result


def _channels_first(tensor: Tensor) -> Tensor:
    """[n, B, H, W, C] → [n, B, C, H, W], a view."""
    return tensor.permute(0, 1, 4, 2, 3)
