"""The built-in example: what client drift costs, and what FedHBM does about it, in a few seconds.

Forty clients share scikit-learn's handwritten digits so that each sees two of the ten; eight of them train in a round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undrift.compare import Comparison, compare

ABOUT = "FedAvg and FedHBM on digits: 40 clients, two classes each, 8 of them in a round, 3 seeds."
ALGORITHMS = ("fedavg", "fedhbm")
SEEDS = (0, 1, 2)
ROUNDS = 60
# 0.3 is FedAvg's best learning rate of 0.03, 0.1, 0.2, 0.3 and 0.5 (0.5 does as well); FedHBM has no say in it.
SETTINGS: dict[str, Any] = {"model": "mlp", "data": "digits", "cohort": 8, "epochs": 3, "batch_size": 16, "lr": 0.3}


def play(out: str | Path | None, rounds: int = ROUNDS) -> Comparison:
    """FedAvg and FedHBM, all else equal."""
    return compare(ALGORITHMS, seeds=SEEDS, rounds=rounds, out=out, **SETTINGS)
