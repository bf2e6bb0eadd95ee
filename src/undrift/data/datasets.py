"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from undrift.check import nearest
from undrift.data.federated import FederatedData
from undrift.data.partition import partition


def load(name: str, partition: str | None = None, clients: int | None = None, seed: int = 0) -> FederatedData:
    """A named data set split among clients; without a partition, the split of the built-in example."""
    if name not in _LOADERS:
        raise ValueError(f"unknown data set {name!r}{nearest(name, _LOADERS)}")
    data = _LOADERS[name](partition, clients, seed)
    data.recipe = {"name": name, "partition": partition, "clients": clients, "seed": seed}
    return data


def available() -> dict[str, str]:
    """Names and one line about each."""
    return {name: (loader.__doc__ or "").strip() for name, loader in _LOADERS.items()}


def _digits(scheme: str | None, clients: int | None, seed: int) -> FederatedData:
    """Handwritten digits that ship with scikit-learn: 1797 images of 8×8, ten classes."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = (bunch.images[:, None] / 16).astype(np.float32)
    y = bunch.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(y))  # one test set for all seeds and partitions
    test, train = order[:360], order[360:]
    rows = partition(scheme or "classes:2", y[train], clients or 40, seed)
    return FederatedData(x[train], y[train], rows, (x[test], y[test]), classes=10, name="digits")


_LOADERS: dict[str, Callable[[str | None, int | None, int], FederatedData]] = {"digits": _digits}
