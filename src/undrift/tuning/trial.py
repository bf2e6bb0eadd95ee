"""What became of a configuration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from undrift.reporting.record import Record
from undrift.tuning.grid import Configuration

WORST = -1e18  # the score of a configuration that failed, below every accuracy and every loss


class Trial(NamedTuple):
    """The runs of a configuration, one for every seed, up to some round."""

    configuration: Configuration
    rounds: int
    records: Sequence[Record]

    @property
    def failed(self) -> int:
        """Seeds that diverged, or whose training loss exploded."""
        return sum(record.failed for record in self.records)

    @property
    def accuracies(self) -> list[float]:
        """The last of every seed that did not fail."""
        return [_last(record, "accuracy") for record in self.records if not record.failed]

    @property
    def accuracy(self) -> float:
        return _mean(self.accuracies)

    @property
    def std(self) -> float:
        return float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else math.nan

    @property
    def loss(self) -> float:
        return _mean([_last(record, "loss") for record in self.records if not record.failed])

    @property
    def score(self) -> float:
        """The higher the better: accuracy, or without one the loss. One seed that failed makes it the worst."""
        value = self.accuracy if math.isfinite(self.accuracy) else -self.loss
        return WORST if self.failed or not math.isfinite(value) else value

    @property
    def rank(self) -> tuple[int, int, float, float]:
        """The lower the better: rounds it got to, seeds that failed, score, and loss where scores are equal."""
        return -self.rounds, self.failed, -self.score, self.loss if math.isfinite(self.loss) else math.inf


def _last(record: Record, name: str) -> float:
    """The last value that is known."""
    known = [value for value in record.history[name].tolist() if math.isfinite(value)]
    return known[-1] if known else math.nan


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
