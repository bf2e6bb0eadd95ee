"""How a data set is usually run, by a paper where one is named; the command line takes these where none are given."""

from __future__ import annotations

from typing import Any

from undrift.core.check import nearest

_MNIST: dict[str, dict[str, Any]] = {
    "data": {"clients": 100},
    "model": {"name": "lenet5"},
    "local": {"lr": 0.05},
    "run": {"cohort": 0.1},
}
_CIFAR: dict[str, dict[str, Any]] = {  # FedHBM, cross-silo
    "data": {"clients": 100},
    "model": {"name": "lenet-hsu"},
    "local": {"batch_size": 64, "weight_decay": 1e-3},
    "run": {"cohort": 0.1, "augment": "crop-flip"},
}
_PHOTOGRAPHS: dict[str, dict[str, Any]] = {"model": {"name": "mobilenetv2"}, "run": {"cohort": 10, "eval_every": 10}}

USUAL: dict[str, dict[str, dict[str, Any]]] = {
    "digits": {"model": {"name": "cnn"}, "local": {"lr": 0.1}},
    "mnist": _MNIST,
    "fashion-mnist": _MNIST,
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "tiny-imagenet": {  # FedDPC
        "data": {"clients": 100},
        "model": {"name": "resnet18-gn"},
        "local": {"batch_size": 256},
        "run": {"cohort": 0.1},
    },
    "shakespeare": {  # FedHBM
        "data": {"partition": "natural,min=2000", "clients": 100},
        "model": {"name": "char-lstm"},
        "local": {"lr": 1.0, "batch_size": 100},
        "run": {"rounds": 250, "cohort": 10, "eval_every": 10},
    },
    "stackoverflow": {  # FedHBM
        "model": {"name": "word-lstm"},
        "local": {"lr": 0.3, "batch_size": 16},
        "run": {"rounds": 1500, "cohort": 50, "eval_every": 50},
    },
    "qqp": {"model": {"name": "pair-lstm"}, "run": {"cohort": 10}},
    "landmarks-users-160k": _PHOTOGRAPHS,
    "inaturalist-users-120k": _PHOTOGRAPHS,
}


def completed(config: dict[str, dict[str, Any]], data: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """`config` with the usual settings of a data set where it says nothing, and what these were, as section.key."""
    if data not in USUAL:
        raise ValueError(f"unknown data set {data!r}{nearest(data, USUAL)}")
    usual = USUAL[data]
    taken = {
        f"{section}.{key}": value
        for section, keys in usual.items()
        for key, value in keys.items()
        if key not in config.get(section, {})
    }
    sections = {*config, *usual}
    return {section: usual.get(section, {}) | config.get(section, {}) for section in sections}, taken
