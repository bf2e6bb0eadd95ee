"""Features computed from images once, before training, instead of in every pass: ``load(..., features="hog")``.

A named data set's are kept in the cache beside it, as a data set of their own; a new kind of features is a function
and its line in `FEATURES`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core import hog
from undrift.core.check import unknown
from undrift.data import cache
from undrift.data.federated import FederatedData

Array = np.ndarray[Any, Any]

_TOGETHER = 1024  # images


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {"hog": hog.features}


def check(name: str, shape: tuple[int, ...]) -> None:
    """Refuse features that there are not, or samples that have none."""
    if name not in FEATURES:
        raise unknown("features", name, FEATURES, "data.features=")
    hog.check("'hog' features", shape)


def compute(name: str, x: Tensor) -> Tensor:
    """The features of images [n, ...], of which bytes become numbers between 0 and 1."""
    check(name, tuple(x.shape[1:]))
    scale = 255 if x.dtype == torch.uint8 else 1
    dtype = x.dtype if x.is_floating_point() else torch.float32
    return torch.cat([FEATURES[name](part.to(dtype) / scale) for part in x.split(_TOGETHER)])


def of_arrays(name: str, arrays: dict[str, Array], stored_as: str | None) -> dict[str, Array]:
    """The arrays of a data set with features instead of images; those of the data set `stored_as` from the cache."""
    if stored_as is None:
        return arrays | {part: compute(name, torch.from_numpy(arrays[part])).numpy() for part in ("train_x", "test_x")}
    place, origin = f"{stored_as}-{name}", cache.manifest(stored_as)
    assert origin is not None
    sums = {part: facts["sha256"] for part, facts in origin["arrays"].items()}
    if not cache.intact(place) or (cache.manifest(place) or {}).get("of") != sums:
        computed = of_arrays(name, arrays, None)
        try:
            with cache.writing(place, {"source": f"{name} features of {stored_as}", "of": sums}) as draft:
                for part, values in computed.items():
                    draft.put(part, values)
        except OSError:  # a read-only cache, or a full one
            return computed
    return cache.arrays(place)


def with_features(data: FederatedData, name: str) -> FederatedData:
    """The same federation with features instead of images."""
    if data.features == name:
        return data
    other = copy.copy(data)
    other.x = compute(name, data.x)
    other.test = None if data.test is None else (compute(name, data.test[0]), data.test[1])
    if data.local_tests is not None:
        same = data.local_tests.x is data.x
        other.local_tests = data.local_tests._replace(x=other.x if same else compute(name, data.local_tests.x))
    other.features, other.image, other.normalise, other.recipe = name, tuple(data.x.shape[1:]), None, {}
    return other


def as_samples(data: FederatedData, x: Tensor) -> Tensor:
    """Images as the features that the samples of `data` are; all else as it is."""
    return compute(data.features, x) if data.features is not None and tuple(x.shape[1:]) == data.image else x
