"""What several models need: the shape of a sample, and He's initial weights."""

from __future__ import annotations

from torch import nn


def image(name: str, shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """Channels, height and width of a sample, which must be an image of at least so many pixels a side."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(
            f"model {name!r} needs images [channels, height, width] of at least {least}×{least}, got {shape}"
        )
    channels, height, width = shape
    return channels, height, width


def text(name: str, shape: tuple[int, ...]) -> None:
    """Refuses samples that are not a row of token numbers."""
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"model {name!r} needs samples [length] of token numbers, got {shape}")


def he(model: nn.Module) -> nn.Module:
    """Weights drawn so that the signal keeps its size from layer to layer (He et al., 2015), and no biases.

    PyTorch's own draws shrink it in every layer, and a deep network without normalisation would not begin to learn.
    """
    for part in model.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    return model
