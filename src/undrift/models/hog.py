"""Softmax regression on histograms of oriented gradients."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undrift.models.common import image

_BLOCK, _STRIDE, _BINS = 7, 3, 9


class HOG(nn.Module):
    """Histograms of gradient directions, weighted by magnitude, in overlapping blocks; nothing to train.

    Blocks of 7×7 pixels with stride 3, nine bins over 0..2π: 28×28 pixels give 64 blocks and 576 features. The paper
    does not say how gradients are computed, also at the border and in colour, or whether blocks are normalised. Here,
    as in Dalal & Triggs (2005): centred differences (the border repeats) and blocks of unit length, without which the
    paper's learning rate would be ten times too large on MNIST; colours become grey (ITU-R BT.601).
    """

    def forward(self, x: Tensor) -> Tensor:  # [B, 1 or 3, H, W] -> [B, features]
        grey = x[:, 0] if x.shape[1] == 1 else 0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]
        across, down = _difference(grey, -1), _difference(grey, -2)
        angle = torch.atan2(down, across) / (2 * math.pi) % 1
        bins = (angle * _BINS).long().clamp_max(_BINS - 1).unsqueeze(1)  # [B, 1, H, W]
        in_bin = bins == torch.arange(_BINS, device=x.device).view(-1, 1, 1)  # [B, bins, H, W]
        magnitude = (across.square() + down.square()).sqrt().unsqueeze(1)
        blocks = F.avg_pool2d(in_bin * magnitude, _BLOCK, _STRIDE)
        return F.normalize(blocks, dim=1, eps=1e-8).flatten(1)


def _difference(x: Tensor, axis: int) -> Tensor:
    """Half the difference between the neighbours of each pixel; at the border, of the pixel and its one neighbour."""
    last = x.shape[axis] - 1
    padded = torch.cat([x.narrow(axis, 0, 1), x, x.narrow(axis, last, 1)], axis)
    return (padded.narrow(axis, 2, last + 1) - padded.narrow(axis, 0, last + 1)) / 2


def softmax_hog(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Softmax regression on 9-bin HOG features of 7×7 blocks, as in the paper of MA-FSVRG and GA-FSVRG."""
    channels, *sides = image("softmax-hog", shape, _BLOCK)
    if channels not in (1, 3):
        raise ValueError(f"model 'softmax-hog' needs grey or colour images, of 1 or 3 channels, got {channels}")
    blocks = math.prod((side - _BLOCK) // _STRIDE + 1 for side in sides)
    return nn.Sequential(HOG(), nn.Linear(_BINS * blocks, classes))
