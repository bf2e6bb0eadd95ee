"""Softmax regression."""

from __future__ import annotations

import math

from torch import nn


def softmax(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Softmax regression on the flattened sample; convex, as FSVRG's theory assumes (Konečný et al., 2016)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
