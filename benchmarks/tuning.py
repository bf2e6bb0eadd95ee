"""What it costs to tune eight rates with three seeds together, relative to one run after the other.

    python benchmarks/tuning.py [--rounds 20] [--turns 3]

The workload is W3 of `undrift bench`: 1000 clients of 60 images, 100 in a round, softmax regression. Both take turns,
so that a busy machine slows both equally, and start from nothing; the result is the median ratio of their times.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time

import torch

import undrift as ud

RATES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
SEEDS = 3


def federation() -> ud.FederatedData:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60_000, 1, 28, 28, generator=generator)
    y = torch.randint(10, (60_000,), generator=generator)
    return ud.FederatedData(x, y, torch.arange(60_000).reshape(1000, 60).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    logging.getLogger("undrift").setLevel("WARNING")
    data = federation()
    held = data.validation(0.2)
    # A tuning evaluates the last round only; so do the others.
    options = {"rounds": given.rounds, "cohort": 100, "batch_size": 20, "device": "cpu"}
    ratios = []
    for turn in range(given.turns):
        start = time.perf_counter()
        ud.tune(["fedavg"], "softmax", data, grid={"lr": RATES}, seeds=SEEDS, **options)
        together = time.perf_counter() - start
        start = time.perf_counter()
        for lr in RATES:
            for seed in range(SEEDS):
                ud.simulate(
                    "fedavg",
                    "softmax",
                    held,
                    lr=lr,
                    seed=seed,
                    eval_every=given.rounds,
                    on_divergence="stop",
                    **options,
                )
        apart = time.perf_counter() - start
        ratios.append(together / apart)
        print(f"turn {turn + 1}: together {together:.1f} s, one after the other {apart:.1f} s, ratio {ratios[-1]:.2f}")
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
