"""Random numbers and batch statistics inside a user's code, made a function of (seed, round, client, step).

A model, a loss or an augmentation calls `torch.nn.functional.dropout`, `torch.rand_like` or another function of
`ANSWERS`; inside `Draws` these calls use the counter-based generator instead, so that every engine and device draws the
same numbers, and the caller's generators are left alone. What draws otherwise (functions that are not listed, NumPy's
and Python's generators) is found and refused by `undrift.client.generators` before the first round. Functions that are
given a ``generator=`` keep using it. `MaskedStatistics` lets batch normalisation ignore the samples that only pad a
batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from undrift.core import random, torch_private
from undrift.core.random import Key, Stream
from undrift.core.wide import wide
from undrift.data.augment import Augment

_CALLS = 256  # of one step that differ by their counter; further ones differ by their stream


class Draws(TorchFunctionMode):
    """Replaces random functions by draws keyed by client, step and the number of the call meanwhile."""

    def __init__(self, key: Key, step: int, stream: Stream = Stream.DROPOUT) -> None:
        super().__init__()
        self.key, self.step, self.stream, self.calls = key, step, stream, 0

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Numbers in [0, 1)."""
        stream, counter = self._next()
        return random.uniform(self.key, stream, counter, tuple(shape))

    def inner_uniform(self, shape: Sequence[int]) -> Tensor:
        """Numbers in (0, 1), whose logarithm is finite, in float64 where the device has it."""
        return wide(self.uniform(shape)) + 2.0**-25

    def normal(self, shape: Sequence[int]) -> Tensor:
        stream, counter = self._next()
        return random.normal(self.key, stream, counter, tuple(shape))

    def integers(self, shape: Sequence[int], low: int, high: int) -> Tensor:
        """Whole numbers, at least `low` and below `high`."""
        if not 0 < high - low <= 2**63:
            raise NotImplementedError(f"random whole numbers from {low} to {high} are out of range")
        stream, counter = self._next()
        words = random.bits(self.key, stream, counter, 2 * math.prod(shape)).reshape(*shape, 2)
        large = words[..., 0] << 31 ^ words[..., 1]
        return (large if high - low == 2**63 else large % (high - low)) + low

    def _next(self) -> tuple[int, int]:
        """Stream and counter of the next draw."""
        self.calls += 1
        further, number = divmod(self.calls, _CALLS)
        return self.stream + (further << 8), self.step * _CALLS + number

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (answer := ANSWERS.get(func)) is not None and kwargs.get("generator") is None:
            return answer(self, *args, **kwargs)
        if (maker := _MAKERS.get(func)) is not None:
            return maker(self, *args, **kwargs)
        if (body := _BODIES.get(func)) is not None:
            with self:
                return body(*args, **kwargs)
        return func(*args, **kwargs)


def keyed(augment: Augment) -> Augment:
    """An augmentation that calls random functions, with draws keyed by client and step."""

    def drawing(x: Tensor, key: Key, step: int) -> Tensor:
        with Draws(key, step, Stream.OWN_AUGMENT):
            return augment(x, key, step)

    return drawing


class Listener(Draws):
    """Notes whether random functions are called, whether somebody seeds torch's generator before, and whether they are
    called under a `vmap` of the user's own."""

    def __init__(self, key: Key, step: int, stream: Stream = Stream.DROPOUT) -> None:
        super().__init__(key, step, stream)
        self.heard = self.seeded = self.mapped = False
        self._state = torch.default_generator.get_state()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        drawn = self.calls
        if func in ANSWERS:
            self.seeded = self.seeded or not torch.equal(torch.default_generator.get_state(), self._state)
            self.mapped = self.mapped or torch_private.in_vmap()
        result = super().__torch_function__(func, types, args, kwargs)
        # Attention is heard only if it drops something, as models that use it should not become slower for nothing.
        self.heard = (
            self.heard or self.calls > drawn or (func in ANSWERS and func is not F.scaled_dot_product_attention)
        )
        return result


