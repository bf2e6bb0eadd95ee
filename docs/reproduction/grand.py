"""All algorithms in sixteen settings, each at three rates with three seeds.

    python docs/reproduction/grand.py src/undrift/recommendation/algorithms.csv.gz [--device cuda] [--workers 8] \\
        [--task NAME] [--algorithm NAME]

appends a row per run to the file; runs that are there already are not repeated. `make reproduction-report` then writes
the page. A tenth of every client's training samples is held out, by which rates are chosen; the test set is measured at
every rate, and looked at only at the chosen one. Data sets must be there: `undrift data get fashion-mnist cifar10`.

On one H200, eight workers (with NVIDIA's multi-process service, MPS) measured a pair of algorithm and setting in two
seconds. Those with full passes over clients' samples, which come last, take longer: MA- and GA-FSVRG one and a half to
five minutes with all clients, beside other work.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import traceback
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

import undrift as ud
from undrift.algorithms.text import parse
from undrift.overview import algorithms as known
from undrift.recommendation.measured import (
    ALGORITHMS,
    BATCH,
    COHORT,
    COLUMNS,
    HELD_OUT,
    RATES,
    SEEDS,
    STEPS,
    TASKS,
    Task,
)


class Job(NamedTuple):
    task: str
    algorithm: str
    device: str


@lru_cache(maxsize=SEEDS)  # which the algorithms of a setting share
def federation(task: Task, seed: int) -> tuple[ud.FederatedData, int]:
    """Its test samples are the held-out ones, so many, and then those of the data set."""
    whole = ud.data.load(task.data, partition=task.partition, clients=task.clients, seed=seed)
    held = whole.validation(HELD_OUT)
    assert whole.test is not None
    assert held.test is not None
    count = len(held.test[0])
    x, y = (torch.cat(parts) for parts in zip(held.test, whole.test, strict=True))
    held.test = x, y
    return held, count


def measure(job: Job) -> pd.DataFrame:
    """All rates and seeds, which train together."""
    task = TASKS[job.task]
    counts: dict[int, int] = {}

    def data(seed: int) -> ud.FederatedData:
        found, counts[seed] = federation(task, seed)
        return found

    # FSVRG's step is lr / n_i: its rates are given for a client with the mean number of samples.
    unit = float(data(0).sizes.mean()) if parse(job.algorithm).algorithm.divides_rate else 1.0
    found = ud.compare(
        [job.algorithm],
        task.model,
        data,
        seeds=SEEDS,
        lr=[rate * unit for rate in RATES],
        rounds=task.rounds,
        cohort=COHORT,
        steps=STEPS,
        batch_size=BATCH,
        weight_decay=0.0,
        augment=None,
        eval_every=task.rounds,
        device=job.device,
    )
    rows = []
    for record in found.records:
        history, seen = record.history, record.predictions
        right = None if seen is None else seen.labels == seen.targets
        held = counts[record.seed]
        rows.append(
            {
                "task": job.task,
                "algorithm": job.algorithm,
                "lr": round(record.config["options"]["lr"] / unit, 6),
                "seed": record.seed,
                "held_out": np.nan if right is None else round(float(right[:held].mean()), 6),
                "test": np.nan if right is None else round(float(right[held:].mean()), 6),
                "diverged": record.failed,
                "rounds": int(history["round"].max()),
                "bytes": int(history.bytes_down.sum() + history.bytes_up.sum()),
            }
        )
    return pd.DataFrame(rows)[COLUMNS]


def tried(job: Job) -> tuple[Job, pd.DataFrame | None, str]:
    """What was measured, or what went wrong."""
    try:
        return job, measure(job), ""
    except Exception:
        return job, None, traceback.format_exc()


def jobs(tasks: list[str], algorithms: list[str], device: str, file: Path) -> list[Job]:
    """Those that are not in the file yet, task by task; the most expensive algorithms last."""
    there = set()
    if file.exists():
        stored = pd.read_csv(file)
        there = set(zip(stored.task, stored.algorithm, strict=True))
    found = [Job(task, name, device) for task in tasks for name in algorithms if (task, name) not in there]
    return sorted(found, key=lambda job: known()[job.algorithm].cost.passes)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the processes, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--algorithm", choices=ALGORITHMS, action="append")
    given = parser.parse_args()
    todo = jobs(given.task or list(TASKS), given.algorithm or list(ALGORITHMS), given.device, given.file)
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        for done, (job, rows, error) in enumerate(pool.imap_unordered(tried, todo), start=1):
            print(f"{done}/{len(todo)} {job.task}: {job.algorithm} {error}", flush=True)
            if rows is not None:
                rows.to_csv(given.file, mode="a", index=False, header=not given.file.exists())


if __name__ == "__main__":
    main()
