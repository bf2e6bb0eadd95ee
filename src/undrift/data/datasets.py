"""Data sets by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from undrift.core.check import nearest
from undrift.data import cache
from undrift.data.catalogue import CATALOGUE, Description, Images
from undrift.data.federated import FederatedData, LocalTests
from undrift.data.partition import NOBODY, by_owner, owners, parse

_CLIENTS = 100  # where no number is asked for
_DIGITS = "Handwritten digits that ship with scikit-learn: 1797 images of 8×8, ten classes."


def load(
    name: str,
    partition: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    *,
    test_share: float = 0.0,
    normalise: bool = True,
) -> FederatedData:
    """A named data set split among clients; without a partition, the usual one of the data set.

    With a `test_share`, every client holds out that part of its samples as a test set of its own. Images are
    normalised by the mean and the deviation of the training set, unless `normalise` is False.
    """
    scheme = partition or default_partition(name)
    if name == "digits":
        data = _digits(scheme, 40 if clients is None else clients, seed)
    else:
        data = _cached(name, CATALOGUE[name], scheme, clients, seed, normalise)
    if test_share:
        data = data.hold_out(test_share, seed)
    data.recipe = {
        "name": name,
        "partition": partition,
        "clients": clients,
        "seed": seed,
        "test_share": test_share,
        "normalise": normalise,
    }
    return data


def get(name: str, source: str | Path | None = None) -> dict[str, Any]:
    """Fetch a data set from the hub, or import it from the directory `source`; returns its manifest.

    What is in the cache and whole is not fetched again; files are imported again and replace it.
    """
    if name == "digits":
        raise ValueError("the data set 'digits' is built in; there is nothing to get")
    if name not in CATALOGUE:
        raise ValueError(f"unknown data set {name!r}{nearest(name, CATALOGUE)}")
    if source is not None or not cache.intact(name):
        from undrift.data.fetch import fetch  # decoders, which later runs do not need

        fetch(name, CATALOGUE[name], None if source is None else Path(source))
    return cache.manifest(name) or {}


def default_partition(name: str) -> str:
    """How a data set is split where nothing is said."""
    if name not in available():
        raise ValueError(f"unknown data set {name!r}{nearest(name, available())}")
    return "classes:2" if name == "digits" else CATALOGUE[name].partition


def available() -> dict[str, str]:
    """Names and one line about each."""
    return {"digits": _DIGITS} | {name: description.about for name, description in CATALOGUE.items()}


def _digits(scheme: str, clients: int, seed: int) -> FederatedData:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = (bunch.images[:, None] / 16).astype(np.float32)
    y = bunch.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(y))  # one test set for all seeds and partitions
    test, train = order[:360], order[360:]
    rows, sizes = by_owner(owners(scheme, y[train], clients, seed))
    return FederatedData.from_rows(x[train], y[train], rows, sizes, (x[test], y[test]), classes=10, name="digits")


def _cached(
    name: str, description: Description, scheme: str, clients: int | None, seed: int, normalise: bool
) -> FederatedData:
    if cache.manifest(name) is None:
        fetch = f"undrift data get {name}"
        way = f"{fetch} --from DIR" if description.hub is None else f"{fetch}, or from files: {fetch} --from DIR"
        raise ValueError(f"the data set {name!r} is not here yet; get it with: {way}")
    arrays = cache.arrays(name)
    natural = parse(scheme).name == "natural"
    users = arrays.get("train_user")
    owner = owners(scheme, arrays["train_y"], _CLIENTS if clients is None and not natural else clients, seed, users)
    rows, sizes = by_owner(owner)
    content = description.content
    data = FederatedData.from_rows(
        arrays["train_x"],
        arrays["train_y"],
        rows,
        sizes,
        (arrays["test_x"], arrays["test_y"]),
        classes=description.classes,
        name=name,
        normalise=(content.mean, content.std) if isinstance(content, Images) and normalise else None,
    )
    if natural and users is not None and "test_user" in arrays:
        _keep_own_tests(data, users, owner, arrays["test_user"])
    return data


def _keep_own_tests(data: FederatedData, users: Any, owner: Any, test_users: Any) -> None:
    """Of a test set by users, keep the samples of those that are clients; they are also their local tests."""
    assert data.test is not None
    number = np.full(int(max(users.max(), test_users.max())) + 1, NOBODY)
    number[users] = owner
    whose = number[test_users]
    x, y = data.test
    rows, _ = by_owner(whose)
    if not len(rows):
        return  # nobody's tests: the server keeps all
    counts = np.bincount(whose[rows], minlength=len(data))
    if len(rows) < len(x):
        kept = np.sort(rows)
        x, y = x[kept], y[kept]
        rows = np.searchsorted(kept, rows)
        data.test = x, y
    data.local_tests = LocalTests(x, y, rows, np.concatenate([[0], np.cumsum(counts)]))