def _body(function: Any) -> Any:
    """A function of `torch.nn.functional` that does not ask a mode to replace it, so that those it calls are heard."""
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = function.__globals__ | {check: lambda *_: False for check in checks}
    copy = FunctionType(function.__code__, names, argdefs=function.__defaults__, closure=function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_BODIES = {f: _body(f) for f in (F.multi_head_attention_forward, F.gumbel_softmax)}


# Dropout


def _dropout(draws: Draws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _drop(draws, input, input.shape, p=p, training=training, inplace=inplace)


def _feature_dropout(
    draws: Draws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return _drop(draws, input, _features(input), p=p, training=training, inplace=inplace)


def _features(input: Tensor) -> tuple[int, ...]:
    return (*input.shape[:2], *[1] * (input.ndim - 2))


def _channels(dimensions: int) -> Callable[..., Tensor]:
    """Dropout of the channels of samples that have so many further dimensions; a sample may come without a batch."""

    def dropout(draws: Draws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        single = input.ndim == dimensions + 1 and dimensions != 2  # as PyTorch takes three dimensions for a batch there
        shape = (input.shape[0], *[1] * dimensions) if single else _features(input)
        return _drop(draws, input, shape, p=p, training=training, inplace=inplace)

    return dropout


def _drop(draws: Draws, input: Tensor, shape: Sequence[int], *, p: float, training: bool, inplace: bool) -> Tensor:
    _check_probability(p)
    if not training or p == 0:
        return input
    if p == 1:
        dropped = input * 0
    else:
        kept = (draws.uniform(shape) >= p).to(input.dtype)
        dropped = input * kept / (1 - p)
    return input.copy_(dropped) if inplace else dropped


def _native_dropout(draws: Draws, input: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    kept = draws.uniform(input.shape) >= p
    return input * kept / (1 - p) if p < 1 else input * 0, kept


def _alpha_dropout(
    draws: Draws, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    return _alpha_drop(draws, input, input.shape, p=p, training=training, inplace=inplace)


def _feature_alpha_dropout(
    draws: Draws, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    return _alpha_drop(draws, input, _features(input), p=p, training=training, inplace=inplace)


def _alpha_drop(
    draws: Draws, input: Tensor, shape: Sequence[int], *, p: float, training: bool, inplace: bool
) -> Tensor:
    _check_probability(p)
    if not training or p == 0:
        return input
    if p == 1:
        dropped = input * 0
    else:
        floor: float = -1.7580993408473766  # -scale * alpha of SELU (Klambauer et al., 2017)
        a: float = ((1 - p) * (1 + p * floor**2)) ** -0.5
        kept = draws.uniform(shape) >= p
        dropped = a * torch.where(kept, input, floor) - a * p * floor
    return input.copy_(dropped) if inplace else dropped


def _check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _in_place(answer: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same with the result in the first argument."""

    def filled(draws: Draws, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return input.copy_(answer(draws, input, *args, **kwargs))

    return filled


def _rrelu(
    draws: Draws,
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    if training:
        slope = draws.uniform(input.shape).to(input.dtype) * (upper - lower) + lower
    else:
        slope = input.new_full((), (lower + upper) / 2)
    leaky = torch.where(input > 0, input, input * slope)
    return input.copy_(leaky) if inplace else leaky


def _attention(
    draws: Draws,
    query: Tensor,  # [..., T, D]
    key: Tensor,  # [..., S, D]
    value: Tensor,  # [..., S, E]
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention by its definition if there is dropout: PyTorch's kernels would draw inside."""
    if dropout_p == 0:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        if attn_mask is not None:
            raise RuntimeError("scaled_dot_product_attention: either attn_mask or is_causal=True, not both")
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        boolean = attn_mask.dtype is torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if boolean else scores + attn_mask
    nothing = (scores == -math.inf).all(-1, keepdim=True)  # such a row attends to nothing: zeros
    weights = scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)
    return _dropout(draws, weights, dropout_p) @ value


def _fractional_pool(function: Any, dimensions: int) -> Callable[..., Any]:
    def pool(draws: Draws, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("_random_samples") is None:
            batch = input.shape[: -dimensions - 1] or (1,)
            drawn = draws.uniform((*batch, input.shape[-dimensions - 1], dimensions))
            kwargs["_random_samples"] = drawn.to(input.dtype)
        return function(input, *args, **kwargs)

    return pool


# New tensors


def _given(numbers: Tensor, options: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """Numbers as the options of a function that makes a tensor ask for them; `dtype` unless they say otherwise."""
    made = numbers.to(options.get("dtype") or dtype)
    if options.get("device") is not None:
        made = made.to(options["device"])
    if (out := options.get("out")) is not None:
        filled: Tensor = (out if out.shape == made.shape else out.resize_(made.shape)).copy_(made)
        return filled
    return made.requires_grad_() if options.get("requires_grad") else made


def _shape(size: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, ...]:
    if not size:
        size = (options["size"],)
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], Sequence) else tuple(size)


def _rand_like(draws: Draws, input: Tensor, **options: Any) -> Tensor:
    return _uniforms(draws, input.shape, options, input.dtype)


def _rand(draws: Draws, *size: Any, **options: Any) -> Tensor:
    return _uniforms(draws, _shape(size, options), options, torch.get_default_dtype())


def _uniforms(draws: Draws, shape: Sequence[int], options: dict[str, Any], dtype: torch.dtype) -> Tensor:
    if (options.get("dtype") or dtype).is_complex:
        return _given(torch.complex(draws.uniform(shape), draws.uniform(shape)), options, dtype)
    return _given(draws.uniform(shape), options, dtype)


def _randn_like(draws: Draws, input: Tensor, **options: Any) -> Tensor:
    return _given(_normals(draws, input.shape, options.get("dtype") or input.dtype), options, input.dtype)


def _randn(draws: Draws, *size: Any, **options: Any) -> Tensor:
    dtype = options.get("dtype") or torch.get_default_dtype()
    return _given(_normals(draws, _shape(size, options), dtype), options, dtype)


def _normals(draws: Draws, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Standard normal numbers; complex ones have a variance of one, too."""
    return torch.complex(draws.normal(shape), draws.normal(shape)) / 2**0.5 if dtype.is_complex else draws.normal(shape)


def _randint(draws: Draws, *args: Any, **options: Any) -> Tensor:
    bounds, size = (args, options["size"]) if "size" in options else (args[:-1], args[-1])
    return _given(draws.integers(tuple(size), *_range(bounds, options)), options, torch.int64)


def _randint_like(draws: Draws, input: Tensor, *bounds: int, **options: Any) -> Tensor:
    return _given(draws.integers(input.shape, *_range(bounds, options)), options, input.dtype)


def _range(bounds: tuple[int, ...], options: dict[str, Any]) -> tuple[int, int]:
    """``([low,] high)``, each by its place or by its name."""
    rest = list(bounds)
    high = options["high"] if "high" in options else rest.pop()
    low = options["low"] if "low" in options else rest.pop() if rest else 0
    return int(low), int(high)


def _randperm(draws: Draws, n: int, **options: Any) -> Tensor:
    """The order of words of 32 bits; their places break ties, so that sorting is exact on every device."""
    words = draws.integers((n,), 0, 2**32)
    return _given((words << 31 | torch.arange(n, device=words.device)).argsort(), options, torch.int64)


def _normal(draws: Draws, mean: Any = 0.0, std: Any = 1.0, size: Any = None, **options: Any) -> Tensor:
    """``torch.normal``: mean and deviation are tensors or numbers; a size is given for numbers only."""
    tensors = [part for part in (mean, std) if isinstance(part, Tensor)]
    shape = torch.broadcast_shapes(*(part.shape for part in tensors)) if tensors else tuple(size)
    dtype = options.get("dtype") or (tensors[0].dtype if tensors else torch.get_default_dtype())
    return _given(mean + std * _normals(draws, shape, dtype).to(dtype), options, dtype)


def _bernoulli(draws: Draws, input: Tensor, p: float | None = None, **options: Any) -> Tensor:
    chance = input.detach() if p is None else p
    return _given(draws.uniform(input.shape) < chance, options, input.dtype)


def _multinomial(draws: Draws, input: Tensor, num_samples: int, replacement: bool = False, **options: Any) -> Tensor:
    """A race: the category with the largest probability / exponential wins, the next one is second."""
    chances = wide(input.detach())
    if replacement:
        shape = (*input.shape[:-1], num_samples, input.shape[-1])
        chosen = (chances.unsqueeze(-2) / _exponential(draws, shape)).argmax(-1)
    else:
        chosen = (chances / _exponential(draws, input.shape)).argsort(-1, descending=True)[..., :num_samples]
    return _given(chosen, options, torch.int64)


def _exponential(draws: Draws, shape: Sequence[int]) -> Tensor:
    return -draws.inner_uniform(shape).log()


def _own(function: Any) -> Callable[..., Tensor]:
    """A function that makes a tensor, whose result belongs to the client, so that `vmap` lets it be filled in place."""

    def make(draws: Draws, *args: Any, **options: Any) -> Tensor:
        made: Tensor = function(*args, **options)
        client = draws.key.client
        if not torch_private.in_functorch() or options.get("out") is not None or made.device != client.device:
            return made
        return torch.where(client == client, made, made)

    return make


# Numbers in place of a tensor's own


def _fill(numbers: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``numbers(draws, shape, ...)`` in place of the elements of a tensor."""

    def filled(draws: Draws, input: Tensor, *args: Any, generator: None = None, **kwargs: Any) -> Tensor:
        with torch.no_grad():
            drawn = numbers(draws, input.shape, *args, **kwargs)
        return input.copy_(drawn)

    return filled


def _uniform_numbers(draws: Draws, shape: Sequence[int], low: float = 0.0, to: float = 1.0) -> Tensor:
    return wide(draws.uniform(shape)) * (to - low) + low


def _normal_numbers(draws: Draws, shape: Sequence[int], mean: float = 0.0, std: float = 1.0) -> Tensor:
    return wide(draws.normal(shape)) * std + mean


def _log_normal_numbers(draws: Draws, shape: Sequence[int], mean: float = 1.0, std: float = 2.0) -> Tensor:
    return _normal_numbers(draws, shape, mean, std).exp()


def _exponential_numbers(draws: Draws, shape: Sequence[int], lambd: float = 1.0) -> Tensor:
    return _exponential(draws, shape) / lambd


def _cauchy_numbers(draws: Draws, shape: Sequence[int], median: float = 0.0, sigma: float = 1.0) -> Tensor:
    return median + sigma * torch.tan(math.pi * (draws.inner_uniform(shape) - 0.5))


def _geometric_numbers(draws: Draws, shape: Sequence[int], p: float) -> Tensor:
    return (draws.inner_uniform(shape).log() / (math.log1p(-p) if p < 1 else -math.inf)).ceil().clamp_min(1)


def _bernoulli_numbers(draws: Draws, shape: Sequence[int], p: float | Tensor = 0.5) -> Tensor:
    return draws.uniform(shape) < p


def _normal_(draws: Draws, input: Tensor, mean: float = 0.0, std: float = 1.0, generator: None = None) -> Tensor:
    return input.copy_(_normals(draws, input.shape, input.dtype).to(input.dtype) * std + mean)


def _initialise(numbers: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of `torch.nn.init`, which fills parameters, too."""

    def filled(draws: Draws, tensor: Tensor, *, generator: None = None, **kwargs: float) -> Tensor:
        with torch.no_grad():
            return tensor.copy_(numbers(draws, tensor.shape, **kwargs))

    return filled


def _kaiming_uniform(
    draws: Draws,
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: Any = "leaky_relu",
    generator: None = None,
) -> Tensor:
    """``nn.init.kaiming_uniform_``, the initialiser of PyTorch's linear and convolutional layers."""
    fan = math.prod(tensor.shape[2:]) * tensor.shape[1 if mode == "fan_in" else 0]
    bound = nn.init.calculate_gain(nonlinearity, a) * math.sqrt(3.0 / max(1, fan))
    with torch.no_grad():
        return tensor.copy_(_uniform_numbers(draws, tensor.shape, -bound, bound))


def _random_(draws: Draws, input: Tensor, *bounds: int | None, to: int | None = None, **_: None) -> Tensor:
    """``Tensor.random_([low,] to)``: without an upper bound, up to what the type holds exactly."""
    if to is None:
        low, to = (0, *bounds) if len(bounds) == 1 else bounds or (0, None)
    else:
        low = bounds[0] if bounds else 0
    return input.copy_(draws.integers(input.shape, low or 0, 1 + _largest(input.dtype) if to is None else to))


def _largest(dtype: torch.dtype) -> int:
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps)
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max


ANSWERS: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    F.dropout1d: _channels(1),
    F.dropout2d: _channels(2),
    F.dropout3d: _channels(3),
    F.alpha_dropout: _alpha_dropout,
    F.feature_alpha_dropout: _feature_alpha_dropout,
    torch.dropout: _dropout,
    torch.dropout_: _in_place(_dropout),
    torch.native_dropout: _native_dropout,
    torch.feature_dropout: _feature_dropout,
    torch.feature_dropout_: _in_place(_feature_dropout),
    torch.alpha_dropout: _alpha_dropout,
    torch.alpha_dropout_: _in_place(_alpha_dropout),
    torch.feature_alpha_dropout: _feature_alpha_dropout,
    torch.feature_alpha_dropout_: _in_place(_feature_alpha_dropout),
    F.rrelu: _rrelu,
    torch.rrelu: _rrelu,
    torch.rrelu_: _in_place(_rrelu),
    F.scaled_dot_product_attention: _attention,
    **{f: _fractional_pool(f, 2) for f in (F.fractional_max_pool2d, F.fractional_max_pool2d_with_indices)},
    **{f: _fractional_pool(f, 3) for f in (F.fractional_max_pool3d, F.fractional_max_pool3d_with_indices)},
    torch.rand: _rand,
    torch.rand_like: _rand_like,
    torch.randn: _randn,
    torch.randn_like: _randn_like,
    torch.randint: _randint,
    torch.randint_like: _randint_like,
    torch.randperm: _randperm,
    torch.normal: _normal,
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
    torch.multinomial: _multinomial,
    Tensor.multinomial: _multinomial,
    Tensor.uniform_: _fill(_uniform_numbers),
    Tensor.normal_: _normal_,
    Tensor.log_normal_: _fill(_log_normal_numbers),
    Tensor.exponential_: _fill(_exponential_numbers),
    Tensor.cauchy_: _fill(_cauchy_numbers),
    Tensor.geometric_: _fill(_geometric_numbers),
    Tensor.bernoulli_: _fill(_bernoulli_numbers),
    Tensor.random_: _random_,
    nn.init.uniform_: _initialise(lambda draws, shape, a, b: _uniform_numbers(draws, shape, a, b)),
    nn.init.normal_: _initialise(_normal_numbers),
    nn.init.kaiming_uniform_: _kaiming_uniform,
}
# Functions that draw nothing, but make a tensor that may be filled with random numbers.
_MAKERS: dict[Any, Callable[..., Tensor]] = {f: _own(f) for f in (torch.empty, torch.zeros, torch.ones, Tensor.new)}


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
