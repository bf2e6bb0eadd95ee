"""The job an engine is given: answer one phase for every client of a cohort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from undrift.data.batches import Plan, Schedule, plan
from undrift.data.federated import FederatedData
from undrift.learner import Learner
from undrift.protocol import Mail, Message, Phase, State
from undrift.task import Augment

FULL_PASS_BLOCK = 64  # samples a client looks at together in a pass over all of its data; larger blocks leave the cache


@dataclass(frozen=True)
class Work:
    learner: Learner
    data: FederatedData
    x: Tensor  # the federation's samples on the device
    y: Tensor
    ids: np.ndarray[Any, np.dtype[np.int64]]  # [n]
    shares: Tensor  # [n]
    schedule: Schedule
    seed: int
    round: int
    lr: float
    weight_decay: float
    clip: float | None
    augment: Augment | None

    @property
    def participation(self) -> float:
        return len(self.ids) / len(self.data)

    def plan(self, members: np.ndarray[Any, np.dtype[np.int64]]) -> Plan:
        """The batches of some of the cohort's clients, given by their places in it."""
        return plan(self.data, self.ids[members], self.schedule, self.seed, self.round, self.learner.device)


class Outcome(NamedTuple):
    """What the clients answered, stacked in the order of the cohort."""

    replies: Message
    states: State
    reports: dict[str, Tensor]


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    def run(self, phase: Phase, mail: Mail, states: State, work: Work) -> Outcome: ...
