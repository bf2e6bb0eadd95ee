"""The job an engine is given: answer one phase for every client of a cohort."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from undrift.client.learner import Learner
from undrift.client.task import Differentiate, Fetch, Observation, Samples, Task
from undrift.core import tree
from undrift.core.parts import Part, mark
from undrift.core.random import Key
from undrift.core.tree import Nest
from undrift.data.augment import Augment
from undrift.data.batches import Plan, Schedule, Shape, Table, plan
from undrift.protocol import Mail, Message, Phase, State

Ints = np.ndarray[Any, np.dtype[np.int64]]

# Samples of a batch in a pass over all of a client's data. Larger blocks leave a CPU's cache. Batch statistics are
# those of a block, and random numbers are counted by blocks: `Batched` takes larger ones where a model has neither.
FULL_PASS_BLOCK = 64


class Arrangement(NamedTuple):
    """In which order the clients of a cohort are trained, and in which blocks."""

    shapes: tuple[Shape, ...]  # of the blocks, one after another
    order: Ints | None  # [n]: positions in the cohort; None: as they come


@dataclass(frozen=True)
class LocalTraining:
    """What is the same for every client and round."""

    learner: Learner
    table: Table
    schedule: Schedule
    weight_decay: float
    clip: float | None
    augment: Augment | None
    observe: frozenset[Observation] = frozenset()  # what clients report for diagnostics


@dataclass(frozen=True)
class Work:
    """The clients of a cohort, as tensors [n] in its order.

    What depends on the round may be a tensor as well, so that the same work can be replayed in another round.
    """

    training: LocalTraining
    shapes: tuple[Shape, ...]
    order: Tensor | None
    positions: Tensor  # [n], of the clients in the table
    ids: Tensor  # [n], which their random numbers depend on
    shares: Tensor  # [n]
    seed: int | Tensor  # [n] if a tensor
    round: int | Tensor  # 0-dimensional if a tensor
    lr: float | Tensor  # [n] if a tensor
    participation: float  # |S| / N

    def plans(self) -> Iterator[tuple[Tensor | slice, Shape, Plan]]:
        """Blocks of clients, by their positions in the cohort, and their batches."""
        start = 0
        for shape in self.shapes:
            part = slice(start, start + shape.clients)
            members = part if self.order is None else self.order[part]
            with mark(Part.BATCHES):
                drawn = plan(
                    self.training.table,
                    positions=self.positions[members],
                    clients=self.ids[members],
                    shape=shape,
                    schedule=self.training.schedule,
                    seed=of_clients(self.seed, members),
                    round=self.round,
                )
            yield members, shape, drawn
            start += shape.clients


def of_clients(value: Any, members: Any) -> Any:
    """The entries of these clients, of what may differ between clients."""
    return value[members] if isinstance(value, Tensor) else value


class ClientPart(NamedTuple):
    """What is one client's own in the work of its cohort."""

    id: Tensor
    seed: int | Tensor
    lr: float | Tensor
    share: Tensor
    batches: Sequence[Samples]
    active: Sequence[Tensor | None]
    everything: Sequence[Samples]
    steps: Tensor
    samples: Tensor


class Calculus(NamedTuple):
    """How an engine differentiates and reads samples."""

    differentiate: Differentiate
    fetch: Fetch


def make_task(work: Work, learner: Learner, client: ClientPart, calculus: Calculus) -> Task:
    """What one client computes in this round, whoever computes it."""
    training = work.training
    return Task(
        learner=learner,
        x=training.table.x,
        y=training.table.y,
        batches=client.batches,
        active=client.active,
        everything=client.everything,
        key=Key(client.seed, work.round, client.id),
        steps=client.steps,
        samples=client.samples,
        share=client.share,
        participation=work.participation,
        lr=client.lr,
        weight_decay=training.weight_decay,
        clip=training.clip,
        augment=training.augment,
        differentiate=calculus.differentiate,
        fetch=calculus.fetch,
        observe=training.observe,
    )


class States(Protocol):
    """What the clients of a cohort remember, to be read when it is needed. Nobody writes to what is read."""

    def read(self, members: int | slice | Tensor) -> State:
        """The state of the client at this position of the cohort; of several clients, stacked."""
        ...

    def parts(self) -> Iterator[tuple[slice, State]]:
        """All of them, stacked, in parts of which memory holds one at a time."""
        ...

    def successor(self, count: int) -> NewStates:
        """Room for what these `count` clients will remember after a phase."""
        ...


class NewStates(Protocol):
    """States that are put one by one, by any thread."""

    def put(self, number: int, nest: State) -> None: ...
    @property
    def states(self) -> States: ...  # when all of them are there


class Stacked(NamedTuple):
    """States that are in memory, stacked [n, ...]."""

    nest: State

    def read(self, members: int | slice | Tensor) -> State:
        return tree.row(self.nest, members)

    def parts(self) -> Iterator[tuple[slice, State]]:
        yield slice(None), self.nest

    def successor(self, count: int) -> NewStates:
        return Rows(count)


class Rows:
    """A stacked nest [count, ...] that is filled row by row, by any thread, so that no row is held twice."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._nest: Nest | None = None
        self._first = threading.Lock()

    def put(self, number: int, nest: Nest) -> None:
        with self._first:
            if self._nest is None:
                self._nest = tree.map_nest(lambda v: v.new_empty((self._count, *v.shape)), nest)
        tree.map_nest(lambda target, row: target[number].copy_(row), self._nest, nest)

    @property
    def states(self) -> States:
        return Stacked(self.nest)

    @property
    def nest(self) -> Nest:
        assert self._nest is not None
        return self._nest


class Outcome(NamedTuple):
    """What the clients answered, stacked in the order of the cohort."""

    replies: Message
    states: States
    reports: Nest


class Engine(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def replayed(self) -> bool: ...  # rounds are captured once and replayed
    @property
    def compiled(self) -> bool: ...  # rounds are compiled once; all of them have one shape
    @property
    def workers(self) -> int: ...  # clients trained side by side, by a thread each
    @property
    def threads(self) -> int | None: ...  # of the server's operators; None: as many as PyTorch was given
    @property
    def setting(self) -> str: ...  # as the option ``engine`` writes it, for a resumed run to use the same

    def arrange(self, schedule: Schedule, sizes: Ints, extremes: tuple[int, int]) -> Arrangement:
        """How to train clients of these sizes; `extremes` are those of the smallest and largest client of all."""
        ...

    def run(self, phase: Phase, mail: Mail, states: States, work: Work) -> Outcome: ...
    def spread(self, task: Callable[[int, Learner], None], count: int, learner: Learner) -> None:
        """Calls ``task(0)``, ``task(1)``, ... ``task(count - 1)``, in any order, each with a learner of its own."""
        ...
