"""Nests of tensors as Flower's records, and back.

A tensor travels as its dtype, its shape and its bytes, little end first; nothing is ever unpickled. A name is the path
to a tensor as in `tree.entries`, so that names of parameters may contain a ``/``; branches without tensors, which some
messages have, travel as entries of their own.

What arrives is read with the structure that the receiver expects, which it knows from its own copy of the algorithm:
an entry that is missing, superfluous, or of another dtype, shape or length is refused before its bytes are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core import check, tree
from undrift.core.extras import needs
from undrift.core.tree import Nest

with needs("flower"):
    from flwr.app import Array, ArrayRecord, ConfigRecord

_KIND = "undrift.raw"  # how bytes are to be read; Flower's own functions leave them alone
_BRANCH = "branch"  # instead of a dtype: a branch without tensors
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


class WireError(ValueError):
    """A message is not what its receiver expects."""


def structure(nest: Nest) -> Nest:
    """Names, dtypes and shapes of a nest, without its values."""
    return tree.map_nest(lambda leaf: torch.empty_like(leaf, device="meta"), nest)


def to_record(nest: Nest) -> ArrayRecord:
    """A nest as a record, in the order of its names."""
    return ArrayRecord({name: _array(name, leaf) for name, leaf in tree.entries(nest).items()})


def from_record(record: Any, expected: Nest, what: str) -> Nest:
    """The nest that `to_record` was given, if it has the expected structure; names are in that structure's order."""
    if not isinstance(record, ArrayRecord):
        raise WireError(f"{what} is missing")
    wanted = tree.entries(expected)
    for name in {**wanted, **record}:
        if name not in record or name not in wanted:
            raise WireError(f"{what}: {check.shown(name)} is {'missing' if name in wanted else 'not expected'}")
        _check(record[name], wanted[name], f"{what}: {check.shown(name)}")
    return tree.from_entries(
        {name: None if like is None else _tensor(record[name], like) for name, like in wanted.items()}
    )


def numbers_from(record: Any, kinds: Mapping[str, type], what: str) -> dict[str, Any]:
    """The values of a record that must have exactly these names, of these types."""
    if not isinstance(record, ConfigRecord):
        raise WireError(f"{what} is missing")
    for name in {**kinds, **record}:
        if name not in record or name not in kinds:
            raise WireError(f"{what}: {check.shown(name)} is {'missing' if name in kinds else 'not expected'}")
        if type(record[name]) is not kinds[name]:
            raise WireError(
                f"{what}: {check.shown(name)} must be of type {kinds[name].__name__}, got {check.shown(record[name])}"
            )
    return dict(record)


def _array(name: str, leaf: Tensor | None) -> Array:
    if leaf is None:
        return Array(_BRANCH, (), _KIND, b"")
    dtype = str(leaf.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise WireError(f"{check.shown(name)} has the dtype {dtype}, which is not sent")
    flat = leaf.detach().cpu().contiguous().reshape(-1)
    return Array(dtype, tuple(leaf.shape), _KIND, flat.view(torch.uint8).numpy().tobytes())


def _check(array: Array, expected: Tensor | None, what: str) -> None:
    dtype = _BRANCH if expected is None else str(expected.dtype).removeprefix("torch.")
    shape = () if expected is None else tuple(expected.shape)
    if (array.stype, array.dtype, tuple(array.shape)) != (_KIND, dtype, shape):
        given = f"{check.shown(array.dtype)} {check.shown(tuple(array.shape))}"
        raise WireError(f"{what} is {given}, expected {dtype!r} {shape}")
    size = 0 if expected is None else math.prod(shape) * expected.dtype.itemsize
    if len(array.data) != size:
        raise WireError(f"{what} has {len(array.data)} bytes, expected {size}")


def _tensor(array: Array, like: Tensor) -> Tensor:
    """In memory of PyTorch's own, whose alignment the last bit of a product may depend on."""
    tensor = torch.empty(like.shape, dtype=like.dtype)
    tensor.reshape(-1).view(torch.uint8).numpy()[:] = np.frombuffer(array.data, np.uint8)
    return tensor
