"""A federation's samples: one array for all, and which rows belong to whom.

Nothing here grows with the number of clients but two integer arrays, so that a million clients cost what their samples
cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Pair = tuple[Any, Any]


class FederatedData:
    """Samples `x`, targets `y`, and the rows of every client.

    `clients` is a list of row numbers per client. `test` is a pair (x, y) held by the server.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        clients: Sequence[Any],
        test: Pair | None = None,
        *,
        classes: int | None = None,
        name: str = "",
    ) -> None:
        sizes = np.array([len(rows) for rows in clients], dtype=np.int64)
        _refuse_empty(sizes)
        rows = np.concatenate([np.asarray(rows, dtype=np.int64) for rows in clients])
        self._set(tensor("x", x), tensor("y", y), rows, sizes, test, classes, name)
        if len(self.x) != len(self.y):
            raise ValueError(f"x and y must have equally many rows, got {len(self.x)} and {len(self.y)}")
        if rows.min() < 0 or rows.max() >= len(self.x):
            raise ValueError(f"clients: row numbers must lie in 0..{len(self.x) - 1}, got {rows.min()}..{rows.max()}")

    @classmethod
    def from_clients(cls, clients: Sequence[Pair], test: Pair | None = None) -> FederatedData:
        """From a list with a pair of arrays (x, y) for every client."""
        xs: list[Tensor] = []
        ys: list[Tensor] = []
        for i, pair in enumerate(clients):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise TypeError(f"data: client {i} must be a pair (x, y), got {type(pair).__name__}")
            x, y = tensor(f"client {i}: x", pair[0]), tensor(f"client {i}: y", pair[1])
            if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
                raise ValueError(
                    f"client {i}: x and y must have equally many rows, got shapes {_shape(x)} and {_shape(y)}"
                )
            if not len(x):
                raise ValueError(f"data: every client needs at least one sample; client {i} has none")
            if xs and (x.shape[1:] != xs[0].shape[1:] or y.shape[1:] != ys[0].shape[1:]):
                raise ValueError(
                    f"client {i}: samples must have client 0's shape, {_shape(xs[0][0])} and {_shape(ys[0][0])}, "
                    f"got {_shape(x[0])} and {_shape(y[0])}"
                )
            if xs and (x.dtype != xs[0].dtype or y.dtype != ys[0].dtype):
                raise ValueError(
                    f"client {i}: samples must have the types of client 0's, {xs[0].dtype} and {ys[0].dtype}, "
                    f"got {x.dtype} and {y.dtype}"
                )
            xs.append(x)
            ys.append(y)
        sizes = np.array([len(x) for x in xs], dtype=np.int64)
        _refuse_empty(sizes)
        self = cls.__new__(cls)
        self._set(torch.cat(xs), torch.cat(ys), np.arange(int(sizes.sum())), sizes, test, None, "")
        return self

    def _set(
        self,
        x: Tensor,
        y: Tensor,
        rows: np.ndarray[Any, np.dtype[np.int64]],
        sizes: np.ndarray[Any, np.dtype[np.int64]],
        test: Pair | None,
        classes: int | None,
        name: str,
    ) -> None:
        self.x, self.y, self.rows, self.sizes = x, y, rows, sizes
        self.offsets = np.concatenate([[0], np.cumsum(sizes)])
        self.test = None if test is None else held_out(test)
        self.name = name
        self.recipe: dict[str, Any] = {}  # how `load` made it, so that a run can be resumed without the object
        self._classes = classes
        for what, values in (("x", x), ("y", y)):
            _refuse_nonfinite(what, values, self)

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.sizes)

    def __repr__(self) -> str:
        return (
            f"FederatedData({len(self)} clients, {len(self.rows)} samples of shape {_shape(self.x[0])}"
            f"{', ' + self.name if self.name else ''})"
        )

    @property
    def classes(self) -> int | None:
        """The number of classes, when targets are single whole numbers."""
        if self._classes is None and self.y.ndim == 1 and not self.y.is_floating_point():
            most = int(self.y.max())
            if self.test is not None:
                most = max(most, int(self.test[1].max()))
            self._classes = most + 1
        return self._classes

    def client(self, index: int) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(self.rows[self.offsets[index] : self.offsets[index + 1]])
        return self.x[rows], self.y[rows]

    def owner(self, row: int) -> int | None:
        """The client that holds a row, if any."""
        found = np.flatnonzero(self.rows == row)
        return None if not len(found) else int(np.searchsorted(self.offsets, found[0], side="right") - 1)

    def fingerprint(self) -> str:
        """A digest of everything that training and evaluation see."""
        digest = hashlib.sha256()
        for part in (self.x, self.y, *(self.test or ())):
            digest.update(repr((tuple(part.shape), str(part.dtype))).encode())
            digest.update(part.contiguous().view(torch.uint8).numpy().data if part.numel() else b"")
        digest.update(np.ascontiguousarray(self.rows).data)
        digest.update(np.ascontiguousarray(self.sizes).data)
        return digest.hexdigest()


def tensor(what: str, values: Any) -> Tensor:
    """A tensor on the CPU from a tensor, an array or nested lists; integer targets become int64, bytes stay bytes."""
    if isinstance(values, Tensor):
        out = values.detach().cpu()
    else:
        try:
            out = torch.from_numpy(np.ascontiguousarray(np.asarray(values)))
        except (TypeError, ValueError) as error:
            raise TypeError(f"{what} must be an array or a tensor of numbers, got {type(values).__name__}") from error
    if out.dtype in (torch.int8, torch.int16, torch.int32, torch.bool) or (out.dtype is torch.uint8 and out.ndim <= 1):
        return out.long()
    return out


def held_out(test: Pair) -> tuple[Tensor, Tensor]:
    if not isinstance(test, (tuple, list)) or len(test) != 2:
        raise TypeError(f"test must be a pair (x, y), got {type(test).__name__}")
    x, y = tensor("test x", test[0]), tensor("test y", test[1])
    if len(x) != len(y) or not len(x):
        raise ValueError(f"test: x and y must have equally many rows, at least one, got {len(x)} and {len(y)}")
    for what, values in (("test x", x), ("test y", y)):
        _refuse_nonfinite(what, values)
    return x, y


def _refuse_empty(sizes: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    if not len(sizes):
        raise ValueError("data: a federation needs at least one client, got none")
    empty = np.flatnonzero(sizes == 0)
    if len(empty):
        raise ValueError(f"data: every client needs at least one sample; client {empty[0]} has none")


def _refuse_nonfinite(what: str, values: Tensor, data: FederatedData | None = None) -> None:
    if values.is_floating_point() and not bool(torch.isfinite(values).all()):
        bad = int((~torch.isfinite(values.flatten(1) if values.ndim > 1 else values[:, None])).any(1).nonzero()[0])
        owner = None if data is None else data.owner(bad)
        whose = "" if owner is None else f" of client {owner}"
        raise ValueError(f"data: {what} must be finite; a sample{whose} (row {bad}) has NaN or infinity")


def _shape(values: Tensor) -> tuple[int, ...]:
    return tuple(values.shape)
