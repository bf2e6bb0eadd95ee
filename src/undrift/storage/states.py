"""States of clients: one row for every client that has taken part, none for the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from undrift.core import tree
from undrift.engines.work import NewStates, Rows, States
from undrift.protocol import State
from undrift.storage.arena import Block, Space, put_rows, to_device
from undrift.storage.arena import Ids as Ids

TOGETHER = 1 << 27  # bytes of states held at a time when many are read
SMALL = 1 << 28  # bytes: up to this size, growing states are copied so that they stay in one block


class ClientStates:
    """States of a population, in blocks. Row 0 is the state of a client that has not taken part yet."""

    def __init__(self, initial: State, population: int, space: Space) -> None:
        self.initial = initial
        self._size = tree.nbytes(initial)
        self._space = space
        self._rows = np.zeros(population, dtype=np.int64)  # of every client
        self._count = 0
        self._blocks: list[Block] = []
        self._starts: list[int] = []  # the first row of every block
        self._capacity = 0
        if self._size:
            self._extend(1)
            self._write(np.zeros(1, dtype=np.int64), tree.map_nest(lambda v: v[None], initial))
            # From here on, names, shapes and dtypes are needed only; row 0 has the values.
            self.initial = tree.map_nest(lambda v: v.to("meta"), initial)

    def __len__(self) -> int:
        """The number of clients that have a state of their own."""
        return self._count

    @property
    def seen(self) -> Ids:
        """The clients that have a state of their own."""
        return np.flatnonzero(self._rows)

    @property
    def kept(self) -> dict[str, int]:
        """Bytes of states by location: on the device, in memory, on disk."""
        kept: dict[str, int] = {}
        for start, block in zip(self._starts, self._blocks, strict=True):
            rows = min(start + block.rows, self._count + 1) - max(start, 1)
            if rows > 0:
                kept[block.place] = kept.get(block.place, 0) + rows * self._size
        return kept

    def gather(self, ids: Ids) -> State:
        """States of these clients, stacked [n, ...]."""
        return self._read(self._rows[ids], self.initial)

    def look(self, client: int) -> State:
        """The state of one client, possibly where it is stored: to be read before anything is written."""
        (block, _, inside), *_ = self._parts(self._rows[[client]])
        return block.look(int(inside[0]))

    @property
    def together(self) -> int:
        """How many states may be held at a time when many are read."""
        return max(1, TOGETHER // max(1, self._size))

    def waiting(self, count: int) -> NewStates | None:
        """Room on disk for so many states, until they are kept; None on a GPU, or where no file can be made."""
        if self._space.device.type != "cpu":
            return None
        block = self._space.disk_block(self.initial, count)
        return None if block is None else _Waiting(self, block)

    def of(self, ids: Ids) -> CohortStates:
        """States of these clients, to be read when they are needed."""
        return CohortStates(self, ids)

    def scatter(self, ids: Ids, states: State) -> None:
        """Store the states of these clients."""
        if not states:
            return
        assert tree.same_structure(tree.row(states, 0), self.initial), "a state must keep its names, shapes and dtypes"
        if not self._size:
            return
        rows = self._rows[ids]
        new = rows == 0
        count = self._count + int(new.sum())
        rows[new] = np.arange(self._count + 1, count + 1)
        self._reserve(count + 1)
        self._write(rows, states)
        self._rows[ids], self._count = rows, count

    def blocks(self, part: str | None = None) -> Iterator[State]:
        """All states, or a part of each, in blocks: ids of clients, and their states stacked in that order."""
        like = self.initial if part is None else {part: self.initial[part]}
        seen = self.seen
        for start in range(0, len(seen), self.together):
            ids = seen[start : start + self.together]
            yield {"ids": torch.from_numpy(ids), "states": self._read(self._rows[ids], like)}

    def _reserve(self, count: int) -> None:
        """Grow to hold `count` rows, at least to twice the capacity."""
        if count <= self._capacity:
            return
        wanted = min(max(count, 2 * self._capacity), len(self._rows) + 1)
        if self._capacity * self._size > SMALL:
            self._extend(wanted)
            return
        rows = np.arange(self._count + 1)
        kept = self._read(rows, self.initial)
        self._blocks, self._starts, self._capacity = [], [], 0
        self._extend(wanted)
        self._write(rows, kept)

    def _extend(self, capacity: int) -> None:
        while self._capacity < capacity:
            most = len(self._rows) + 1 - self._capacity
            block = self._space.block(self.initial, capacity - self._capacity, most)
            self._blocks.append(block)
            self._starts.append(self._capacity)
            self._capacity += block.rows

    def _read(self, rows: Ids, like: State) -> State:
        if not self._size:  # a structure without tensors
            return tree.repeat(like, len(rows))
        parts = list(self._parts(rows))
        if len(parts) == 1:
            block, _, inside = parts[0]
            return block.read(inside, like)
        device = self._space.device
        states = tree.map_nest(lambda v: torch.empty(len(rows), *v.shape, dtype=v.dtype, device=device), like)
        for block, places, inside in parts:
            put_rows(states, to_device(places, device), block.read(inside, like))
        return states

    def _write(self, rows: Ids, states: State) -> None:
        parts = list(self._parts(rows))
        for block, places, inside in parts:
            mine = states if len(parts) == 1 else tree.row(states, to_device(places, self._space.device))
            block.write(inside, mine)

    def _parts(self, rows: Ids) -> Iterator[tuple[Block, Ids, Ids]]:
        """The blocks that hold these rows: block, positions in `rows`, rows of the block."""
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(which).tolist():
            places = np.flatnonzero(which == number)
            yield self._blocks[number], places, rows[places] - self._starts[number]


class CohortStates:
    """States of some clients as they are now, by position among them: read at once if they are small, else one by one.

    A copy of all of them would need as much memory again; for small ones it takes less time.
    """

    def __init__(self, states: ClientStates, ids: Ids) -> None:
        self._states, self._ids = states, ids
        self._together = states.gather(ids) if len(ids) <= states.together else None

    def read(self, members: int | slice | Tensor) -> State:
        """The state of the client at this position; of several clients, stacked."""
        if self._together is not None:
            return tree.row(self._together, members)
        if isinstance(members, int):
            return self._states.look(int(self._ids[members]))
        return self._states.gather(self._ids[_numbers(members)])

    def parts(self) -> Iterator[tuple[slice, State]]:
        return _parts(self, len(self._ids), self._states.together)

    def successor(self, count: int) -> NewStates:
        """On disk if there are many, as those before are in memory until the new ones are known to be finite."""
        waiting = None if self._together is not None else self._states.waiting(count)
        return Rows(count) if waiting is None else waiting


class _Waiting:
    """States after a phase, on disk."""

    def __init__(self, states: ClientStates, block: Block) -> None:
        self._states, self._block = states, block
        self._one_at_a_time = threading.Lock()  # a file has one position

    @property
    def states(self) -> States:
        return self

    def put(self, number: int, nest: State) -> None:
        with self._one_at_a_time:
            self._block.write(np.array([number]), tree.map_nest(lambda v: v[None], nest))

    def read(self, members: int | slice | Tensor) -> State:
        with self._one_at_a_time:
            if isinstance(members, int):
                return self._block.look(members)
            return self._block.read(np.arange(self._block.rows)[_numbers(members)], self._states.initial)

    def parts(self) -> Iterator[tuple[slice, State]]:
        return _parts(self, self._block.rows, self._states.together)

    def successor(self, count: int) -> NewStates:
        waiting = self._states.waiting(count)
        return Rows(count) if waiting is None else waiting


def _numbers(members: slice | Tensor) -> slice | Ids:
    return members.cpu().numpy() if isinstance(members, Tensor) else members


def _parts(states: States, count: int, together: int) -> Iterator[tuple[slice, State]]:
    for start in range(0, count, together):
        part = slice(start, start + together)
        yield part, states.read(part)
