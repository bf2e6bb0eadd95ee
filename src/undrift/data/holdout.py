"""Test samples held out of every client's own."""

from __future__ import annotations

from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]


def stratified(owner: Ints, labels: Any, share: float, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which samples [n] are a client's own test set: about a `share` of every class it has, at least one sample.

    A client with a single sample has no test set; every client keeps training samples.
    """
    rng = np.random.default_rng([seed, 7])
    y = np.asarray(labels)
    code = np.unique(y, return_inverse=True)[1] if y.ndim == 1 else np.zeros(len(y), dtype=np.int64)
    order = np.lexsort((rng.random(len(y)), code, owner))  # by client, then class, then at random
    sizes = np.bincount(owner)
    size = sizes[owner[order]]
    rank = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # of a sample among its client's
    wanted = np.clip(np.round(share * sizes), np.minimum(1, sizes - 1), np.maximum(sizes - 1, 0))
    rate, start = np.repeat(wanted, sizes) / size, np.repeat(rng.random(len(sizes)), sizes)
    held = np.empty(len(y), dtype=bool)
    # Every 1/rate-th sample: as many as wanted, and each class in proportion to within one sample.
    held[order] = np.floor((rank + 1) * rate + start) > np.floor(rank * rate + start)
    return held
