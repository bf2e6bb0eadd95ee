"""A user's situation, and the measured settings that are nearest to it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

import numpy as np

from undrift.core import check
from undrift.data.partition import owners, parse
from undrift.recommendation.measured import CLASSES, CLIENTS, COHORT, PARTITIONS, TASKS

_SAMPLES = 60  # of every class and client where a partition is drawn, or chance alone would look like a difference
_MOST_CLIENTS = 100  # that are drawn: more do not change the mean
_MOST_CLASSES = 1000  # six million samples


@dataclass(frozen=True)
class Situation:
    """How many clients there are, how many take part in a round, and how much they differ."""

    clients: int
    participation: float
    skew: float  # mean earth mover's distance of the clients' classes to those of all samples: 0 alike, 1 disjoint
    split: str  # in words


@dataclass(frozen=True)
class Nearest:
    """A kind of setting that was measured, with one data set or both."""

    partition: str
    part: str  # of the clients in a round
    tasks: tuple[str, ...]
    skew: float

    @property
    def text(self) -> str:
        return f"{self.partition}, {'all of' if self.part == 'all' else f'{COHORT} of'} {CLIENTS[self.part]} clients"


def situation(
    clients: int,
    participation: float,
    classes_per_client: float | None,
    alpha: float | None,
    partition: str | None,
    classes: int,
) -> Situation:
    """Checks what is given."""
    check.integer("clients", clients, 2)
    check.integer("classes", classes, 2)
    check.number("participation", participation, 0, 1, open_low=True)
    if round(clients * participation, 1) < 1:  # a third of three may be written as 0.33
        raise ValueError(
            f"participation must leave a client in every round, at least 1/{clients} of {clients} clients, "
            f"got {participation:g}"
        )
    given = [value is not None for value in (classes_per_client, alpha, partition)]
    if sum(given) != 1:
        raise ValueError(
            f"say how clients differ by one of classes_per_client, alpha (of a Dirichlet distribution) and partition, "
            f"got {'none' if not any(given) else sum(given)} of them"
        )
    if partition is not None:
        classes_per_client = _classes_per_client(partition)
    if classes_per_client is not None:
        check.number("classes_per_client", classes_per_client, 1, classes)
        if round(clients * classes_per_client) < classes:
            raise ValueError(
                f"{clients} clients of {classes_per_client:g} classes cannot hold all {classes} classes; "
                "say by `classes` how many there are in all"
            )
        text = f"{classes_per_client:g} of {classes} classes per client"
        return Situation(clients, participation, 1 - classes_per_client / classes, text)
    if alpha is not None:
        check.number("alpha", alpha, 0, open_low=True)
    scheme = f"dirichlet:{alpha:g}" if partition is None else partition
    if classes > _MOST_CLASSES:
        raise ValueError(
            f"classes must be at most {_MOST_CLASSES} where partition {scheme!r} is drawn, got {classes}; "
            "say classes_per_client instead"
        )
    return Situation(clients, participation, skew(scheme, min(clients, _MOST_CLIENTS), classes), scheme)


def _classes_per_client(scheme: str) -> float | None:
    """Of a partition that says so, which need not be drawn."""
    name, argument, *_ = parse(scheme)
    if name == "dirichlet-client" and argument == "0":
        return 1
    return int(argument) if name == "classes" and argument.isdecimal() else None


@cache
def skew(scheme: str, clients: int, classes: int = CLASSES) -> float:
    """How much clients differ: the mean earth mover's distance, by a partition of equally frequent classes."""
    labels = np.arange(clients * classes * _SAMPLES) % classes
    owner = owners(scheme, labels, clients)
    kept = owner >= 0
    table = np.zeros((clients, classes))
    np.add.at(table, (owner[kept], labels[kept]), 1)
    table = table[table.sum(1) > 0]
    shares = table / table.sum(1, keepdims=True)
    return float(np.abs(shares - 1 / classes).sum(1).mean() / 2)


def nearest(given: Situation, stored: Collection[str]) -> tuple[list[Nearest], list[Nearest]]:
    """Kinds of settings of which some are stored: those to answer from, and the others, the nearest first.

    Participation counts first, by its logarithm, then skew. It is answered from the nearest, or from two that the given
    one lies between, if the second is at most twice as far.
    """
    found = []
    for part, clients in CLIENTS.items():
        for name, scheme in PARTITIONS.items():
            tasks = tuple(task for task in stored if (TASKS[task].partition, TASKS[task].clients) == (scheme, clients))
            if tasks:
                found.append(Nearest(name, part, tasks, skew(scheme, clients)))

    def distance(each: Nearest) -> tuple[float, float]:
        ratio = math.log(given.participation * CLIENTS[each.part] / COHORT)
        return abs(ratio), abs(given.skew - each.skew)

    first, *others = sorted(found, key=distance)
    gap = given.skew - first.skew
    for each in others:
        beyond = (given.skew - each.skew) / gap if gap else 0.0  # negative on the other side
        if each.part == first.part and -2 <= beyond < 0:
            return [first, each], [other for other in others if other is not each]
    return [first], others
