"""Storage for rows of states: in the device's memory, then in the host's, then on disk, as each of them fills up.

A block holds some rows and stays where it is. As states grow, blocks are added, so that nothing is moved or held twice;
a round reads and writes the rows of its cohort, wherever they are.
"""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from undrift.core import tree
from undrift.core.files import StorageError
from undrift.protocol import State
from undrift.storage import memory

Ids = np.ndarray[Any, np.dtype[np.int64]]

_SHARES = {"cpu": 0.5, "cuda": 0.25, "mps": 0.25}  # of the memory that is left without states; the rest is for training
_WORD = 8  # bytes: rows on disk are made of 64-bit words
_ALIGNMENT = 2  # words: every tensor of a row starts at a multiple, as the largest dtype requires


class Block(Protocol):
    """Rows of states. `read` returns copies on the device that trains, with the names that `like` has."""

    place: str
    rows: int

    def read(self, rows: Ids, like: State) -> State: ...
    def look(self, row: int) -> State:
        """One row, possibly where it is stored: to be read before anything is written."""
        ...

    def write(self, rows: Ids, states: State) -> None: ...


class Space:
    """Where the states of a run may be stored: `device` trains, `home` is the directory for what exceeds memory."""

    def __init__(self, device: torch.device, home: Path | None = None) -> None:
        self.device, self.home = device, home or _disk_directory()

    def block(self, initial: State, rows: int, most: int) -> Block:
        """A block for `rows` rows like `initial`, or for fewer if memory is short; on disk, for `most` rows."""
        for device in dict.fromkeys((self.device, torch.device("cpu"))):
            fitting = min(rows, available(device) // tree.nbytes(initial))
            if fitting > 0:
                return _InMemory(initial, fitting, device, self.device)
        return _OnDisk(initial, most, self.device, self.home)

    def disk_block(self, initial: State, rows: int) -> Block | None:
        """A block on disk; None where no file can be made there."""
        try:
            return _OnDisk(initial, rows, self.device, self.home)
        except OSError:
            return None


def available(device: torch.device) -> int:
    """Bytes that further states may take of this memory; states of all runs in this process count."""
    left = memory.host_left() if device.type == "cpu" else memory.device_left(device)
    taken = sum(block.size for block in _blocks if block.device == device)
    return int(_SHARES[device.type] * (left + taken)) - taken


class _InMemory:
    """Stacked tensors. The host provides their memory page by page, when it is first written to."""

    def __init__(self, initial: State, rows: int, device: torch.device, training_device: torch.device) -> None:
        self.place = "in memory" if device.type == "cpu" else "on the device"
        self.rows, self.device, self._training_device = rows, device, training_device
        self._stacked = tree.map_nest(lambda v: torch.empty(rows, *v.shape, dtype=v.dtype, device=device), initial)
        self.size = tree.nbytes(self._stacked)
        _blocks.add(self)

    def read(self, rows: Ids, like: State) -> State:
        index = to_device(rows, self.device)
        if self.device.type == self._training_device.type:
            return tree.map_nest(lambda _, v: v.index_select(0, index), like, self._stacked)

        def fetched(leaf: Tensor, stacked: Tensor) -> Tensor:
            staged = _staging((len(rows), *leaf.shape), leaf.dtype, self._training_device)
            return torch.index_select(stacked, 0, index, out=staged).to(self._training_device, non_blocking=True)

        return tree.map_nest(fetched, like, self._stacked)

    def look(self, row: int) -> State:
        if self.device == self._training_device:
            return tree.row(self._stacked, row)
        return tree.row(self.read(np.array([row]), self._stacked), 0)

    def write(self, rows: Ids, states: State) -> None:
        index = to_device(rows, self.device)
        if self.device.type == "cpu":
            states = _to_host(states)
        put_rows(self._stacked, index, states)


_blocks: weakref.WeakSet[_InMemory] = weakref.WeakSet()  # all that are in use


class _OnDisk:
    """Consecutive rows in an unnamed file, which the system removes when the process ends, however it ends."""

    place = "on disk"

    def __init__(self, initial: State, rows: int, training_device: torch.device, home: Path) -> None:
        self.rows = rows
        self._initial, self._training_device, self._home = initial, training_device, home
        self._words = sum(map(_words, tree.leaves(initial)))
        # Read and written by explicit calls: pages of a mapped file would count as memory of this process.
        self._file = tempfile.TemporaryFile(buffering=0, dir=home)  # noqa: SIM115  # closed by the line below
        weakref.finalize(self, self._file.close)

    def read(self, rows: Ids, like: State) -> State:
        packed = _staging((len(rows), self._words), torch.int64, self._training_device)
        self._transfer(rows, packed, self._file.readinto)
        unpacked = self._unpacked(packed.to(self._training_device, non_blocking=True))
        return tree.map_nest(lambda _, v: v.clone(memory_format=torch.contiguous_format), like, unpacked)

    def look(self, row: int) -> State:
        return tree.row(self.read(np.array([row]), self._initial), 0)

    def write(self, rows: Ids, states: State) -> None:
        packed = torch.zeros(len(rows), self._words, dtype=torch.int64, device=self._training_device)
        tree.map_nest(lambda column, new: column.copy_(new), self._unpacked(packed), states)
        self._transfer(rows, _to_host({"packed": packed})["packed"], self._file.write)

    def _transfer(self, rows: Ids, packed: Tensor, move: Callable[[memoryview], int | None]) -> None:
        """Read or write these rows; consecutive ones in one call."""
        content = packed.numpy().data.cast("B")
        size = self._words * _WORD
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1).tolist()
        try:
            for first, after in zip(starts, [*starts[1:], len(rows)], strict=True):
                self._file.seek(int(rows[first]) * size)
                part = content[first * size : after * size]
                while part:
                    moved = move(part)  # possibly less than all of it
                    if not moved:
                        raise OSError("the file is truncated")
                    part = part[moved:]
        except OSError as error:
            raise StorageError(f"client states cannot be stored in {self._home}: {error.strerror or error}") from error

    def _unpacked(self, packed: Tensor) -> State:
        """The states in packed rows [n, words]: views."""
        start = 0

        def column(leaf: Tensor) -> Tensor:
            nonlocal start
            words = packed[:, start : start + _words(leaf)]
            start += _words(leaf)
            return words.view(leaf.dtype)[:, : leaf.numel()].view(len(packed), *leaf.shape)

        return tree.map_nest(column, self._initial)


