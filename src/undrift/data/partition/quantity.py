"""Quantity skew: clients of unequal size."""

from __future__ import annotations

import numpy as np

from undrift.core import check
from undrift.data.partition.divide import by_shares, dirichlet_shares, with_minimum
from undrift.data.partition.request import Ints, Request


def quantity(request: Request) -> Ints:
    """Sizes in proportions drawn from Dirichlet(α), labels alike everywhere."""
    alpha, rng = request.number(), request.rng
    check.number("alpha of partition 'quantity'", alpha, 0, open_low=True, single=False)
    parts = by_shares(request.samples, dirichlet_shares(np.full(request.clients, alpha), 1, rng)[0])
    owner = np.empty(request.samples, dtype=np.int64)
    owner[rng.permutation(request.samples)] = parts
    return with_minimum(owner, request)
