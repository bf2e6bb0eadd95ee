"""Every algorithm, one file a paper; third parties add theirs through the entry point ``undrift.algorithms``."""

from __future__ import annotations

import inspect
from functools import cache
from importlib.metadata import entry_points

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
from undrift.core.check import nearest, shown
from undrift.core.log import warning
from undrift.methods.algorithm import Algorithm

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

_BUILT_IN: tuple[type[Algorithm], ...] = (
    FedAvg,
    FedProx,
    FedNova,
    FedBN,
    MOON,
    FedAvgM,
    FedAdagrad,
    FedAdam,
    FedYogi,
    FedExP,
    SCAFFOLD,
    FedPVR,
    FedDyn,
    FedDC,
    FedSpeed,
    AdaBest,
    FedGA,
    LoSAC,
    FedCM,
    FedADC,
    FedVARP,
    MIFA,
    Mime,
    MimeMom,
    MimeLite,
    MimeLiteMom,
    MimeSVRG,
    FSVRG,
    PerFedAvg,
    FedPMVR,
    FedDPC,
    FedPGVC,
    MAFSVRG,
    GAFSVRG,
    FedHBM,
    LocalGHB,
    GHB,
)

# What algorithms are measured by; it is found by its name, and no part of any list.
_REFERENCES: tuple[type[Algorithm], ...] = (Centralised,)

_OWN: dict[str, type[Algorithm]] = {}  # of users, as `add` was given them


def available() -> dict[str, type[Algorithm]]:
    """Algorithms by the name users type; a third party cannot shadow a built-in one."""
    return {kind.name(): kind for kind in _BUILT_IN} | _of_other_packages() | _OWN


def add(kind: type[Algorithm]) -> None:
    """Make a user's own algorithm known by its name, in this process; it cannot shadow another one."""
    name = kind.name()
    if name in known().keys() - _OWN.keys():
        raise ValueError(f"there is an algorithm {name!r} already; give {kind.__name__} another name")
    _OWN[name] = kind


@cache
def _of_other_packages() -> dict[str, type[Algorithm]]:
    """What is registered under the entry point; one warning names whatever cannot be used, and the rest goes on."""
    taken, found, trouble = {kind.name() for kind in (*_BUILT_IN, *_REFERENCES)}, {}, []
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
    return available() | {kind.name(): kind for kind in _REFERENCES}


def find(name: str) -> type[Algorithm]:
    kinds = known()
    key = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    if key not in kinds:
        raise ValueError(f"unknown algorithm {shown(name)}{nearest(key, kinds)}")
    return kinds[key]
