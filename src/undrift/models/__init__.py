"""Models by name. A factory takes the shape of a sample and the number of classes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from undrift.check import nearest
from undrift.models.small import cnn, lenet5, mlp, softmax

Factory = Callable[[tuple[int, ...], int], nn.Module]
_FACTORIES: dict[str, Factory] = {"softmax": softmax, "mlp": mlp, "cnn": cnn, "lenet5": lenet5}

__all__ = ["available", "build"]


def available() -> dict[str, str]:
    """Names and one line about each."""
    return {name: (factory.__doc__ or "").strip().splitlines()[0] for name, factory in _FACTORIES.items()}


def build(name: str, shape: tuple[int, ...], classes: int | None, seed: int = 0) -> nn.Module:
    """A named model for samples of this shape, its initial weights a function of the seed."""
    if name not in _FACTORIES:
        raise ValueError(f"unknown model {name!r}{nearest(name, _FACTORIES)}")
    if classes is None:
        raise ValueError(f"model {name!r} needs targets that are class numbers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _FACTORIES[name](shape, classes)
