"""Independent and identically distributed clients."""

from __future__ import annotations

import numpy as np

from undrift.data.partition.divide import equal_parts
from undrift.data.partition.request import Ints, Request


def iid(request: Request) -> Ints:
    """Equal parts of the shuffled samples."""
    request.refuse_argument()
    return equal_parts(request.rng.permutation(request.samples), np.arange(request.clients))
