"""Augmentation on the device, per sample, drawn from (seed, round, client, step).

An augmentation is ``f(x, key, step) -> x`` on a batch [B, ...]; it runs under `vmap`: tensor operations only. A new one
is a function here and an entry of `AUGMENTATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from undrift.core import random
from undrift.core.check import nearest, shown
from undrift.core.random import Key, Stream

Augment = Callable[[Tensor, Key, int], Tensor]
PADDING = 4


def flip(x: Tensor, key: Key, step: int) -> Tensor:
    """Mirror half of the images [B, C, H, W]."""
    mirrored = random.uniform(key, Stream.AUGMENT, 2 * step, (len(x),)) < 0.5
    return torch.where(mirrored.view(-1, *[1] * (x.ndim - 1)), x.flip(-1), x)


def crop(x: Tensor, key: Key, step: int) -> Tensor:
    """Pad images [B, C, H, W] by four pixels and crop them back to size at a random position."""
    size, _, height, width = x.shape
    corner = (random.uniform(key, Stream.AUGMENT, 2 * step + 1, (size, 2)) * (2 * PADDING + 1)).long()
    rows = corner[:, :1] + torch.arange(height, device=x.device)  # [B, H]
    columns = corner[:, 1:] + torch.arange(width, device=x.device)  # [B, W]
    padded = F.pad(x, (PADDING,) * 4).permute(0, 2, 3, 1)  # [B, H+8, W+8, C]
    image = torch.arange(size, device=x.device)[:, None, None]
    return padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def crop_flip(x: Tensor, key: Key, step: int) -> Tensor:
    """A random crop, then a random flip."""
    return flip(crop(x, key, step), key, step)


AUGMENTATIONS: dict[str, Augment] = {"flip": flip, "crop": crop, "crop-flip": crop_flip}


def find(name: str) -> Augment:
    """The augmentation of this name."""
    if name not in AUGMENTATIONS:
        raise ValueError(f"unknown augmentation {shown(name)}{nearest(name, AUGMENTATIONS)}")
    return AUGMENTATIONS[name]
