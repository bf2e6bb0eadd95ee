"""Data sets by name."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undrift.core.check import shown, unknown
from undrift.data import cache
from undrift.data import features as feature_kinds
from undrift.data.catalogue import CATALOGUE, BuiltIn, Description, Images
from undrift.data.federated import FederatedData, LocalTests
from undrift.data.partition import UNASSIGNED, by_owner, owners, parse

Array = np.ndarray[Any, Any]
_OWN: dict[str, Callable[[int], Any]] = {}  # of users, as `add` was given them
_SHORT_NAMES = {"fmnist": "fashion-mnist"}


def load(
    name: str,
    partition: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    *,
    test_share: float = 0.0,
    validation_share: float = 0.0,
    normalise: bool = True,
    features: str | None = None,
) -> FederatedData:
    """A named data set split among clients, by default with the partition and the number of clients of its entry.

    With a `test_share`, every client holds out that part of its samples as a test set of its own. With a
    `validation_share`, such a part takes the place of all test sets: for choosing settings. Images are
    normalised by the mean and the deviation of the training set, unless `normalise` is False. With `features`
    ("hog") samples are features of the images, computed once and kept in the cache, and not normalised.
    """
    if name in _OWN:
        settings: dict[str, Any] = {"partition": partition, "clients": clients, "features": features}
        settings["normalise"] = None if normalise else normalise
        return _load_own(name, seed, test_share, validation_share, settings)
    name = full_name(name)
    description = CATALOGUE[name]
    arrays = _arrays(name, description)
    image = tuple(arrays["train_x"].shape[1:])
    if features is not None:
        feature_kinds.check(features, image)
        arrays = feature_kinds.of_arrays(features, arrays, None if isinstance(description.content, BuiltIn) else name)
    if partition is None and description.users is not None:
        partition, clients = description.partition, clients or description.users
    scheme = partition or description.partition
    natural = parse(scheme).name == "natural"
    users = arrays.get("train_user")
    count = description.clients if clients is None and not natural else clients
    owner = owners(scheme, arrays["train_y"], count, seed, users=users)
    rows, sizes = by_owner(owner)
    content = description.content
    data = FederatedData.from_rows(
        arrays["train_x"],
        arrays["train_y"],
        rows,
        sizes,
        test=(arrays["test_x"], arrays["test_y"]),
        classes=description.classes,
        name=name,
        normalise=(content.mean, content.std)
        if isinstance(content, Images) and normalise and features is None
        else None,
    )
    if features is not None:
        data.features, data.image = features, image
    data.class_names = description.names
    if natural and users is not None and "test_user" in arrays:
        _keep_tests_of_clients(data, users, owner, arrays["test_user"])
    if test_share:
        data = data.hold_out(test_share, seed)
    if validation_share:
        data = data.validation(validation_share, seed)
    data.recipe = {
        "name": name,
        "partition": partition,
        "clients": clients,
        "seed": seed,
        "test_share": test_share,
        "normalise": normalise,
    }
    # Later arguments, so that recipes without them stay as they were.
    data.recipe |= {"validation_share": validation_share} if validation_share else {}
    data.recipe |= {} if features is None else {"features": features}
    return data


def add(name: str, loader: Callable[[int], Any]) -> None:
    """Make a user's own data known by a name, in this process: a function of the seed that gives a `FederatedData`, or
    what `FederatedData.from_clients` takes."""
    _OWN[name] = loader


def _load_own(
    name: str, seed: int, test_share: float, validation_share: float, others: Mapping[str, Any]
) -> FederatedData:
    for option, value in others.items():
        if value is not None:
            raise ValueError(f"{option}={shown(value)} is for named data sets; {name} says itself who has what")
    loaded = _OWN[name](seed)
    if not isinstance(loaded, FederatedData | Sequence | Mapping) or isinstance(loaded, str):
        raise TypeError(
            f"{name} must give a FederatedData, or a list or dict with a pair (x, y) or a torch Dataset for every "
            f"client, got {shown(loaded)}"
        )
    data = loaded if isinstance(loaded, FederatedData) else FederatedData.from_clients(loaded)
    data = data.hold_out(test_share, seed) if test_share else copy.copy(data)
    data = data.validation(validation_share, seed) if validation_share else data
    validated = {"validation_share": validation_share} if validation_share else {}
    data.recipe = {"name": name, "seed": seed, "test_share": test_share, **validated, "digest": data.fingerprint()}
    return data


def get(name: str, source: str | Path | None = None) -> dict[str, Any]:
    """Fetch a data set from the hub, or import it from the directory `source`; returns its manifest.

    A data set that is in the cache and undamaged is not fetched again; files are imported again and replace it.
    """
    name = full_name(name)
    description = CATALOGUE[name]
    if isinstance(description.content, BuiltIn):
        raise ValueError(f"the data set {name!r} is built in; there is nothing to get")
    if source is not None or not cache.intact(name):
        from undrift.data.fetch import fetch  # imports decoders, which later runs do not need

        fetch(name, description, None if source is None else Path(source))
    return cache.manifest(name) or {}


def available() -> dict[str, str]:
    """Names and one line about each."""
    return {name: description.about for name, description in CATALOGUE.items()}


def is_local(name: str) -> bool:
    """Whether a data set can be loaded without fetching it."""
    name = full_name(name)
    return isinstance(CATALOGUE[name].content, BuiltIn) or cache.present(name)


def default_partition(name: str) -> str:
    """How a data set is split where no partition is given."""
    return _find(name).partition


def default_settings(name: str) -> dict[str, Any]:
    """Settings of a data set where none are given: arguments of `simulate`, the model's name among them."""
    return dict(_find(name).defaults)


def full_name(name: str) -> str:
    """The name of the data set that is meant: case and punctuation make no difference, and some have short names."""
    if name in _OWN:
        return name
    known = {_letters(each): each for each in CATALOGUE} | _SHORT_NAMES
    if not isinstance(name, str) or _letters(name) not in known:
        raise unknown("data set", name, CATALOGUE, "-d")
    return known[_letters(name)]


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _find(name: str) -> Description:
    if name in _OWN:
        raise ValueError(f"{name} is no named data set: it says itself who has what")
    return CATALOGUE[full_name(name)]


def _arrays(name: str, description: Description) -> dict[str, Array]:
    if isinstance(description.content, BuiltIn):
        return description.content.read()
    if cache.manifest(name) is None:
        fetch = f"undrift data get {name}"
        command = f"{fetch} --from DIR" if description.hub is None else f"{fetch}, or from files: {fetch} --from DIR"
        raise ValueError(f"the data set {name!r} is not here yet; get it with: {command}")
    return cache.arrays(name)


def _keep_tests_of_clients(data: FederatedData, users: Array, owner: Array, test_users: Array) -> None:
    """Of a test set with users, keep the samples of those that are clients; they are also their local tests."""
    assert data.test is not None
    number = np.full(int(max(users.max(), test_users.max())) + 1, UNASSIGNED)
    number[users] = owner
    test_owner = number[test_users]
    x, y = data.test
    rows, _ = by_owner(test_owner)
    if not len(rows):
        return  # no client has tests: the server keeps all
    counts = np.bincount(test_owner[rows], minlength=len(data))
    if len(rows) < len(x):
        kept = np.sort(rows)
        x, y = x[kept], y[kept]
        rows = np.searchsorted(kept, rows)
        data.test = x, y
    data.local_tests = LocalTests(x, y, rows, np.concatenate([[0], np.cumsum(counts)]))
