"""What a run needs, checked and on its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from undrift.client.evaluate import Samples
from undrift.client.learner import Learner
from undrift.client.metrics import Metrics
from undrift.data.batches import Schedule, Table
from undrift.data.federated import FederatedData
from undrift.diagnostics.observer import Observer
from undrift.engines import Engine, LocalTraining
from undrift.methods.algorithm import Algorithm
from undrift.protocol import Method
from undrift.simulation.arguments import Objects
from undrift.simulation.options import Options


@dataclass(frozen=True)
class Setup:
    """Everything but an engine; nothing has been trained to make it."""

    objects: Objects  # as given
    options: Options
    algorithm: Algorithm
    method: Method
    training: LocalTraining
    data: FederatedData
    test: Samples | None
    metrics: Metrics
    observer: Observer
    precision: str
    weighting: str
    description: dict[str, Any]  # plain values from which `resume` makes it again, or fingerprints it is checked with

    @property
    def learner(self) -> Learner:
        return self.training.learner

    @property
    def table(self) -> Table:
        return self.training.table

    @property
    def schedule(self) -> Schedule:
        return self.training.schedule


@dataclass(frozen=True)
class Experiment(Setup):
    """A setup and the engine that was chosen for it."""

    engine: Engine
    engine_reason: str
    deployed: bool = False  # clients are on machines of their own
    cohort_secret: str = ""  # draws cohorts instead of the seed, where nobody but the server may know who takes part

    @property
    def answers_may_fail(self) -> bool:
        """Whether clients may not answer, or with numbers that cannot be used: these are left out and counted."""
        return self.deployed or self.options.faults is not None
