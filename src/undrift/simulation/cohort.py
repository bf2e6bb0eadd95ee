"""Who takes part in a round, and with which weight: a function of seed and round."""

from __future__ import annotations

import random as standard
from typing import Any

import numpy as np
import torch

from undrift.core import check, random
from undrift.data.batches import Schedule
from undrift.data.federated import FederatedData
from undrift.methods.plugin import Plugin
from undrift.methods.setting import Plan
from undrift.protocol import Cohort
from undrift.simulation.options import Options
from undrift.simulation.setup import Experiment, Setup
from undrift.storage.states import Ids


def size(options: Options, population: int) -> int | None:
    """How many clients a round has; None when cohorts are listed one by one. Refuses what cannot be."""
    cohort: Any = options.cohort
    if cohort is None:
        return population
    if isinstance(cohort, int):
        if not 1 <= cohort <= population:
            raise ValueError(
                f"cohort must lie between 1 and the federation's {population} clients, got {check.shown(cohort)}"
            )
        return cohort
    if isinstance(cohort, float):
        check.number("cohort (a fraction)", cohort, 0, 1, open_low=True)
        return max(1, round(cohort * population))
    if len(cohort) != options.rounds:
        raise ValueError(
            f"cohort as a list must have one entry per round, got {len(cohort)} for {options.rounds} rounds"
        )
    for number, members in enumerate(cohort, 1):
        if not isinstance(members, list):
            raise TypeError(f"cohort of round {number} must be a list of clients, got {check.shown(members)}")
        for member in members:
            if isinstance(member, bool) or not isinstance(member, int) or not 0 <= member < population:
                raise ValueError(
                    f"cohort of round {number}: clients are 0..{population - 1}, got {check.shown(member)}"
                )
        if not len(members) or len(set(members)) < len(members):
            raise ValueError(
                f"cohort of round {number} must name different clients, at least one, got {check.shown(members)}"
            )
    return None


def largest(options: Options, population: int) -> int:
    """How many clients the largest cohort has."""
    return size(options, population) or max(len(members) for members in options.cohort)  # type: ignore[union-attr]


def smallest(options: Options, population: int) -> int:
    """How many clients the smallest cohort has."""
    return size(options, population) or min(len(members) for members in options.cohort)  # type: ignore[union-attr]


def participation(options: Options, population: int) -> str:
    """How many clients train in a round, in words: one (1) and everyone (1.0) cannot be confused."""
    count = size(options, population)
    if count is None:
        sizes = sorted(len(members) for members in options.cohort)  # type: ignore[union-attr]
        return f"{' to '.join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))} of {population} clients in a round"
    return f"{'all' if count == population else f'{count} of'} {population} clients in a round"


def plan(options: Options, schedule: Schedule, data: FederatedData) -> Plan:
    """What a run with these settings is about to do."""
    steps = schedule.step_counts(data.sizes)
    return Plan(
        participation=largest(options, len(data)) / len(data),
        steps=max(1, int(np.median(steps))),
        samples=float(np.median(data.sizes)),
        lr=options.lr,
        most_steps=int(steps.max()),
    )


def instabilities(setup: Setup) -> tuple[str, ...]:
    """What the algorithm and its plug-ins know to be unstable in a run with these settings."""
    planned = plan(setup.options, setup.schedule, setup.data)
    plugins = [p for p in (*setup.objects.plugins, setup.algorithm.pgvc) if isinstance(p, Plugin)]
    return (*setup.algorithm.warnings(planned), *(text for plugin in plugins for text in plugin.warnings(planned)))


def choices(setup: Setup) -> tuple[str, ...]:
    """What the algorithm chose for a run with these settings."""
    return setup.algorithm.notices(plan(setup.options, setup.schedule, setup.data))


def draw(experiment: Experiment, round: int, attempt: int = 1) -> Ids:
    """The clients of this round; another attempt at it has other ones, where they are drawn.

    By a secret, every attempt has the same ones: privacy is accounted for random cohorts, and one that was drawn until
    enough of it answered is none. Rounds do not tell each other's cohorts, as the standard generator hashes its seed.
    """
    options, population = experiment.options, len(experiment.data)
    if isinstance(options.cohort, list):  # checked before the first round
        return np.array(options.cohort[round - 1], dtype=np.int64)
    count = size(options, population)
    assert count is not None
    if count == population:
        return np.arange(population)
    if secret := experiment.cohort_secret:
        drawn = standard.Random(f"{secret} {round}").sample(range(population), count)
        return np.array(sorted(drawn), dtype=np.int64)
    return random.sample(options.seed, round, population, count, again=attempt - 1).numpy()


def describe(setup: Setup, ids: Ids, round: int) -> Cohort:
    """Weights and shares of the objective, by samples or uniform; in the host's memory."""
    data, dtype = setup.data, setup.learner.dtype
    sizes = torch.from_numpy(data.sizes[ids]).double()
    if setup.weighting == "samples":
        weights, shares = sizes / sizes.sum(), sizes / (len(data.rows) / len(data))
    else:
        weights, shares = torch.full_like(sizes, 1 / len(ids)), torch.ones_like(sizes)
    return Cohort(torch.from_numpy(ids), weights.to(dtype), shares.to(dtype), population=len(data), round=round)


def on_device(cohort: Cohort, device: torch.device) -> Cohort:
    ids, weights, shares = (part.to(device) for part in (cohort.ids, cohort.weights, cohort.shares))
    return cohort._replace(ids=ids, weights=weights, shares=shares)
