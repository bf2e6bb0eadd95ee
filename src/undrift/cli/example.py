"""The built-in example: what client drift costs, and what FedHBM does about it, in a few seconds.

Forty clients share scikit-learn's handwritten digits so that each sees two of the ten; eight of them train in a round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undrift.simulation.compare import Comparison, compare

ABOUT = "FedAvg and FedHBM on digits: 40 clients, two classes each, 8 of them in a round, 3 seeds."
ALGORITHMS = ("fedavg", "fedhbm")
SEEDS = (0, 1, 2)
ROUNDS = 60
# Of 0.05, 0.1, 0.2, 0.3 and 0.5, 0.3 is the rate at which FedAvg ends best (the mean of its last ten rounds over six
# seeds); FedHBM has no say in it.
SETTINGS: dict[str, Any] = {"model": "mlp", "data": "digits", "cohort": 8, "batch_size": 8, "lr": 0.3}


def play(out: str | Path | None, rounds: int = ROUNDS) -> Comparison:
    """FedAvg and FedHBM, all else equal."""
    return compare(ALGORITHMS, seeds=SEEDS, rounds=rounds, out=out, **SETTINGS)
