"""Histograms of oriented gradients of images."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCK, _STRIDE, _BINS = 7, 3, 9


def features(images: Tensor) -> Tensor:
    """Histograms of gradient directions: magnitudes summed in blocks of 7×7 pixels, nine bins over 0..2π.

    As the paper of MA-FSVRG and GA-FSVRG describes it: stride 3, so that 28×28 pixels give 64 blocks and 576 features,
    which are not normalised. It does not say how gradients are computed, also at the border and in colour: here by
    centred differences of pixels in 0..1, the border repeated, colours made grey (ITU-R BT.601).
    """
    grey = images[:, 0] if images.shape[1] == 1 else 0.299 * images[:, 0] + 0.587 * images[:, 1] + 0.114 * images[:, 2]
    across, down = _difference(grey, -1), _difference(grey, -2)
    angle = torch.atan2(down, across) / (2 * math.pi) % 1
    bins = (angle * _BINS).long().clamp_max(_BINS - 1).unsqueeze(1)  # [B, 1, H, W]
    in_bin = bins == torch.arange(_BINS, device=images.device).view(-1, 1, 1)  # [B, bins, H, W]
    magnitude = (across.square() + down.square()).sqrt().unsqueeze(1)
    return F.avg_pool2d(in_bin * magnitude, _BLOCK, _STRIDE, divisor_override=1).flatten(1)


def _difference(x: Tensor, axis: int) -> Tensor:
    """Half the difference between the neighbours of each pixel; at the border, of the pixel and its one neighbour."""
    last = x.shape[axis] - 1
    padded = torch.cat([x.narrow(axis, 0, 1), x, x.narrow(axis, last, 1)], axis)
    return (padded.narrow(axis, 2, last + 1) - padded.narrow(axis, 0, last + 1)) / 2


def count(shape: tuple[int, ...]) -> int:
    """How many features an image of this shape has."""
    return _BINS * math.prod((side - _BLOCK) // _STRIDE + 1 for side in shape[1:])


def check(whose: str, shape: tuple[int, ...]) -> None:
    """Refuse samples that are no images with a block of pixels."""
    if len(shape) != 3 or min(shape[1:]) < _BLOCK:
        raise ValueError(f"{whose} need images [channels, height, width] of at least {_BLOCK}×{_BLOCK}, got {shape}")
    if shape[0] not in (1, 3):
        raise ValueError(f"{whose} need grey or colour images, of 1 or 3 channels, got {shape[0]}")
