"""A small convolutional network."""

from __future__ import annotations

from torch import nn

from undrift.models.common import image


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 3×3 convolutions (16, 32) with pooling and 64 hidden units, for quick trials on any image; from no paper."""
    channels, height, width = image("cnn", shape, 4)
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
