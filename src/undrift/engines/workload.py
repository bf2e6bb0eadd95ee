"""What is going to be trained, as far as the choice of an engine depends on it."""

from __future__ import annotations

from typing import NamedTuple

from undrift.data.federated import FederatedData
from undrift.engines.work import LocalTraining
from undrift.protocol import Method


class Workload(NamedTuple):
    method: Method
    training: LocalTraining
    data: FederatedData
    seed: int
    precision: str
    rounds: int  # at least
    cohort: int  # clients of a round, at most
    uneven: str  # why not all rounds have the same shape; empty if they do

    @property
    def largest_batch(self) -> int:
        """Samples in the largest batch."""
        largest = int(self.data.sizes.max())
        return min(self.training.schedule.batch_size or largest, largest)

    @property
    def extremes(self) -> tuple[int, int]:
        """Samples of the smallest and of the largest client."""
        return int(self.data.sizes.min()), int(self.data.sizes.max())
