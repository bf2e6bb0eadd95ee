"""The time of a round of every algorithm in the settings of `grand.py`, relative to FedAvg's.

    python docs/reproduction/times.py src/undrift/recommendation/times.csv [--device cuda]

replaces the rows of that device (about ten minutes on two cores), those of a tenth of the clients first. Clients have
as many samples as those of Fashion-MNIST, a hundred or ten of them, whose pictures are random: time does not depend on
them. Every algorithm takes turns with FedAvg, so that a busy machine slows both; ratios are medians over turns. `make
reproduction-report` then writes the page.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import pandas as pd
import torch

from undrift.bench.single_rounds import SingleRounds
from undrift.recommendation.measured import (
    ALGORITHMS,
    BASELINE,
    BATCH,
    CLIENTS,
    COHORT,
    MODELS,
    STEPS,
    TIME_COLUMNS,
)

SAMPLES, SHAPE = 54_000, (1, 28, 28)  # of Fashion-MNIST, without those that are held out


def single_rounds(algorithm: str, samples: int, device: str) -> SingleRounds:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.rand(samples, *SHAPE, generator=generator), torch.randint(10, (samples,), generator=generator))
        for _ in range(COHORT)
    ]
    return SingleRounds(
        algorithm,
        MODELS["fashion-mnist"],
        clients,
        rounds=1_000_000,
        cohort=1.0,
        steps=STEPS,
        batch_size=BATCH,
        lr=1e-6,  # nothing diverges
        device=device,
    )


def measure(part: str, device: str, algorithms: list[str], turns: int) -> pd.DataFrame:
    """Of the clients that take part in a round, each has a share of all samples."""
    samples = SAMPLES // CLIENTS[part]
    baseline = single_rounds(BASELINE, samples, device)
    rows = []
    for name in algorithms:
        run = single_rounds(name, samples, device)
        run.train()
        pairs = [(baseline.train(), run.train()) for _ in range(turns)]
        ratio = statistics.median(own / other for other, own in pairs)
        rows.append({"device": device, "clients": part, "algorithm": name, "ratio": round(ratio, 2)})
        print(f"{part:5s} {name:14s} {ratio:6.2f}×", flush=True)
    return pd.DataFrame(rows)[TIME_COLUMNS]


def keep(rows: pd.DataFrame, file: Path) -> None:
    """Replaces what is in the file of the same device and clients."""
    parts = [rows]
    if file.exists():
        stored, same = pd.read_csv(file), ["device", "clients"]
        measured = pd.MultiIndex.from_frame(rows[same])
        parts.insert(0, stored[~pd.MultiIndex.from_frame(stored[same]).isin(measured)])
    pd.concat(parts).to_csv(file, index=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    others = [name for name in ALGORITHMS if name != BASELINE]
    for part in CLIENTS:
        keep(measure(part, given.device, others, given.turns), given.file)


if __name__ == "__main__":
    main()
