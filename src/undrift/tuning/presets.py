"""The grids that papers print, by the name of the paper's algorithm.

A key is a setting of all algorithms, or ``algorithm.option``; algorithms that a paper does not tune have the settings
of all. Only what is printed is here, but for a server rate of FedDyn and AdaBest, who fix their own step, and the
weight decay that FedHBM's paper searches for all algorithms together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Grid = Mapping[str, Sequence[Any]]


class Preset(NamedTuple):
    source: str
    grid: Grid


_POWERS = (1, 0.1, 0.01, 0.001)
_FEDHBM_OPTIONS: Grid = {  # the same for both models of Table 7
    "feddyn.alpha": (0.1, 0.01, 0.001),
    "fedavgm.beta": (0.99, 0.9),
    "mimemom.beta": (0.99, 0.9),
    "mimelitemom.beta": (0.99, 0.9),
    "fedhbm.beta": (1, 0.99, 0.9),
}

PRESETS: dict[str, Preset] = {
    "fedpmvr": Preset(
        "FedPMVR, implementation details: client rate and α, the rate of the momentum update",
        {"lr": (0.05, 0.01, 0.2, 0.3), "fedpmvr.alpha": (0.001, 0.1, 0.3, 0.6, 0.8)},
    ),
    "feddpc": Preset(
        "FedDPC, §5.2.4; its own λ is 1 there",
        {
            "lr": (1, 0.1, 0.01, 0.001, 0.0001),
            "fedprox.mu": _POWERS,
            "fedexp.eps": _POWERS,
            "fedcm.alpha": _POWERS,
            "fedga.beta": _POWERS,
        },
    ),
    "feddpc-lam": Preset(
        "FedDPC, Figure 7: λ at the best rate",
        {"lr": (0.1,), "feddpc.lam": (3, 2, 1, 0.1, 0, -0.1, -0.5)},
    ),
    "fedpgvc": Preset(
        "FedPGVC, §6.1",
        {
            "lr": (0.05, 0.01, 0.2, 0.3),
            "fedprox.mu": (0.001, 0.1, 0.4, 0.7),
            "fednova.mu": (0.001, 0.003, 0.05, 0.1),
        },
    ),
    "fedhbm": Preset(
        "FedHBM, Table 7, CIFAR with LeNet",
        {
            "lr": (0.1, 0.05, 0.01),
            "server_lr": (1, 0.5, 0.1),
            "fedprox.mu": (0.1, 0.01, 0.001),
            "adabest.mu": (0.1, 0.01, 0.001),
            "fedcm.lr": (1, 0.5, 0.1),
            "fedcm.alpha": (0.05, 0.1, 0.5),
            **_FEDHBM_OPTIONS,
        },
    ),
    "fedhbm-resnet": Preset(
        "FedHBM, Table 7, CIFAR with ResNet-20",
        {"lr": (0.1, 0.01), "server_lr": (1, 0.1), **_FEDHBM_OPTIONS},
    ),
    "fedhbm-shakespeare": Preset(
        "FedHBM, Table 7, Shakespeare",
        {
            "lr": (1, 0.5, 0.1),
            "server_lr": (1, 0.5, 0.1),
            "fedprox.mu": (0.1, 0.01, 0.001, 0.0001),
            "adabest.mu": (0.1, 0.009, 0.001),
            "fedcm.alpha": (0.05, 0.1, 0.5),
            **_FEDHBM_OPTIONS,
            "feddyn.alpha": (0.1, 0.009, 0.001),
        },
    ),
    "fedhbm-stackoverflow": Preset(
        "FedHBM, Table 7, StackOverflow",
        {
            "lr": (1, 0.5, 0.3, 0.1),
            "server_lr": (1, 0.5, 0.1),
            "fedprox.mu": (0.1, 0.01, 0.001, 0.0001),
            "adabest.mu": (0.1, 0.009, 0.001),
            **_FEDHBM_OPTIONS,
            "feddyn.alpha": (0.1, 0.009, 0.001),
        },
    ),
    "fedhbm-landmarks": Preset(
        "FedHBM, Appendix B.1, Landmarks and iNaturalist",
        {"lr": (0.01, 0.1), "server_lr": (0.1, 1)},
    ),
}
