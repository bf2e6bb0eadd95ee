"""Accuracy on real data over seeds, by engine and precision: do the fast ones learn as well as fp32?

    python benchmarks/precision.py                                  on a GPU: fp32, tf32, bf16, batched
    python benchmarks/precision.py --paths sequential:fp32,batched:fp32 --data mnist --model lenet5
    python benchmarks/precision.py --json

A path is ENGINE:PRECISION. Its seeds are trained together if the engine can. The data set must be in the cache:
undrift data get cifar10
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

import undrift as ud

LAST = 5  # final evaluations that are averaged, because single ones are noisy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model", default="lenet-hsu")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--paths", default="batched:fp32,batched:tf32,batched:bf16" if on_gpu else "sequential:fp32")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = [measure(path, options) for path in options.paths.split(",")]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{options.algorithm}, {options.model} on {options.data}, {options.rounds} rounds, {options.seeds} seeds")
    print(f"{'path':<18} {'accuracy %':>12} {'by seed':<24} {'seconds':>8}")
    for row in rows:
        each = " ".join(f"{100 * value:.2f}" for value in row["accuracies"])
        spread = f"{100 * row['mean']:.2f} ± {100 * row['deviation']:.2f}"
        print(f"{row['path']:<18} {spread:>12} {each:<24} {row['seconds']:>8.1f}")


def measure(path: str, options: Any) -> dict[str, Any]:
    """All seeds of one path: ten of a hundred clients per round, a moderately skewed Dirichlet partition."""
    engine, precision = path.split(":")
    begun = time.perf_counter()
    comparison = ud.compare(
        [options.algorithm],
        options.model,
        lambda seed: ud.data.load(options.data, partition="dirichlet-client:1", clients=100, seed=seed),
        seeds=options.seeds,
        rounds=options.rounds,
        cohort=10,
        batch_size=64,
        lr=0.05,
        eval_every=max(1, options.rounds // 20),
        engine=engine,
        precision=precision,
    )
    accuracies = [float(record.history.accuracy.dropna().tail(LAST).mean()) for record in comparison.records]
    return {
        "path": path,
        "accuracies": accuracies,
        "mean": statistics.mean(accuracies),
        "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
        "seconds": time.perf_counter() - begun,
        "curves": [record.history.accuracy.dropna().tolist() for record in comparison.records],
    }


if __name__ == "__main__":
    main()
