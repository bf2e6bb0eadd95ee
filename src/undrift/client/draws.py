"""Randomness and batch statistics inside a user's model, made a function of (seed, round, client, step).

A model calls `torch.nn.functional.dropout` or `torch.rand_like`; inside `Draws` these calls use the counter-based
generator instead, so that every engine and device draws the same numbers. `MaskedStatistics` lets batch normalisation
ignore the samples that only pad a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from undrift.core import random
from undrift.core.random import Key, Stream

_REFUSED: dict[Any, str] = {
    torch.bernoulli: "torch.bernoulli",
    torch.multinomial: "torch.multinomial",
    torch.normal: "torch.normal",
    torch.poisson: "torch.poisson",
    torch.randint: "torch.randint",
    torch.randint_like: "torch.randint_like",
    torch.randperm: "torch.randperm",
    torch.rrelu: "torch.rrelu",
    F.rrelu: "rrelu",
    F.gumbel_softmax: "gumbel_softmax",
    F.fractional_max_pool2d: "fractional_max_pool2d",
    F.fractional_max_pool3d: "fractional_max_pool3d",
    Tensor.bernoulli_: "Tensor.bernoulli_",
    Tensor.normal_: "Tensor.normal_",
    Tensor.uniform_: "Tensor.uniform_",
}


class Draws(TorchFunctionMode):
    """Replaces random functions by draws keyed by client, step and the number of the call within the forward pass."""

    def __init__(self, key: Key, step: int) -> None:
        super().__init__()
        self.key, self.step, self.calls = key, step, 0

    def uniform(self, shape: Sequence[int]) -> Tensor:
        return random.uniform(self.key, Stream.DROPOUT, self._next(), tuple(shape))

    def normal(self, shape: Sequence[int]) -> Tensor:
        return random.normal(self.key, Stream.DROPOUT, self._next(), tuple(shape))

    def _next(self) -> int:
        self.calls += 1
        if self.calls >= 256:
            raise ValueError("a model may draw random numbers at most 255 times in a forward pass")
        return self.step * 256 + self.calls

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _REPLACED:
            return _REPLACED[func](self, *args, **kwargs)
        if reason := _refusal(func, args, kwargs):
            raise NotImplementedError(reason)
        return func(*args, **kwargs)


_ATTENTION = {F.scaled_dot_product_attention, F.multi_head_attention_forward}


def _refusal(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why a random function cannot be replaced; empty if it can, or if it is not random."""
    if func in _REFUSED:
        return (
            f"the model calls {_REFUSED[func]}, whose draws would differ between engines; "
            "use dropout, torch.rand_like or torch.randn_like instead"
        )
    if func in _ATTENTION and _attention_dropout(func, args, kwargs):
        return "dropout inside attention draws differently on every engine; set the attention's dropout to 0"
    return ""


def _attention_dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if func is F.scaled_dot_product_attention:
        return float(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)) > 0
    probability = kwargs.get("dropout_p", args[9] if len(args) > 9 else 0.0)
    return bool(probability > 0 and kwargs.get("training", args[12] if len(args) > 12 else True))


def _dropout(draws: Draws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _drop(draws, input, input.shape, p=p, training=training)


def _feature_dropout(
    draws: Draws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return _drop(draws, input, (*input.shape[:2], *[1] * (input.ndim - 2)), p=p, training=training)


def _drop(draws: Draws, input: Tensor, shape: Sequence[int], *, p: float, training: bool) -> Tensor:
    if not training or p == 0:
        return input
    if p == 1:
        return input * 0
    kept = (draws.uniform(shape) >= p).to(input.dtype)
    return input * kept / (1 - p)


def _alpha_dropout(
    draws: Draws, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    if not training or p == 0:
        return input
    floor: float = -1.7580993408473766  # -scale * alpha of SELU (Klambauer et al., 2017)
    a: float = ((1 - p) * (1 + p * floor**2)) ** -0.5
    kept = draws.uniform(input.shape) >= p
    return a * torch.where(kept, input, floor) - a * p * floor


def _rand_like(draws: Draws, input: Tensor, **options: Any) -> Tensor:
    return draws.uniform(input.shape).to(options.get("dtype") or input.dtype)


def _randn_like(draws: Draws, input: Tensor, **options: Any) -> Tensor:
    return draws.normal(input.shape).to(options.get("dtype") or input.dtype)


def _shape(size: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], Sequence) else tuple(size)


def _rand(draws: Draws, *size: Any, **options: Any) -> Tensor:
    return draws.uniform(_shape(size)).to(options.get("dtype") or torch.get_default_dtype())


def _randn(draws: Draws, *size: Any, **options: Any) -> Tensor:
    return draws.normal(_shape(size)).to(options.get("dtype") or torch.get_default_dtype())


_REPLACED: dict[Any, Callable[..., Tensor]] = {
    F.dropout: _dropout,
    F.dropout1d: _feature_dropout,
    F.dropout2d: _feature_dropout,
    F.dropout3d: _feature_dropout,
    F.alpha_dropout: _alpha_dropout,
    torch.dropout: _dropout,
    torch.rand_like: _rand_like,
    torch.randn_like: _randn_like,
    torch.rand: _rand,
    torch.randn: _randn,
}


class Listener(TorchFunctionMode):
    """Records whether a forward pass calls random functions, and why `Draws` refuses one of them."""

    heard = False
    refusal = ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.refusal = self.refusal or _refusal(func, args, kwargs)
        self.heard = self.heard or func in _REPLACED
        return func(*args, **kwargs)


class MaskedStatistics(TorchFunctionMode):
    """Makes batch normalisation in training mode use only the samples whose weight is one."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight  # [B], 0 or 1

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        input: Tensor,  # [B, C, ...]
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(
                input, running_mean, running_var, weight=weight, bias=bias, training=False, momentum=momentum, eps=eps
            )
        dtype, input = input.dtype, input.to(torch.promote_types(input.dtype, torch.float32))  # as PyTorch's own does
        inner = (1, -1, *[1] * (input.ndim - 2))
        axes = (0, *range(2, input.ndim))
        kept = self.weight.to(input.dtype).view(-1, *[1] * (input.ndim - 1))
        count = (kept.sum() * (input[0, 0].numel())).clamp_min(1)
        mean = (input * kept).sum(axes) / count
        centred = input - mean.view(inner)
        var = (centred.square() * kept).sum(axes) / count
        if running_mean is not None and running_var is not None:
            unbiased = var * count / (count - 1).clamp_min(1)
            running_mean.copy_((1 - momentum) * running_mean + momentum * mean.detach())
            moved = (1 - momentum) * running_var + momentum * unbiased.detach()
            running_var.copy_(torch.where(count > 1, moved, running_var))  # one value has no variance
        normal = centred * torch.rsqrt(var + eps).view(inner)
        if weight is not None:
            normal = normal * weight.view(inner)
        return (normal if bias is None else normal + bias.view(inner)).to(dtype)
