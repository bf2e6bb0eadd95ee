"""Small models that fit any image or vector."""

from __future__ import annotations

import math

from torch import nn


def softmax(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Softmax regression on the flattened sample."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two hidden layers of 64 units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 3×3 convolutions (16, 32), each followed by pooling, and a hidden layer of 64 units."""
    channels, height, width = _image(shape, 4)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def lenet5(shape: tuple[int, ...], classes: int) -> nn.Module:
    """LeNet-5: two 5×5 convolutions (6, 16) with pooling, then 120, 84 and the classes; 28×28 or 32×32 images."""
    channels, height, width = _image(shape, 28)
    padding = 2 if height < 32 else 0
    side = [(size + 2 * padding - 4) // 2 for size in (height, width)]
    side = [(size - 4) // 2 for size in side]
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side[0] * side[1], 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def _image(shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(f"this model needs images [channels, height, width] of at least {least}×{least}, got {shape}")
    channels, height, width = shape
    return channels, height, width
