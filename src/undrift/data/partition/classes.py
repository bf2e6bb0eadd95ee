"""Label skew: a fixed number of classes per client."""

from __future__ import annotations

import numpy as np

from undrift.data.partition.divide import equal_parts, rows_by_class
from undrift.data.partition.request import Ints, Request


def classes(request: Request) -> Ints:
    """Every client has exactly k classes, drawn at random; a class is shared equally by the clients that have it."""
    labels, k, clients = request.classes(), request.whole_number(), request.clients
    count = int(labels.max()) + 1
    if k > count:
        raise ValueError(f"k of partition 'classes' must not exceed the {count} classes, got {k}")
    if clients * k < count:
        raise ValueError(f"{clients} clients of {k} classes cannot hold all {count} classes")
    assigned = _assign(clients, k, count, request.rng)  # [N, k]
    owner = np.empty(len(labels), dtype=np.int64)
    for label, rows in enumerate(rows_by_class(labels, request.rng)):
        holders = np.flatnonzero((assigned == label).any(1))
        if len(rows) < len(holders):
            raise ValueError(f"class {label} has {len(rows)} samples, too few for the {len(holders)} clients with it")
        owner[rows] = equal_parts(np.arange(len(rows)), holders)
    return owner


def _assign(clients: int, k: int, count: int, rng: np.random.Generator) -> Ints:
    """k different classes for every client [N, k], every class for about equally many clients.

    Clients are filled one after another from shuffled decks of all classes; where a client's classes come from two
    decks, the second deck begins with classes that it does not have.
    """
    assigned = np.empty(clients * k, dtype=np.int64)
    for start in range(0, len(assigned), count):
        deck = rng.permutation(count)
        fresh = ~np.isin(deck, assigned[start - start % k : start])
        spanning = np.zeros(count, dtype=bool)
        spanning[np.flatnonzero(fresh)[: -start % k]] = True
        deck = np.concatenate([deck[spanning], deck[~spanning]])
        assigned[start : start + count] = deck[: len(assigned) - start]
    return assigned.reshape(clients, k)
