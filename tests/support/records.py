"""Records of runs that were never run, with figures chosen by the test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from undrift.reporting.record import Record, history_frame

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
    **metrics: Sequence[float],
) -> Record:
    """A run of 150 bytes and half a second a round, a tenth of one evaluation, with rounds counted from one."""
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
    return Record(label, seed, history_frame(rows), settings, {"torch": "2.9"})
