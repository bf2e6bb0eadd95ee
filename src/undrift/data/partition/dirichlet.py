"""Label skew: each class is divided unequally."""

from __future__ import annotations

import numpy as np

from undrift.core import check
from undrift.data.partition.divide import Reals, by_shares, dirichlet_shares, rows_by_class, with_minimum
from undrift.data.partition.request import Array, Ints, Request

_DRAWS = 100  # of a balanced partition, before the largest clients give to the smallest


def dirichlet(request: Request) -> Ints:
    """Each class is divided among the clients in proportions drawn from Dirichlet(α) (Yurochkin et al., 2019).

    With ``balanced``, as in their public code, a client that has its equal part of all samples already gets none of
    the classes that follow, and all is drawn again while some client has fewer than the minimum.
    """
    classes, alpha, rng = request.classes(), request.number(), request.rng
    check.number("alpha of partition 'dirichlet'", alpha, 0, open_low=True, single=False)
    owner, by_class = np.empty(len(classes), dtype=np.int64), rows_by_class(classes, rng)
    for _ in range(_DRAWS if request.balanced else 1):
        sizes = np.zeros(request.clients, dtype=np.int64)
        for rows in by_class:
            shares = dirichlet_shares(np.full(request.clients, alpha), 1, rng)[0]
            if request.balanced:
                shares = _among(sizes < len(classes) / request.clients, shares)
            owner[rows] = by_shares(len(rows), shares)
            sizes += np.bincount(owner[rows], minlength=request.clients)
        if sizes.min() >= request.minimum:
            break
    return with_minimum(owner, request)


def _among(some: Array, shares: Reals) -> Reals:
    """Shares of some clients only, equal ones if those drawn are all 0."""
    kept = np.where(some, shares, 0)
    kept = kept if kept.any() else some.astype(np.float64)
    return np.asarray(kept / kept.sum())
