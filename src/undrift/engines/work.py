"""The job an engine is given: answer one phase for every client of a cohort."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from undrift.client.learner import Learner
from undrift.client.task import Augment
from undrift.core.parts import Part, mark
from undrift.data.batches import Plan, Schedule, Shape, Table, plan
from undrift.protocol import Mail, Message, Phase, State

Ints = np.ndarray[Any, np.dtype[np.int64]]

FULL_PASS_BLOCK = 64  # samples a client looks at together in a pass over all of its data; larger blocks leave the cache


class Arrangement(NamedTuple):
    """In which order the clients of a cohort are trained, and in which blocks."""

    shapes: tuple[Shape, ...]  # of the blocks, one after another
    order: Ints | None  # [n]: places in the cohort; None: as they come


@dataclass(frozen=True)
class Work:
    """Clients are given by tensors [n] in the order of the cohort; what depends on the round may be a tensor, too, so
    that the same work can be replayed in another round."""

    learner: Learner
    table: Table
    shapes: tuple[Shape, ...]
    order: Tensor | None
    places: Tensor  # [n], of the clients in the table
    ids: Tensor  # [n], whose numbers are drawn
    shares: Tensor  # [n]
    schedule: Schedule
    seed: int | Tensor  # [n] if a tensor
    round: int | Tensor  # 0-dimensional if a tensor
    lr: float | Tensor  # [n] if a tensor
    participation: float  # |S| / N
    weight_decay: float
    clip: float | None
    augment: Augment | None

    def plans(self) -> Iterator[tuple[Tensor | slice, Shape, Plan]]:
        """Blocks of clients, by their places in the cohort, and their batches."""
        start = 0
        for shape in self.shapes:
            part = slice(start, start + shape.clients)
            members = part if self.order is None else self.order[part]
            seed = self.seed[members] if isinstance(self.seed, Tensor) else self.seed
            with mark(Part.BATCHES):
                drawn = plan(
                    self.table,
                    positions=self.places[members],
                    clients=self.ids[members],
                    shape=shape,
                    schedule=self.schedule,
                    seed=seed,
                    round=self.round,
                )
            yield members, shape, drawn
            start += shape.clients


class Outcome(NamedTuple):
    """What the clients answered, stacked in the order of the cohort."""

    replies: Message
    states: State
    reports: dict[str, Tensor]


class Engine(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def replayed(self) -> bool: ...  # rounds are captured once and replayed
    @property
    def compiled(self) -> bool: ...  # rounds are compiled once; all of them have one shape

    def arrange(self, schedule: Schedule, sizes: Ints, extremes: tuple[int, int]) -> Arrangement:
        """How to train clients of these sizes, out of a federation of clients that have at least and at most so many
        samples."""
        ...

    def run(self, phase: Phase, mail: Mail, states: State, work: Work) -> Outcome: ...
