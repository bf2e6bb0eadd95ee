"""Users' arrays as tensors: what is no plain array of numbers is refused, by the name of the argument."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]
Ints = np.ndarray[Any, np.dtype[np.int64]]

_KEPT = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
_WIDENED = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}  # PyTorch hardly has them


def tensor(what: str, values: Any) -> Tensor:
    """A tensor on the CPU, with a row per sample, from a tensor, an array or nested lists.

    A one-dimensional array of integers becomes int64; others (bytes of images, tokens) keep their small type.
    """
    out = _plain(what, values)
    if out.ndim == 0:
        raise ValueError(f"{what} must have a row per sample, got a single number")
    if len(out) and not out.numel():
        raise ValueError(f"{what} must have at least one number per sample, got shape {tuple(out.shape)}")
    if out.dtype in _WIDENED:
        out = _widened(what, out)
    if out.dtype not in _KEPT:
        raise TypeError(f"{what} must be an array or a tensor of real numbers, got {out.dtype}")
    if out.is_contiguous() and out.stride(-1) != 1:  # of a single row, where strides mean nothing
        out = out.clone(memory_format=torch.contiguous_format)
    if out.dtype is torch.bool or (out.ndim == 1 and not out.is_floating_point()):
        return out.long()
    return out


def rows(what: str, values: Any, count: int) -> Ints:
    """Rows of some of `count` samples, given by their numbers or as a mask over all samples."""
    array = _plain(what, values).numpy() if isinstance(values, Tensor) else _array(what, values)
    if array.ndim != 1:
        raise TypeError(f"{what}: rows must be a list of numbers or a mask, got {_described(values)}")
    if array.dtype == bool:
        if len(array) != count:
            raise ValueError(f"{what}: a mask must have an entry for each of the {count} samples, got {len(array)}")
        return np.flatnonzero(array)
    if len(array) and (array.dtype.kind not in "iu" or _has_flags(values)):
        raise TypeError(f"{what}: row numbers must be whole numbers, got {_described(values)}")
    if array.dtype == np.uint64 and len(array) and int(array.max()) >= count:
        raise ValueError(f"{what}: row numbers must lie in 0..{count - 1}, got {array.max()}")
    return array.astype(np.int64)


def whole_numbers(what: str, values: Any) -> Ints:
    """A list of whole numbers."""
    array = _plain(what, values).numpy() if isinstance(values, Tensor) else _array(what, values)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu") or _has_flags(values):
        raise TypeError(f"{what} must be a list of whole numbers, got {_described(values)}")
    return array.astype(np.int64)


def column(what: str, values: Any) -> Array:
    """A label or a name for every sample [n, ...]: numbers or words, which can be sorted."""
    array = _plain(what, values).numpy() if isinstance(values, Tensor) else _array(what, values)
    if array.dtype == object and array.ndim == 1 and all(isinstance(value, str) for value in array):
        array = array.astype(str)
    if array.ndim == 0 or array.dtype.kind not in "biufUS":
        raise TypeError(
            f"{what} must be a list with an entry per sample, of numbers or words, got {_described(values)}"
        )
    return array


def kind_of_input(x: Tensor) -> str:
    """How a model is given such inputs."""
    if x.dtype is torch.uint8:
        return "bytes, which become numbers between 0 and 1"
    return "real numbers" if x.is_floating_point() else "whole numbers, which stay as they are"


def _plain(what: str, values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return _of_tensor(what, values)
    if isinstance(values, (list, tuple)) and values and all(isinstance(value, Tensor) for value in values):
        try:
            return torch.stack([_of_tensor(what, value) for value in values])
        except RuntimeError as error:
            raise TypeError(f"{what} must be tensors of one shape and type") from error
    array = _array(what, values)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise TypeError(f"{what} must be an array or a tensor of numbers, got {_described(values)}")
    array = array.astype(array.dtype.newbyteorder("="), copy=any(stride < 0 for stride in array.strides), order="C")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nor is it written here
        return torch.from_numpy(array)


def _of_tensor(what: str, values: Tensor) -> Tensor:
    own_kind = type(values).__torch_dispatch__ is not Tensor.__torch_dispatch__
    if own_kind or values.is_nested or values.layout is not torch.strided or values.is_quantized:
        kind = type(values).__name__ if own_kind else "nested" if values.is_nested else str(values.layout)
        raise TypeError(f"{what} must be a plain, dense tensor, got a {kind} one")
    if values.is_meta:
        raise TypeError(f"{what} must be a tensor with values, got one on the device 'meta'")
    return values.detach().as_subclass(Tensor).cpu().resolve_neg()


def _array(what: str, values: Any) -> Array:
    parts = values if isinstance(values, (list, tuple)) else (values,)
    if any(_is_masked(part) for part in parts):
        raise TypeError(f"{what} must be a plain array, got a masked one; fill it, or leave its samples out")
    try:
        return np.asarray(values)
    except Exception as error:  # anything may call itself an array
        raise TypeError(f"{what} must be an array or a tensor of numbers, got {_described(values)}") from error


def _is_masked(part: Any) -> bool:
    """NumPy imports its masked arrays when they are first named, which few programs need."""
    return isinstance(part, np.ndarray) and type(part) is not np.ndarray and isinstance(part, np.ma.MaskedArray)


def _widened(what: str, values: Tensor) -> Tensor:
    if values.dtype is torch.uint64 and values.numel() and int(values.numpy().max()) > torch.iinfo(torch.int64).max:
        raise ValueError(f"{what} must hold numbers below 2**63, got {values.numpy().max()}")
    return values.to(_WIDENED[values.dtype])


def _has_flags(values: Any) -> bool:
    """Whether True or False is among numbers, which NumPy would take for 1 or 0."""
    return isinstance(values, (list, tuple)) and any(isinstance(value, (bool, np.bool_)) for value in values)


def _described(values: Any) -> str:
    name, kind = type(values).__name__, getattr(values, "dtype", None)
    return name if kind is None else f"{name} of {kind}" if not callable(kind) else name
