"""Users as clients."""

from __future__ import annotations

import numpy as np

from undrift.data.partition.request import UNASSIGNED, Array, Ints, Request


def natural(request: Request) -> Ints:
    """Users as they are (roles, writers, photographers); with fewer clients, some of them, and the rest left out."""
    request.refuse_argument()
    users, clients, count = request.users, request.clients, int(request.users.max()) + 1
    if clients > count:
        raise ValueError(f"clients must not be more than the {count} users, got {clients}")
    number = np.full(count + 1, UNASSIGNED)  # the last entry is for samples that are unassigned already
    number[np.sort(request.rng.choice(count, clients, replace=False))] = np.arange(clients)
    return number[users]


def eligible_users(users: Array, minimum: int) -> Ints:
    """The number of every sample's user [n]; `UNASSIGNED` where the user has fewer than `minimum` samples."""
    _, user, sizes = np.unique(users, return_inverse=True, return_counts=True)
    eligible = sizes >= minimum
    if not eligible.any():
        raise ValueError(f"no user has min={minimum} samples; the largest has {sizes.max()}")
    return np.where(eligible, np.cumsum(eligible) - 1, UNASSIGNED)[user]
