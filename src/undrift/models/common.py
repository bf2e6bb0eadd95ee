"""Shared by several models: checks of a sample's shape, He initialisation, and pooling."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def image(name: str, shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """Channels, height and width of a sample, which must be an image of at least `least` pixels a side."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(
            f"model {name!r} needs images [channels, height, width] of at least {least}×{least}, got {shape}"
        )
    channels, height, width = shape
    return channels, height, width


def text(name: str, shape: tuple[int, ...]) -> None:
    """Refuse samples that are not a sequence of token numbers."""
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"model {name!r} needs samples [length] of token numbers, got {shape}")


def he(*layers: Any) -> nn.Module:
    """Layers, as `nn.Sequential` takes them, with He initialisation."""
    model = HeInitialised(*layers)
    model.reset_parameters()
    return model


class HeInitialised(nn.Sequential):
    """Weights drawn so that activations keep their variance from layer to layer (He et al., 2015), and zero biases.

    PyTorch's default shrinks them in every layer, and a deep network without normalisation would not start to learn.
    """

    def reset_parameters(self) -> None:  # not in the constructor, as a part of the layers, `model[:3]`, is made by it
        for part in self.modules():
            if isinstance(part, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
                if part.bias is not None:
                    nn.init.zeros_(part.bias)


class GlobalAveragePool(nn.Module):
    """The mean over height and width, both of which stay, with length 1.

    `nn.AdaptiveAvgPool2d(1)` computes the same, but where channels come last it sets strides in place, which `vmap`
    does client by client.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-1, -2), keepdim=True)
