"""Shared by drivers on PyTorch: the nets, the precision, the accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def build(net: str, shape: Sequence[int]) -> nn.Module:
    """A net for ten classes; `lenet5`, `lenet-hsu` and `softmax` are undrift's models of these names."""
    channels, height, width = shape
    if net == "softmax":
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 10))
    if net == "lenet5":
        return _lenet(channels, height, maps=(6, 16), hidden=(120, 84), padding=2 if height < 32 else 0)
    if net == "lenet-hsu":
        return _lenet(channels, height, maps=(64, 64), hidden=(384, 192), padding=0)
    if net == "cnn-pfl":
        return _cnn_pfl(channels, height)
    raise ValueError(f"unknown net {net!r}")


def _lenet(channels: int, side: int, maps: tuple[int, int], hidden: tuple[int, int], padding: int) -> nn.Module:
    rest = ((side + 2 * padding - 4) // 2 - 4) // 2
    return nn.Sequential(
        *(nn.Conv2d(channels, maps[0], 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(maps[0], maps[1], 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(maps[1] * rest * rest, hidden[0]), nn.ReLU()),
        *(nn.Linear(hidden[0], hidden[1]), nn.ReLU()),
        nn.Linear(hidden[1], 10),
    )


def _cnn_pfl(channels: int, side: int) -> nn.Module:
    """The net that pfl-research compares libraries with (arXiv 2404.06430): two 3×3 convolutions, unpadded, dropout."""
    rest = (side - 4) // 2
    net = nn.Sequential(
        *(nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * rest * rest, 128), nn.ReLU()),
        *(nn.Dropout(0.5), nn.Linear(128, 10)),
    )
    for part in net.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(part.weight)
    return net


def start(net: str, shape: Sequence[int], parameters: Sequence[np.ndarray[Any, Any]]) -> nn.Module:
    """The net with the given parameters."""
    model = build(net, shape)
    with torch.no_grad():
        for mine, given in zip(model.parameters(), parameters, strict=True):
            mine.copy_(torch.from_numpy(given))
    return model


@torch.no_grad()
def accuracy(model: nn.Module, test: tuple[Any, Any] | None) -> float | None:
    if test is None:
        return None
    device = next(model.parameters()).device
    model.eval()
    right = 0
    for x, y in zip(*(torch.from_numpy(part).split(1000) for part in test), strict=True):
        right += int((model(x.to(device)).argmax(1) == y.to(device)).sum())
    return right / len(test[1])


def waiting(device: str) -> Callable[[], object]:
    """A function that waits for the GPU; on a CPU it does nothing."""
    return torch.cuda.synchronize if device == "cuda" else lambda: None


def peak(device: str) -> int | None:
    return torch.cuda.max_memory_allocated() if device == "cuda" else None


def compute(precision: str | None) -> AbstractContextManager[Any]:
    """Set the precision of matrix products on a GPU; PyTorch's default if None."""
    if precision is None:
        return nullcontext()
    allow_tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = allow_tf32
    torch.backends.cudnn.allow_tf32 = allow_tf32
    return torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else nullcontext()


def tensors(arrays: tuple[Any, Any], device: str = "cpu") -> tuple[Tensor, Tensor]:
    x, y = (torch.from_numpy(part).to(device) for part in arrays)
    return x, y
