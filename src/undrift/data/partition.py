"""Ways to split labelled samples among clients. All are true partitions, always end, and depend on the seed only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from undrift import check
from undrift.check import nearest

Rows = np.ndarray[Any, np.dtype[np.int64]]


def partition(scheme: str, labels: Any, clients: int, seed: int = 0) -> list[Rows]:
    """Rows of each client by a scheme: ``iid``, ``dirichlet:0.1``, ``classes:2``."""
    name, _, argument = scheme.partition(":")
    if name not in SCHEMES:
        raise ValueError(f"unknown partition {scheme!r}{nearest(name, SCHEMES)}")
    check.integer("clients", clients, 1)
    y = np.asarray(labels)
    if clients > len(y):
        raise ValueError(f"clients must not be more than the {len(y)} samples, got {clients}")
    return [np.sort(rows) for rows in SCHEMES[name](y, clients, argument, np.random.default_rng([seed, 6]))]


def iid(y: Rows, clients: int, argument: str, rng: np.random.Generator) -> list[Rows]:
    """Equal parts of a shuffled whole."""
    if argument:
        raise ValueError(f"partition 'iid' takes no argument, got {argument!r}")
    return np.array_split(rng.permutation(len(y)), clients)


def dirichlet(y: Rows, clients: int, argument: str, rng: np.random.Generator) -> list[Rows]:
    """Each class is divided among the clients in proportions drawn from Dirichlet(α)."""
    alpha = _argument("dirichlet", argument)
    check.number("alpha of partition 'dirichlet'", alpha, 0, open_low=True)
    owner = np.empty(len(y), dtype=np.int64)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        cuts = np.round(np.cumsum(rng.dirichlet(np.full(clients, alpha))) * len(rows)).astype(np.int64)
        owner[rows] = np.searchsorted(cuts[:-1], np.arange(len(rows)), side="right")
    return _filled(owner, clients, rng)


def classes(y: Rows, clients: int, argument: str, rng: np.random.Generator) -> list[Rows]:
    """Every client sees at most k classes; the samples of a class are shared equally by the clients that see it."""
    k = int(_argument("classes", argument))
    labels = np.unique(y)
    check.integer("k of partition 'classes'", k, 1)
    if k > len(labels):
        raise ValueError(f"k of partition 'classes' must not exceed the {len(labels)} classes, got {k}")
    if clients * k < len(labels):
        raise ValueError(f"{clients} clients of {k} classes cannot hold all {len(labels)} classes")
    # Go round the classes, so that every class is seen by about equally many clients and no client sees one twice.
    seats = np.array([labels[(i * k + j) % len(labels)] for i in range(clients) for j in range(k)])
    holders = np.repeat(rng.permutation(clients), k)
    owner = np.empty(len(y), dtype=np.int64)
    for label in labels:
        rows = rng.permutation(np.flatnonzero(y == label))
        who = holders[seats == label]
        if len(rows) < len(who):
            raise ValueError(f"class {label} has {len(rows)} samples, too few for the {len(who)} clients that see it")
        for client, part in zip(who, np.array_split(rows, len(who)), strict=True):
            owner[part] = client
    return _filled(owner, clients, rng)


SCHEMES: dict[str, Callable[[Rows, int, str, np.random.Generator], list[Rows]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "classes": classes,
}


def _argument(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"partition '{name}' needs a number, as in '{name}:1', got '{name}:{text}'") from None


def _filled(owner: Rows, clients: int, rng: np.random.Generator) -> list[Rows]:
    """Rows by owner; a client left empty gets one sample of a client that has the most."""
    parts = [np.flatnonzero(owner == client) for client in range(clients)]
    for client in range(clients):
        if not len(parts[client]):
            richest = int(np.argmax([len(part) for part in parts]))
            chosen = int(rng.integers(len(parts[richest])))
            parts[client] = parts[richest][[chosen]]
            parts[richest] = np.delete(parts[richest], chosen)
    return parts
