"""What the kernels of convolutions share: tiles, and how patches of inputs are read."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tile(NamedTuple):
    """The block that one Triton program computes, and how it is scheduled."""

    pixels: int
    channels: int
    taps: int
    warps: int
    stages: int


@triton.jit
def patch(
    x, image, y, z, valid, k, K: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KW: tl.constexpr,
    DY: tl.constexpr, DX: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr, BOUNDED: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Inputs under taps `k` of windows that start at (y, z) of their image [pixels, taps]; zero outside."""
    tap = k // C
    channel = k % C
    down = (tap // KW) * DY
    right = (tap % KW) * DX
    inside = valid[:, None] if WHOLE else valid[:, None] & (k < K)[None, :]
    if BOUNDED or SY > 1 or SX > 1:
        row = y[:, None] + down[None, :]
        column = z[:, None] + right[None, :]
        if SY > 1:
            inside &= row % SY == 0
            row = row // SY
        if SX > 1:
            inside &= column % SX == 0
            column = column // SX
        inside &= (row >= 0) & (row < H) & (column >= 0) & (column < W)
        return tl.load(x + ((image[:, None] * H + row) * W + column) * C + channel[None, :], inside, other=0.0)
    else:
        first = ((image * H + y) * W + z) * C
        return tl.load(x + first[:, None] + ((down * W + right) * C + channel)[None, :], inside, other=0.0)


def per_client(tensor: Tensor) -> int:
    """Elements from one client to the next; 0 if all share the tensor."""
    return 0 if len(tensor) == 1 else tensor[0].numel()


def precision(x: Tensor) -> str:
    """How factors in single precision are multiplied; for half precision it makes no difference."""
    fast = torch.backends.cuda.matmul.fp32_precision == "tf32"  # type: ignore[attr-defined]
    return "tf32" if x.dtype is torch.float32 and fast else "ieee"


def power_of_two(count: int) -> int:
    """The next power of two, at least the smallest side of a tensor core's product."""
    return max(16, triton.next_power_of_2(count))


def shares_of(programs: int, blocks: int) -> int:
    """Into how many shares the pixels are split to keep the GPU busy; depends on nothing but the sizes."""
    return max(1, min(blocks, 512 // programs))
