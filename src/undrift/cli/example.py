"""The built-in example: the effect of client drift on FedAvg, and FedHBM's correction, in a few seconds.

Forty clients with two of ten handwritten digits each; eight of them train in a round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undrift.simulation.compare import compare
from undrift.simulation.comparison import Comparison

ABOUT = "FedAvg and FedHBM on digits: 40 clients, two classes each, 8 of them in a round, 3 seeds."
ALGORITHMS = ("fedavg", "fedhbm")
SEEDS = (0, 1, 2)
ROUNDS = 60
# The learning rate is tuned for FedAvg: of 0.05, 0.1, 0.2, 0.3 and 0.5, it has the best mean accuracy of the last ten
# rounds over six seeds.
SETTINGS: dict[str, Any] = {"model": "mlp", "data": "digits", "cohort": 8, "batch_size": 8, "lr": 0.3}


def compare_both(out: str | Path | None, rounds: int = ROUNDS) -> Comparison:
    """FedAvg and FedHBM, all else equal."""
    return compare(ALGORITHMS, seeds=SEEDS, rounds=rounds, out=out, **SETTINGS)
