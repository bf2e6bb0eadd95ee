"""Tensors as Ray stores them: NumPy arrays, which it puts into shared memory as they are."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.core import tree
from undrift.core.tree import Nest

_ALIGNMENT = 64  # bytes, of PyTorch's own memory: the last bit of a product may depend on it


class Packed(NamedTuple):
    """A tensor of any dtype, as its bytes."""

    content: np.ndarray[Any, np.dtype[np.uint8]]
    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Packed:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        return cls(flat.view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape))

    def tensor(self, device: torch.device | str = "cpu", *, shared: bool = False) -> Tensor:
        """A copy; `shared`: where it is stored, if it is aligned as a copy would be, for what nobody writes to."""
        if not self.content.size:
            return torch.empty(self.shape, dtype=self.dtype, device=device)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")
            stored = torch.from_numpy(self.content)
        aligned = shared and stored.data_ptr() % _ALIGNMENT == 0
        return (stored if aligned else stored.clone()).view(self.dtype).reshape(self.shape).to(device)


def pack(nest: Nest) -> dict[str, Any]:
    return tree.map_nest(Packed.of, nest)


def unpack(packed: dict[str, Any], device: torch.device | str = "cpu") -> Nest:
    return tree.map_nest(lambda each: each.tensor(device), packed)
