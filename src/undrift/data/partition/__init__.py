"""Ways to split samples among clients. Every sample has at most one client; the result depends on the seed only.

A scheme is written ``name``, ``name:number`` or ``name:number,min=10``, one of them also ``dirichlet:0.2,balanced``. It
gives every sample an owner; nothing here loops over samples. A new scheme is a function of a `Request` in a file of its
own and a line in `SCHEMES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from undrift.core import check
from undrift.core.check import nearest
from undrift.data.arrays import column
from undrift.data.partition.classes import classes
from undrift.data.partition.dirichlet import dirichlet
from undrift.data.partition.dirichlet_client import dirichlet_client
from undrift.data.partition.iid import iid
from undrift.data.partition.natural import eligible_users, natural
from undrift.data.partition.quantity import quantity
from undrift.data.partition.request import UNASSIGNED, Ints, Request
from undrift.data.partition.shards import shards

Scheme = Callable[[Request], Ints]  # the owner of every sample [n]
SCHEMES: dict[str, Scheme] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet-client": dirichlet_client,
    "classes": classes,
    "shards": shards,
    "quantity": quantity,
    "natural": natural,
}
_LONGEST = 80  # characters of a scheme

__all__ = ["SCHEMES", "UNASSIGNED", "by_owner", "owners", "parse", "partition"]


class Parsed(NamedTuple):
    name: str
    argument: str
    minimum: int  # samples that every client must have
    balanced: bool


def partition(scheme: str, labels: Any, clients: int | None = None, seed: int = 0, users: Any = None) -> list[Ints]:
    """Rows of each client by a scheme: ``iid``, ``dirichlet:0.1,min=10``, ``dirichlet-client:0``, ``classes:2``, ...

    Only ``natural`` needs `users`, the user of every sample, and only there may `clients` be left out: all users.
    """
    rows, sizes = by_owner(owners(scheme, labels, clients, seed, users=users))
    return np.split(rows, np.cumsum(sizes)[:-1])


def owners(scheme: str, labels: Any, clients: int | None = None, seed: int = 0, *, users: Any = None) -> Ints:
    """The client of every sample [n], or `UNASSIGNED`."""
    name, argument, minimum, balanced = parse(scheme)
    check.integer("seed", seed, 0, 2**63 - 1)
    y, numbers = column("labels", labels), np.zeros(0, dtype=np.int64)
    if name == "natural":
        if users is None:
            raise ValueError("partition 'natural' needs the user of every sample, and these data have no users")
        numbers = eligible_users(column("users", users), minimum)
        if len(numbers) != len(y):
            raise ValueError(f"users must have an entry for each of the {len(y)} samples, got {len(numbers)}")
        clients = int(numbers.max()) + 1 if clients is None else clients
    check.integer("clients", clients, 1)
    assert clients is not None
    if clients > len(y):
        raise ValueError(f"clients must not be more than the {len(y)} samples, got {clients}")
    if clients * minimum > len(y):
        raise ValueError(f"min={minimum} for {clients} clients needs {clients * minimum} samples, there are {len(y)}")
    request = Request(
        name=name,
        argument=argument,
        labels=y,
        users=numbers,
        clients=clients,
        minimum=minimum,
        balanced=balanced,
        rng=np.random.default_rng([seed, 6]),
    )
    owner = SCHEMES[name](request)
    smallest = int(np.bincount(owner[owner != UNASSIGNED], minlength=clients).min())
    if smallest < minimum:
        raise ValueError(
            f"min={minimum} cannot be satisfied: partition {scheme!r} gives some client {smallest} samples only"
        )
    return owner


def parse(scheme: str) -> Parsed:
    """A scheme's name, number, minimum, and whether sizes are balanced."""
    if not isinstance(scheme, str):
        raise TypeError(f"partition must be a word such as 'dirichlet:0.1', got {scheme!r}")
    if not scheme.isprintable() or len(scheme) > _LONGEST:
        raise ValueError(f"partition must be a word such as 'dirichlet:0.1', got {scheme[:_LONGEST]!r}")
    head, *options = scheme.split(",")
    name, _, argument = head.partition(":")
    if name not in SCHEMES:
        raise ValueError(f"unknown partition {scheme!r}{nearest(name, SCHEMES)}")
    minimum, balanced = 1, False
    for option in options:
        key, _, value = option.partition("=")
        if name == "dirichlet" and option.strip() == "balanced":
            balanced = True
        elif key.strip() == "min" and value.strip().isdecimal():
            minimum = max(1, int(value))
        else:
            also, example = ("'balanced' and ", "balanced,") if name == "dirichlet" else ("", "")
            raise ValueError(
                f"partition {scheme!r}: only {also}a minimum may follow the comma, as in '{head},{example}min=10'"
            )
    return Parsed(name, argument, minimum, balanced)


def by_owner(owner: Ints) -> tuple[Ints, Ints]:
    """All assigned rows sorted by owner, those of one owner in increasing order, and how many each has."""
    rows = np.argsort(owner, kind="stable")
    rows = rows[np.searchsorted(owner[rows], 0) :]  # without the unassigned
    return rows, np.bincount(owner[rows])
