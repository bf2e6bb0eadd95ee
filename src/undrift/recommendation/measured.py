"""The stored results of all algorithms in sixteen settings, which docs/reproduction/grand.py measured.

A row of the file is a run: every algorithm in every setting, at three rates, with three seeds. Settings and algorithms
may be missing; whoever reads the results says so. How long rounds take was measured apart, by
docs/reproduction/times.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np
import pandas as pd

from undrift.overview import algorithms as known

FILE = "algorithms.csv.gz"
COLUMNS = ["task", "algorithm", "lr", "seed", "held_out", "test", "diverged", "rounds", "bytes"]
TIMES = "times.csv"
TIME_COLUMNS = ["device", "clients", "algorithm", "ratio"]
BASELINE = "fedavg"
ALGORITHMS = tuple(known())

SEEDS = 3
RATES = (0.01, 0.03, 0.1)
HELD_OUT = 0.1  # of every client's training samples, by which rates are chosen
ROUNDS, COHORT, STEPS, BATCH = 100, 10, 20, 32
CLASSES = 10
PARTITIONS = {"Dirichlet 0.1": "dirichlet:0.1", "Dirichlet 1": "dirichlet:1", "one class": "classes:1", "IID": "iid"}
CLIENTS = {"10 %": 100, "all": 10}  # of whom `COHORT` take part in a round
MODELS = {"fashion-mnist": "lenet", "cifar10": "lenet5"}


class Task(NamedTuple):
    """A setting that algorithms are measured in."""

    data: str
    model: str
    partition: str
    clients: int
    rounds: int


TASKS = {
    f"{data}, {name}, {part}": Task(data, model, partition, clients, ROUNDS)
    for data, model in MODELS.items()
    for name, partition in PARTITIONS.items()
    for part, clients in CLIENTS.items()
}


@dataclass(frozen=True)
class Outcome:
    """An algorithm in a setting, at the rate that was chosen for it."""

    algorithm: str
    rate: float
    accuracies: dict[int, float]  # on the test samples after the last round, by seed; without runs that failed
    lost: tuple[int, ...]  # seeds that diverged, or whose training loss exploded
    failed_anywhere: int  # of the runs at all rates
    runs: int  # at all rates
    worst_rate: float  # mean test accuracy at the rate with the lowest, where a run that failed counts 0
    bytes_per_round: float  # down and up, of all clients of the round

    @property
    def failed(self) -> int:
        return len(self.lost)

    @property
    def mean(self) -> float:
        """NaN where all seeds failed."""
        return float(np.mean(list(self.accuracies.values()))) if self.accuracies else math.nan

    @property
    def std(self) -> float:
        return float(np.std(list(self.accuracies.values()), ddof=1)) if len(self.accuracies) > 1 else math.nan

    @property
    def scores(self) -> dict[int, float]:
        """Accuracies by seed; a run that failed counts 0."""
        return self.accuracies | dict.fromkeys(self.lost, 0.0)

    @property
    def score(self) -> float:
        """The mean that algorithms are ranked by."""
        return sum(self.scores.values()) / len(self.scores)


Outcomes = dict[str, dict[str, Outcome]]  # by setting and algorithm


@cache
def rows() -> pd.DataFrame:
    """All stored runs."""
    with resources.as_file(resources.files("undrift.recommendation").joinpath(FILE)) as path:
        return pd.read_csv(path)


@cache
def times() -> pd.DataFrame:
    """How long a round takes, relative to FedAvg's: by device, clients ("10 %", "all") and algorithm."""
    with resources.as_file(resources.files("undrift.recommendation").joinpath(TIMES)) as path:
        return pd.read_csv(path)


@cache
def stored() -> Outcomes:
    return outcomes(rows())


def outcomes(runs: pd.DataFrame) -> Outcomes:
    """Settings and algorithms in the order in which they are declared, those that were measured."""
    found: dict[tuple[str, str], Outcome] = {}
    for (task, algorithm), each in runs.groupby(["task", "algorithm"], sort=False):
        found[str(task), str(algorithm)] = _chosen(str(algorithm), each)
    return {
        task: {name: found[task, name] for name in ALGORITHMS if (task, name) in found}
        for task in TASKS
        if any(where == task for where, _ in found)
    }


def _chosen(algorithm: str, runs: pd.DataFrame) -> Outcome:
    """By held-out accuracy; as in a tuning, a rate at which fewer seeds fail comes first."""
    rates = {float(str(rate)): each for rate, each in runs.groupby("lr")}

    def order(rate: float) -> tuple[int, float]:
        sound = rates[rate][~rates[rate].diverged]
        return int(rates[rate].diverged.sum()), -float(sound.held_out.mean()) if len(sound) else 0.0

    rate = min(rates, key=order)
    lost = rates[rate].diverged
    sound = rates[rate][~lost]
    longest = runs[runs["rounds"] == runs["rounds"].max()].iloc[0]
    return Outcome(
        algorithm=algorithm,
        rate=rate,
        accuracies={int(seed): float(value) for seed, value in zip(sound.seed, sound.test, strict=True)},
        lost=tuple(map(int, rates[rate][lost].seed)),
        failed_anywhere=int(runs.diverged.sum()),
        runs=len(runs),
        worst_rate=min(float(each.test.where(~each.diverged, 0.0).mean()) for each in rates.values()),
        bytes_per_round=float(longest["bytes"] / longest["rounds"]),
    )


def traffic(found: Outcomes, algorithm: str) -> float:
    """Bytes of a round, relative to FedAvg's; the largest of all settings."""
    ratios = [
        each[algorithm].bytes_per_round / each[BASELINE].bytes_per_round
        for each in found.values()
        if algorithm in each and BASELINE in each
    ]
    return round(max(ratios, default=math.nan), 4)


def same_as(runs: pd.DataFrame) -> dict[str, str]:
    """Algorithms whose runs are those of an earlier one, wherever both were measured: here they are one algorithm."""
    figures = runs.assign(test=runs.test.fillna(-1.0)).pivot(
        index=["task", "lr", "seed"], columns="algorithm", values="test"
    )
    found: dict[str, str] = {}
    names = [name for name in ALGORITHMS if name in figures]
    for number, name in enumerate(names):
        for earlier in names[:number]:
            both = figures[[earlier, name]].dropna()
            if earlier not in found and len(both) and (both[earlier] == both[name]).all():
                found[name] = earlier
    return found
