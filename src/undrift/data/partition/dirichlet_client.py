"""Label skew: equal clients with their own mixtures of classes."""

from __future__ import annotations

import numpy as np

from undrift.core import check
from undrift.data.partition.divide import dirichlet_shares, equal_parts, rows_by_class
from undrift.data.partition.request import Ints, Request


def dirichlet_client(request: Request) -> Ints:
    """Clients of equal size draw classes in proportions Dirichlet(α p); α = 0: one class each (Hsu et al., 2019, 2020).

    p are the shares of the classes in all samples. Drawing is without replacement: when a class is used up, the others
    share its part, so that the last clients get what is left.
    """
    classes, alpha = request.classes(), request.number()
    check.number("alpha of partition 'dirichlet-client'", alpha, 0, single=False)
    clients, rng, left = request.clients, request.rng, np.bincount(classes)
    if alpha == 0:
        return _one_class_each(classes, clients, rng)
    sizes = np.diff(np.arange(clients + 1) * len(classes) // clients)
    shares = dirichlet_shares(alpha * left / len(classes), clients, rng)  # [N, C]
    taken = np.zeros((clients, len(left)), dtype=np.int64)
    for client, size in enumerate(sizes):
        while size:  # every turn fills the client or uses up a class
            weights = np.where(left > 0, shares[client], 0)
            weights = weights if weights.any() else left.astype(np.float64)
            drawn = np.minimum(rng.multinomial(size, weights / weights.sum()), left)
            taken[client] += drawn
            left -= drawn
            size -= drawn.sum()
    owner = np.empty(len(classes), dtype=np.int64)
    for rows, counts in zip(rows_by_class(classes, rng), taken.T, strict=True):
        owner[rows] = np.repeat(np.arange(clients), counts)
    return owner


def _one_class_each(classes: Ints, clients: int, rng: np.random.Generator) -> Ints:
    """Clients for every class in proportion to its size, at least one; they share the class equally."""
    counts = np.bincount(classes)
    if clients < len(counts):
        raise ValueError(f"one class per client needs at least as many clients as the {len(counts)} classes")
    ideal = counts / len(classes) * clients
    seats = np.maximum(1, np.floor(ideal)).astype(np.int64)
    while (missing := clients - int(seats.sum())) != 0:
        step = 1 if missing > 0 else -1
        gap = np.where((step > 0) | (seats > 1), step * (ideal - seats), -np.inf)
        seats[np.argmax(gap)] += step
    holders_by_class = np.split(rng.permutation(clients), np.cumsum(seats)[:-1])
    owner = np.empty(len(classes), dtype=np.int64)
    for rows, holders in zip(rows_by_class(classes, rng), holders_by_class, strict=True):
        owner[rows] = equal_parts(np.arange(len(rows)), holders)
    return owner
