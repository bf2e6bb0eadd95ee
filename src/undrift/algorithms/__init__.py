"""Every algorithm, one file a paper; third parties add theirs through the entry point ``undrift.algorithms``."""

from __future__ import annotations

import inspect
from importlib.metadata import entry_points

from undrift.algorithm import Algorithm
from undrift.algorithms.fedavg import FedAvg
from undrift.algorithms.feddpc import FedDPC
from undrift.algorithms.fedhbm import GHB, FedHBM, LocalGHB
from undrift.algorithms.fedprox import FedProx
from undrift.algorithms.scaffold import SCAFFOLD
from undrift.check import nearest

__all__ = ["GHB", "SCAFFOLD", "FedAvg", "FedDPC", "FedHBM", "FedProx", "LocalGHB", "available", "find"]

_BUILT_IN: tuple[type[Algorithm], ...] = (FedAvg, FedProx, SCAFFOLD, FedDPC, FedHBM, LocalGHB, GHB)


def available() -> dict[str, type[Algorithm]]:
    """Algorithms by the name users type; a third party cannot shadow a built-in one."""
    added = {}
    for entry in entry_points(group="undrift.algorithms"):
        kind = entry.load()
        if not (inspect.isclass(kind) and issubclass(kind, Algorithm)):
            raise TypeError(f"entry point {entry.name!r} must be a subclass of undrift.Algorithm, got {kind!r}")
        added[kind.name()] = kind
    return added | {kind.name(): kind for kind in _BUILT_IN}


def find(name: str) -> type[Algorithm]:
    known = available()
    key = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    if key not in known:
        raise ValueError(f"unknown algorithm {name!r}{nearest(key, known)}")
    return known[key]
