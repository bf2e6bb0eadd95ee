"""The memory of clients: one row per client that has been seen, none for the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from undrift import tree
from undrift.protocol import State

Ids = np.ndarray[Any, np.dtype[np.int64]]


class ClientStates:
    """States stacked on the device. Row 0 is the state of a client that has not taken part yet."""

    def __init__(self, initial: State) -> None:
        self.initial = initial
        self._rows: dict[int, int] = {}
        self._arena: State = tree.map_nest(lambda v: v[None].clone(), initial)
        self._capacity = 1

    def __len__(self) -> int:
        """How many clients have a state of their own."""
        return len(self._rows)

    def gather(self, ids: Ids) -> State:
        """States of these clients, stacked [n, ...]."""
        rows = torch.tensor([self._rows.get(int(i), 0) for i in ids])
        return tree.map_nest(lambda v: v[rows.to(v.device)], self._arena)

    def scatter(self, ids: Ids, states: State) -> None:
        """Remember the states of these clients."""
        if not states:
            return
        assert tree.same_structure(tree.row(states, 0), self.initial), "a state must keep its names, shapes and dtypes"
        rows = torch.tensor([self._rows.setdefault(int(i), len(self._rows) + 1) for i in ids])
        self._reserve(len(self._rows) + 1)

        def write(arena: torch.Tensor, new: torch.Tensor) -> None:
            arena[rows.to(arena.device)] = new

        tree.map_nest(write, self._arena, states)

    def _reserve(self, count: int) -> None:
        if count <= self._capacity:
            return
        capacity = max(count, 2 * self._capacity)
        grow = capacity - self._capacity
        self._arena = tree.map_nest(lambda v: torch.cat([v, v.new_empty(grow, *v.shape[1:])]), self._arena)
        self._capacity = capacity

    def export(self) -> State:
        """Clients seen, and their states stacked in that order; empty if there is nothing to remember."""
        if not self._rows:
            return {}
        return {
            "ids": torch.tensor(list(self._rows)),
            "states": tree.map_nest(lambda v: v[1 : len(self._rows) + 1], self._arena),
        }

    def restore(self, exported: State) -> None:
        self._rows, self._capacity = {}, 1
        self._arena = tree.map_nest(lambda v: v[None].clone(), self.initial)
        if exported:
            self.scatter(exported["ids"].cpu().numpy(), tree.arranged(exported["states"], self.initial))
