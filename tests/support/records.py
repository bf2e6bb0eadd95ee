"""Records of runs that were never run, with figures chosen by the test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from undrift.reporting.record import Record, history_frame
from undrift.statistics.predictions import Predictions

NAN = math.nan
FEDAVG = [0.5, 0.6, 0.7, 0.8]
FEDHBM = [0.7, 0.8, 0.9, 0.95]


def record(
    label: str,
    accuracy: Sequence[float],
    *,
    seed: int = 0,
    loss: Sequence[float] | None = None,
    diverged_at: int | None = None,
    config: dict[str, Any] | None = None,
    right: Sequence[bool] | None = None,
    **metrics: Sequence[float],
) -> Record:
    """A run of 150 bytes and half a second a round, a tenth of one evaluation, with rounds counted from one.

    `right` says which test samples, all of class 0, it classifies correctly; without it there are no predictions.
    """
    rows = [
        {
            "round": number,
            "loss": 1 / number if loss is None else loss[number - 1],
            "accuracy": accuracy[number - 1],
            "train_loss": 2 / number,
            "bytes_down": 100,
            "bytes_up": 50,
            "participants": 10,
            "seconds": 0.5,
            "evaluation_seconds": 0.1,
            "diverged": number == diverged_at,
        }
        | {name: values[number - 1] for name, values in metrics.items()}
        for number in range(1, len(accuracy) + 1)
    ]
    settings = config or {"algorithm": {"name": label}, "seed": seed}
    predictions = None if right is None else answers(right)
    return Record(label, seed, history_frame(rows), settings, {"torch": "2.9"}, predictions)


def answers(right: Sequence[bool]) -> Predictions:
    wrong = 1 - np.array(right, dtype=np.int64)
    return Predictions(np.zeros_like(wrong), wrong)


def answering(label: str, right: int, of: int, first: int = 0, seed: int = 0) -> Record:
    """A run that has so many of its test samples right, from a first one on."""
    return record(label, [right / of], seed=seed, right=[first <= number < first + right for number in range(of)])
