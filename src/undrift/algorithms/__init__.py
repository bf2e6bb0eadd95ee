"""Every algorithm, one file a paper; third parties add theirs through the entry point ``undrift.algorithms``."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, cast

from undrift.core.check import nearest, shown
from undrift.core.log import warning
from undrift.methods.algorithm import Algorithm

if TYPE_CHECKING:
    from undrift.algorithms.adabest import AdaBest
    from undrift.algorithms.centralised import Centralised
    from undrift.algorithms.fedadc import FedADC
    from undrift.algorithms.fedavg import FedAvg
    from undrift.algorithms.fedavgm import FedAvgM
    from undrift.algorithms.fedbn import FedBN
    from undrift.algorithms.fedcm import FedCM
    from undrift.algorithms.feddc import FedDC
    from undrift.algorithms.feddpc import FedDPC
    from undrift.algorithms.feddyn import FedDyn
    from undrift.algorithms.fedexp import FedExP
    from undrift.algorithms.fedga import FedGA
    from undrift.algorithms.fedhbm import GHB, FedHBM, LocalGHB
    from undrift.algorithms.fednova import FedNova
    from undrift.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
    from undrift.algorithms.fedpgvc import FedPGVC
    from undrift.algorithms.fedpmvr import FedPMVR
    from undrift.algorithms.fedprox import FedProx
    from undrift.algorithms.fedpvr import FedPVR
    from undrift.algorithms.fedspeed import FedSpeed
    from undrift.algorithms.fedvarp import FedVARP
    from undrift.algorithms.fsvrg import FSVRG
    from undrift.algorithms.losac import LoSAC
    from undrift.algorithms.mafsvrg import GAFSVRG, MAFSVRG
    from undrift.algorithms.mifa import MIFA
    from undrift.algorithms.mime import Mime, MimeLite, MimeLiteMom, MimeMom, MimeSVRG
    from undrift.algorithms.moon import MOON
    from undrift.algorithms.perfedavg import PerFedAvg
    from undrift.algorithms.scaffold import SCAFFOLD

__all__ = [
    "FSVRG",
    "GAFSVRG",
    "GHB",
    "MAFSVRG",
    "MIFA",
    "MOON",
    "SCAFFOLD",
    "AdaBest",
    "Centralised",
    "FedADC",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedCM",
    "FedDC",
    "FedDPC",
    "FedDyn",
    "FedExP",
    "FedGA",
    "FedHBM",
    "FedNova",
    "FedPGVC",
    "FedPMVR",
    "FedPVR",
    "FedProx",
    "FedSpeed",
    "FedVARP",
    "FedYogi",
    "LoSAC",
    "LocalGHB",
    "Mime",
    "MimeLite",
    "MimeLiteMom",
    "MimeMom",
    "MimeSVRG",
    "PerFedAvg",
    "add",
    "available",
    "find",
    "known",
]

# Files of the classes, in the order of lists. A file is imported when one of its algorithms is used, as a client of a
# real federation needs one of them, in a process for every message.
_BUILT_IN = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "FedNova": "fednova",
    "FedBN": "fedbn",
    "MOON": "moon",
    "FedAvgM": "fedavgm",
    "FedAdagrad": "fedopt",
    "FedAdam": "fedopt",
    "FedYogi": "fedopt",
    "FedExP": "fedexp",
    "SCAFFOLD": "scaffold",
    "FedPVR": "fedpvr",
    "FedDyn": "feddyn",
    "FedDC": "feddc",
    "FedSpeed": "fedspeed",
    "AdaBest": "adabest",
    "FedGA": "fedga",
    "LoSAC": "losac",
    "FedCM": "fedcm",
    "FedADC": "fedadc",
    "FedVARP": "fedvarp",
    "MIFA": "mifa",
    "Mime": "mime",
    "MimeMom": "mime",
    "MimeLite": "mime",
    "MimeLiteMom": "mime",
    "MimeSVRG": "mime",
    "FSVRG": "fsvrg",
    "PerFedAvg": "perfedavg",
    "FedPMVR": "fedpmvr",
    "FedDPC": "feddpc",
    "FedPGVC": "fedpgvc",
    "MAFSVRG": "mafsvrg",
    "GAFSVRG": "mafsvrg",
    "FedHBM": "fedhbm",
    "LocalGHB": "fedhbm",
    "GHB": "fedhbm",
}

# What algorithms are measured by; it is found by its name, and no part of any list.
_REFERENCES = {"Centralised": "centralised"}

_CLASSES = {name.lower(): name for name in (*_BUILT_IN, *_REFERENCES)}  # by the names users type

_OWN: dict[str, type[Algorithm]] = {}  # of users, as `add` was given them


def __getattr__(name: str) -> Any:
    if home := _BUILT_IN.get(name) or _REFERENCES.get(name):
        return getattr(import_module(f"undrift.algorithms.{home}"), name)
    raise AttributeError(f"module 'undrift.algorithms' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def available() -> dict[str, type[Algorithm]]:
    """Algorithms by the name users type; a third party cannot shadow a built-in one."""
    return {name.lower(): __getattr__(name) for name in _BUILT_IN} | _of_other_packages() | _OWN


def add(kind: type[Algorithm]) -> None:
    """Make a user's own algorithm known by its name, in this process; it cannot shadow another one."""
    name = kind.name()
    if name in _CLASSES or name in _of_other_packages():
        raise ValueError(f"there is an algorithm {name!r} already; give {kind.__name__} another name")
    _OWN[name] = kind


@cache
def _of_other_packages() -> dict[str, type[Algorithm]]:
    """What is registered under the entry point; one warning names whatever cannot be used, and the rest goes on."""
    taken, found, trouble = set(_CLASSES), {}, []
    for entry in entry_points(group="undrift.algorithms"):
        try:
            kind = entry.load()
            if not (inspect.isclass(kind) and issubclass(kind, Algorithm)):
                raise TypeError(f"it must be a subclass of undrift.Algorithm, got {shown(kind)}")
            if kind.name() in taken:
                raise ValueError(f"there is an algorithm {kind.name()!r} already")
        except (Exception, SystemExit) as error:  # another package's code may fail in any way
            package = "an unknown package" if entry.dist is None else f"the package {entry.dist.name!r}"
            lines = str(error).split("\n")
            trouble.append(f"{entry.name!r} of {package} ({type(error).__name__}: {lines[0]})")
        else:
            taken.add(kind.name())
            found[kind.name()] = kind
    if trouble:
        warning(f"undrift: algorithms left out: {', '.join(trouble)}")
    return found


def known() -> dict[str, type[Algorithm]]:
    """All that a name may stand for: those available, and what they are measured by."""
    return available() | {name.lower(): __getattr__(name) for name in _REFERENCES}


def find(name: str) -> type[Algorithm]:
    key = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    if key in _CLASSES:
        return cast(type[Algorithm], __getattr__(_CLASSES[key]))
    others = _of_other_packages() | _OWN
    if key not in others:
        raise ValueError(f"unknown algorithm {shown(name)}{nearest(key, [*_CLASSES, *others])}")
    return others[key]
