"""What a run knows of clients that are elsewhere: how to reach them, and which of their rounds it has kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.core import tree
from undrift.engines.work import NewStates
from undrift.protocol import State
from undrift.simulation import cohort as participation
from undrift.simulation.setup import Experiment
from undrift.storage.arena import Ids
from undrift.storage.states import TOGETHER
from undrift.transport import Order, Transport


class RemoteStates:
    """Stands for the states of clients behind a transport, where a run would hold them itself."""

    def __init__(self, experiment: Experiment, transport: Transport, initial: State, heard: Ids) -> None:
        self.transport, self.initial = transport, initial
        self.heard = heard  # the last round of every client that was kept; 0: none. The run's own, which it updates
        self._experiment = experiment

    def __len__(self) -> int:
        """The number of clients that have a state of their own."""
        return len(self.seen)

    @property
    def seen(self) -> Ids:
        """The clients that have a state of their own."""
        return np.flatnonzero(self.heard) if tree.nbytes(self.initial) else np.zeros(0, dtype=np.int64)

    @property
    def kept(self) -> dict[str, int]:
        """Bytes of states by location."""
        return {"with the clients": size} if (size := len(self.seen) * tree.nbytes(self.initial)) else {}

    def of(self, ids: Ids) -> Elsewhere:
        return Elsewhere(self, ids)

    def blocks(self, part: str | None = None) -> Iterator[State]:
        """All states, or a part of each, in blocks: ids of clients, and their states stacked in that order."""
        if part is None and self.transport.durable:
            return
        like = self.initial if part is None else {part: self.initial[part]}
        together, seen = max(1, TOGETHER // max(1, tree.nbytes(like))), self.seen
        for start in range(0, len(seen), together):
            ids, states = self.transport.remembered(self.order(seen[start : start + together]), part)
            if len(ids):
                yield {"ids": torch.from_numpy(ids), "states": states}

    def order(self, ids: Ids) -> Order:
        """An order between rounds, for evaluation."""
        experiment, round = self._experiment, int(self.heard.max()) + 1
        return between_rounds(experiment, ids, round)._replace(heard=self.heard[ids])


class Elsewhere(NamedTuple):
    """What the clients of a cohort remember: not here."""

    remote: RemoteStates
    ids: Ids

    def positions(self, ids: Tensor) -> Ids:
        """Where these clients are in the cohort."""
        order = np.argsort(self.ids)
        found: Ids = order[np.searchsorted(self.ids, ids.cpu().numpy(), sorter=order)]
        return found

    def read(self, members: int | slice | Tensor) -> State:
        raise AssertionError("what clients elsewhere remember is not read during a round")

    def parts(self) -> Iterator[tuple[slice, State]]:
        return iter(())

    def successor(self, count: int) -> NewStates:
        raise AssertionError("what clients elsewhere remember is not written by the server")


def between_rounds(experiment: Experiment, ids: Ids, round: int) -> Order:
    """What clients are told when they are asked for something else than a phase of a round."""
    described = participation.describe(experiment, ids, round)
    return Order(
        round=round,
        phase=0,
        seed=experiment.options.seed,
        lr=experiment.options.rate(round),
        participation=len(ids) / len(experiment.data),
        ids=ids,
        shares=described.shares,
        heard=np.zeros_like(ids),
    )
