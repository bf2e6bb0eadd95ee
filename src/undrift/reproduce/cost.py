"""What an experiment costs: local steps of clients, and how long they take on this machine."""

from __future__ import annotations

import json
import time
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from undrift.core.call import read
from undrift.data import is_local, load
from undrift.data.batches import Schedule
from undrift.data.catalogue import CATALOGUE
from undrift.data.outline import random_samples
from undrift.models import build
from undrift.overview import algorithms
from undrift.reproduce.plan import Plan
from undrift.simulation.progress import hidden
from undrift.simulation.simulate import simulate

_SMALL = 1_000_000  # parameters up to which a step is timed with ten clients at once, as it is trained
_TIMED = 2**18  # numbers of all samples of a batch that is timed; of a larger one as many samples as that makes


class Cost(NamedTuple):
    client_steps: float  # local steps of all clients, in all rounds of all runs, tuning included
    seconds: float  # as many of FedAvg's steps as the algorithms compute gradients


def cost(plan: Plan) -> Cost:
    """Where the data are not here, as if all clients had equally many samples."""
    return Cost(*map(sum, zip(*(_of_case(plan, case) for case in plan.cases), strict=True)))


def _of_case(plan: Plan, case: str) -> Cost:
    settings = plan.settings(case)
    batch = int(settings["local.batch_size"])
    epochs, steps = settings.get("local.epochs", 1), settings.get("local.steps")
    sizes = _sizes(json.dumps(plan.data(case)))
    each = float(Schedule(batch, None if steps else epochs, steps).step_counts(sizes).mean())
    whole_pass = float(Schedule(batch, 1, None).step_counts(sizes).mean())
    cohort = settings["run.cohort"]
    clients = len(sizes) if cohort == "all" else round(cohort * len(sizes)) if isinstance(cohort, float) else cohort
    answers = _runs(plan, case) * plan.rounds(case) * clients  # of an algorithm
    costs = [algorithms()[read(text)[0]].cost for text in plan.algorithms.values()]
    gradients = answers * sum(one.gradients * each + one.passes * whole_pass for one in costs)
    name, features = settings["data.name"], settings.get("data.features")
    seconds = gradients * _seconds_of_step(settings["model.name"], name, features, batch)
    return Cost(answers * len(costs) * each, seconds)


def _runs(plan: Plan, case: str) -> float:
    """Of an algorithm; of as many rounds as the final ones have."""
    if (tuning := plan.tuning) is None:
        return plan.seeds
    share = 1.0 if tuning.rounds is None else min(1.0, tuning.rounds / plan.rounds(case))
    return plan.seeds + plan.budget * tuning.seeds * share


@cache
def _sizes(arguments: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Samples of every client."""
    given = json.loads(arguments)
    if is_local(given["name"]):
        return load(**given).sizes
    clients = given["clients"]
    return np.full(clients, round((CATALOGUE[given["name"]].samples or 0) / clients), dtype=np.int64)


@cache
def _seconds_of_step(model: str, data: str, features: str | None, batch: int) -> float:
    """Of one client; the second round is timed, as the first one chooses and allocates."""
    x, y = random_samples(data, batch, features)
    timed = min(batch, max(1, _TIMED // prod(x.shape[1:])))
    built = build(model, tuple(x.shape[1:]), CATALOGUE[data].classes)
    clients = 10 if sum(p.numel() for p in built.parameters()) <= _SMALL else 2
    ends: list[float] = []
    schedule: dict[str, Any] = {"rounds": 2, "cohort": None, "steps": 2, "batch_size": timed, "lr": 0.01}
    with hidden():
        simulate(
            "fedavg",
            built,
            [(x[:timed], y[:timed])] * clients,
            callbacks=[lambda row, run: ends.append(time.perf_counter())],
            **schedule,
        )
    return (ends[1] - ends[0]) / (2 * clients) * batch / timed