def _words(leaf: Tensor) -> int:
    return _ALIGNMENT * math.ceil(leaf.nbytes / (_ALIGNMENT * _WORD))


def _disk_directory() -> Path:
    """A directory on a disk; the one for temporary files is often in memory."""
    named = os.environ.get("TMPDIR")
    lasting = Path("/var/tmp")
    return Path(named) if named else lasting if os.access(lasting, os.W_OK) else Path(tempfile.gettempdir())


def put_rows(stacked: State, index: Tensor, rows: State) -> None:
    """Write rows to distinct places. Any order gives the same bits, so slower deterministic kernels are not needed."""
    strict, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if strict:
        torch.use_deterministic_algorithms(False)
    try:
        tree.map_nest(lambda target, new: target.index_copy_(0, index, new), stacked, rows)
    finally:
        if strict:
            torch.use_deterministic_algorithms(True, warn_only=warn)


# Copies from and to pinned memory do not block the host; only CUDA has it.


def _staging(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory of the host for copies from and to a device."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def to_device(rows: Ids, device: torch.device) -> Tensor:
    index = torch.from_numpy(rows)
    return index.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else index.to(device)


def _to_host(states: State) -> State:
    """Copies on the CPU; waits for the device once."""
    if not any(leaf.device.type == "cuda" for leaf in tree.leaves(states)):
        return tree.map_nest(lambda v: v.cpu(), states)
    staged = tree.map_nest(lambda v: _staging(tuple(v.shape), v.dtype, v.device), states)
    tree.map_nest(lambda there, here: there.copy_(here, non_blocking=True), staged, states)
    torch.cuda.current_stream(tree.leaves(states)[0].device).synchronize()
    return staged
