"""Label skew: each class is divided unequally."""

from __future__ import annotations

import numpy as np

from undrift.core import check
from undrift.data.partition.divide import by_shares, dirichlet_shares, rows_by_class, with_minimum
from undrift.data.partition.request import Ints, Request


def dirichlet(request: Request) -> Ints:
    """Each class is divided among the clients in proportions drawn from Dirichlet(α) (Yurochkin et al., 2019)."""
    classes, alpha, rng = request.classes(), request.number(), request.rng
    check.number("alpha of partition 'dirichlet'", alpha, 0, open_low=True, single=False)
    owner = np.empty(len(classes), dtype=np.int64)
    for rows in rows_by_class(classes, rng):
        owner[rows] = by_shares(len(rows), dirichlet_shares(np.full(request.clients, alpha), 1, rng)[0])
    return with_minimum(owner, request)
