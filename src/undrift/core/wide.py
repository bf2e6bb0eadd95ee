"""The widest numbers that a device has, for sums and draws that should not round."""

from __future__ import annotations

import torch
from torch import Tensor


def widest(device: torch.device) -> torch.dtype:
    """float64, but float32 on Apple's GPUs (``mps``), which have nothing wider."""
    return torch.float32 if device.type == "mps" else torch.float64


def wide(tensor: Tensor) -> Tensor:
    return tensor.to(widest(tensor.device))
