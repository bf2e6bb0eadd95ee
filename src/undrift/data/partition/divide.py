"""Ways to divide samples that several partition schemes share."""

from __future__ import annotations

from typing import Any

import numpy as np

from undrift.data.partition.request import Ints, Request

Reals = np.ndarray[Any, np.dtype[np.float64]]
_SMALLEST = 1e-300  # α below which a logarithm would overflow


def rows_by_class(classes: Ints, rng: np.random.Generator) -> list[Ints]:
    """Rows of every class, shuffled."""
    order = rng.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(classes))[:-1])


def equal_parts(rows: Ints, holders: Ints) -> Ints:
    """The owner of every row when consecutive equal parts of `rows` go to the `holders`."""
    owner = np.empty(len(rows), dtype=np.int64)
    owner[rows] = holders[np.arange(len(rows)) * len(holders) // len(rows)]
    return owner


def by_shares(count: int, shares: Reals) -> Ints:
    """The owner of each of `count` samples when they are divided in proportion to `shares`."""
    cuts = np.round(np.cumsum(shares)[:-1] * count)
    return np.searchsorted(cuts, np.arange(count), side="right")


def dirichlet_shares(alpha: Reals, count: int, rng: np.random.Generator) -> Reals:
    """`count` draws from Dirichlet(α) [count, K], exact for the smallest α, where ordinary draws are 0/0."""
    # If G is Gamma(α+1) and U uniform, then G U^(1/α) is Gamma(α); in logarithms nothing underflows.
    exponent = np.log1p(-rng.random((count, len(alpha)))) / np.maximum(alpha, _SMALLEST)
    logs = np.log(rng.standard_gamma(alpha + 1, (count, len(alpha)))) + exponent
    shares = np.exp(logs - logs.max(1, keepdims=True))
    return np.asarray(shares / shares.sum(1, keepdims=True))


def with_minimum(owner: Ints, request: Request) -> Ints:
    """The largest clients give samples, chosen at random, to those that have fewer than the minimum."""
    clients, minimum, rng = request.clients, request.minimum, request.rng
    sizes = np.bincount(owner, minlength=clients)
    need = np.maximum(minimum - sizes, 0)
    if not need.any():
        return owner
    low, high = minimum, int(sizes.max())  # clients give away what they have above a common level
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(sizes - level, 0).sum() >= need.sum() else (low, level - 1)
    give = np.maximum(sizes - low, 0)
    givers = np.flatnonzero(give)
    give[givers[: int(give.sum() - need.sum())]] -= 1
    order = rng.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # of a sample among its owner's
    given = order[rank < give[owner[order]]]
    after = owner.copy()
    after[rng.permutation(given)] = np.repeat(np.arange(clients), need)
    return after
