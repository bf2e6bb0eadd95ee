"""Label skew: shards of samples sorted by label."""

from __future__ import annotations

import numpy as np

from undrift.data.partition.divide import equal_parts, rows_by_class
from undrift.data.partition.request import Ints, Request


def shards(request: Request) -> Ints:
    """Samples sorted by label are cut into equal shards; every client gets k (2) of them (McMahan et al., 2017)."""
    labels, k, clients, rng = request.classes(), request.whole_number(default="2"), request.clients, request.rng
    if clients * k > len(labels):
        raise ValueError(f"{clients} clients of {k} shards need {clients * k} samples, there are {len(labels)}")
    holders = rng.permutation(np.repeat(np.arange(clients), k))
    return equal_parts(np.concatenate(rows_by_class(labels, rng)), holders)
