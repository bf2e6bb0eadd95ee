"""The copy of the caller's module that is trained, and why some modules cannot be copied or trained."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from undrift.core import torch_private
from undrift.core.check import first_line

_TRAINABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_AVERAGED = (*_TRAINABLE, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def copied(module: nn.Module, device: torch.device | str, dtype: torch.dtype | None) -> nn.Module:
    """A copy on its device and in its precision; nothing of it is shared with the caller's module."""
    _check_kind(module)
    _check_tensors(module)
    try:
        # PyTorch copies no tensor that was computed from others, such as an output kept from an earlier call.
        computed = {id(t): t.detach().clone() for t in _plain_tensors(module) if not t.is_leaf}
        result = copy.deepcopy(module, computed)
    except (RuntimeError, TypeError, AttributeError, ValueError, NotImplementedError) as error:
        raise ValueError(f"the model {type(module).__name__} cannot be copied: {first_line(error)}") from error
    theirs = {id(t) for _, t in named_tensors(module)}
    if shared := [name for name, t in named_tensors(result) if id(t) in theirs]:
        raise ValueError(
            f"the model {type(module).__name__} cannot be copied: a deep copy still has its own tensor {shared[0]!r}"
        )
    _convert(result, device, dtype)
    for part in result.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False  # sparse gradients have the same values, and hardly any operations
        if isinstance(part, nn.DataParallel):
            part.device_ids = []  # clients are what is spread over devices
    return result


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def is_averaged(buffer: Tensor) -> bool:
    """Whether a buffer can be sent and averaged; others (complex, sparse, quantised) stay in the module as they are."""
    return buffer.layout is torch.strided and buffer.dtype in _AVERAGED and not buffer.is_quantized


def _check_kind(module: nn.Module) -> None:
    for name, part in module.named_modules():
        what = f"its part {name!r}" if name else "it"
        if isinstance(part, torch.jit.ScriptModule):
            raise ValueError(
                f"the model cannot be trained: {what} is a {type(part).__name__} of torch.jit, whose parameters cannot "
                "be replaced; give the module that it was made from"
            )
        if isinstance(part, nn.parallel.DistributedDataParallel):
            raise ValueError(f"the model cannot be trained: {what} is a DistributedDataParallel; give its .module")


def _check_tensors(module: nn.Module) -> None:
    """Refuses, by name, tensors that cannot be trained or averaged."""
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, tensor in tensors:
            if is_lazy(tensor):
                raise ValueError(
                    f"the model's {kind} {name!r} has no shape yet (a lazy module); call the model once with samples"
                )
            if tensor.is_meta:
                raise ValueError(f"the model's {kind} {name!r} is on the device 'meta' and has no values")
            if kind == "parameter" and tensor.requires_grad:
                _check_trainable(name, tensor)
    _check_overlap(module)


def _check_trainable(name: str, parameter: Tensor) -> None:
    if parameter.layout is not torch.strided:
        raise ValueError(f"the model's parameter {name!r} is sparse ({parameter.layout}); only dense ones are trained")
    if parameter.is_complex():
        raise ValueError(
            f"the model's parameter {name!r} is complex ({parameter.dtype}); "
            "keep real and imaginary parts as real numbers (torch.view_as_real)"
        )
    if parameter.dtype not in _TRAINABLE:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in _TRAINABLE)
        raise ValueError(f"the model's parameter {name!r} is of type {parameter.dtype}; only {allowed} are trained")
    if torch_private.has_accumulation_hooks(parameter):
        raise ValueError(
            f"the model's parameter {name!r} has a hook of register_post_accumulate_grad_hook, which would not be "
            "called; use register_hook"
        )


def _check_overlap(module: nn.Module) -> None:
    """Refuses a parameter that is a view of another tensor: training the one would have to change the other."""
    ranges = sorted(
        (t.data_ptr(), t.data_ptr() + _extent(t), name, t)
        for name, t in named_tensors(module)
        if t.layout is torch.strided and t.numel()
    )
    for number, (_, end, name, tensor) in enumerate(ranges):
        for start, _, other_name, other in ranges[number + 1 :]:
            if start >= end:
                break
            if (tensor.requires_grad or other.requires_grad) and _meet(tensor, other):
                raise ValueError(
                    f"the model's tensors {name!r} and {other_name!r} share memory; register one and the same tensor "
                    "under both names, or give each a copy"
                )


def _extent(tensor: Tensor) -> int:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _meet(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of overlapping extents have an element in common."""
    if all(_extent(t) == t.numel() * t.element_size() for t in (a, b)):
        return True
    return bool(_addresses(a) & _addresses(b))


def _addresses(tensor: Tensor) -> set[int]:
    places = torch.zeros((), dtype=torch.int64)
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        steps = torch.arange(size) * stride * tensor.element_size()
        places = places + steps.view(-1, *[1] * (tensor.ndim - axis - 1))
    return set((places + tensor.data_ptr()).flatten().tolist())


def _plain_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Tensors kept as attributes, in lists and in dicts."""
    for part in module.modules():
        yield from _tensors_in(vars(part))


def _tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple) and depth < 8:
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(inner, depth + 1)


def _convert(module: nn.Module, device: torch.device | str, dtype: torch.dtype | None) -> None:
    module.to(device)
    if dtype is None:
        return
    # `nn.Module.to` would drop the imaginary part of complex buffers.
    places = [(part, name, b) for part in module.modules() for name, b in part.named_buffers(recurse=False)]
    kept = [(part, name, b.to(_COMPLEX.get(dtype, b.dtype))) for part, name, b in places if b.is_complex()]
    for part, name, _ in kept:
        setattr(part, name, None)
    module.to(dtype)
    for part, name, buffer in kept:
        setattr(part, name, buffer)
