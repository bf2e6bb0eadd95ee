"""A small perceptron."""

from __future__ import annotations

import math

from torch import nn


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two hidden layers of 64 units, for quick trials; from no paper."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
