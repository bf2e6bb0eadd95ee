"""Pooled convolutions of inputs with few channels, in Triton.

There reading patches takes most of the time. The four pixels of a pooling window need nearly the same inputs: one
patch, a tap wider and higher, is read for all four, and each pixel has weights of its own, the same moved by a tap. For
gradients that needs four times the sums, so that it pays with few outputs only. Tensors are those of `kernels.py`.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from undrift.accelerate.geometry import Geometry
from undrift.accelerate.patches import (
    Tile,
    patch,
    per_client,
    power_of_two,
    precision,
    shares_of,
)


@triton.jit
def _moved(k, pixel: tl.constexpr, C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr):
    """Where taps `k` of a window's patch are in the kernel of one of its four pixels, and whether they are."""
    tap = k // C
    row = tap // (KW + 1) - pixel // 2
    column = tap % (KW + 1) - pixel % 2
    return (row * KW + column) * C + k % C, (row >= 0) & (row < KH) & (column >= 0) & (column < KW)


@triton.jit
def _pixel_of_window(
    a, w, k, o, total, pixel: tl.constexpr, F: tl.constexpr, C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    tap, known = _moved(k, pixel, C, KH, KW)
    b = tl.load(w + o[None, :] * (KH * KW * C) + tap[:, None], known[:, None] & (o < F)[None, :], other=0.0)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _convolve(
    x, w, bias, out, code, x_client, w_client, bias_client, Q, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    F: tl.constexpr, QH: tl.constexpr, QW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PY: tl.constexpr,
    PX: tl.constexpr, BOUNDED: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, BQ: tl.constexpr,
    BO: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    q = tl.program_id(0) * BQ + tl.arange(0, BQ)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    image = q // (QH * QW)
    y = (q // QW) % QH * 2 - PY
    z = q % QW * 2 - PX
    valid = q < Q
    WIDE: tl.constexpr = (KH + 1) * (KW + 1) * C
    own = w + client * w_client
    t0 = tl.zeros((BQ, BO), tl.float32)
    t1 = tl.zeros((BQ, BO), tl.float32)
    t2 = tl.zeros((BQ, BO), tl.float32)
    t3 = tl.zeros((BQ, BO), tl.float32)
    for start in range(0, WIDE, BK):
        k = start + tl.arange(0, BK)
        a = patch(
            x + client * x_client, image, y, z, valid, k, WIDE, H, W, C, KW + 1, 1, 1, 1, 1, BOUNDED, WIDE % BK == 0,
        )  # fmt: skip
        t0 = _pixel_of_window(a, own, k, o, t0, 0, F, C, KH, KW, PRECISION)
        t1 = _pixel_of_window(a, own, k, o, t1, 1, F, C, KH, KW, PRECISION)
        t2 = _pixel_of_window(a, own, k, o, t2, 2, F, C, KH, KW, PRECISION)
        t3 = _pixel_of_window(a, own, k, o, t3, 3, F, C, KH, KW, PRECISION)
    top = _larger(_larger(t0, t1), _larger(t2, t3))
    which = tl.where(t0 == top, 0, tl.where(t1 == top, 1, tl.where(t2 == top, 2, 3)))
    if BIAS:
        top += tl.load(bias + client * bias_client + o, o < F, other=0.0)[None, :]
    place = client * Q * F + q[:, None] * F + o[None, :]
    inside = valid[:, None] & (o < F)[None, :]
    dead = top <= 0  # not `top > 0` negated, so that NaN stays NaN
    tl.store(out + place, tl.where(dead, 0.0, top).to(out.dtype.element_ty), inside)
    tl.store(code + place, tl.where(dead, 4, which).to(tl.uint8), inside)


@triton.jit
def _correlate(
    x, g, code, out, out_bias, x_client, Q, SHARE, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, F: tl.constexpr,
    QH: tl.constexpr, QW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    BOUNDED: tl.constexpr, PRECISION: tl.constexpr, SHARES: tl.constexpr, BQ: tl.constexpr, BO: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """What one share of the windows adds to the gradients, with sums of their own for each of their four pixels."""
    client = tl.program_id(2).to(tl.int64)
    share = tl.program_id(1) % SHARES
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    o = (tl.program_id(1) // SHARES) * BO + tl.arange(0, BO)
    WIDE: tl.constexpr = (KH + 1) * (KW + 1) * C
    t0 = tl.zeros((BO, BK), tl.float32)
    t1 = tl.zeros((BO, BK), tl.float32)
    t2 = tl.zeros((BO, BK), tl.float32)
    t3 = tl.zeros((BO, BK), tl.float32)
    along = tl.zeros((BO,), tl.float32)
    last = tl.minimum((share + 1) * SHARE, Q)
    for start in range(share * SHARE, last, BQ):
        q = start + tl.arange(0, BQ)
        valid = q < last
        a = patch(
            x + client * x_client, q // (QH * QW), (q // QW) % QH * 2 - PY, q % QW * 2 - PX, valid, k, WIDE, H, W, C,
            KW + 1, 1, 1, 1, 1, BOUNDED, WIDE % BK == 0,
        )  # fmt: skip
        place = client * Q * F + q[:, None] * F + o[None, :]
        inside = valid[:, None] & (o < F)[None, :]
        value = tl.load(g + place, inside, other=0.0)
        which = tl.load(code + place, inside, other=4)
        t0 = tl.dot(tl.trans(tl.where(which == 0, value, 0.0)), a, t0, input_precision=PRECISION)
        t1 = tl.dot(tl.trans(tl.where(which == 1, value, 0.0)), a, t1, input_precision=PRECISION)
        t2 = tl.dot(tl.trans(tl.where(which == 2, value, 0.0)), a, t2, input_precision=PRECISION)
        t3 = tl.dot(tl.trans(tl.where(which == 3, value, 0.0)), a, t3, input_precision=PRECISION)
        along += tl.sum(tl.where(which == 4, 0.0, value).to(tl.float32), axis=0)
    row_of = (share * tl.num_programs(2) + client) * F + o
    place = row_of[:, None] * (4 * WIDE) + k[None, :]
    inside = (o < F)[:, None] & (k < WIDE)[None, :]
    tl.store(out + place, t0, inside)
    tl.store(out + place + WIDE, t1, inside)
    tl.store(out + place + 2 * WIDE, t2, inside)
    tl.store(out + place + 3 * WIDE, t3, inside)
    tl.store(out_bias + row_of, along, (o < F) & (tl.program_id(0) == 0))


@triton.jit
def _add(
    given, out, ROWS, SHARES: tl.constexpr, C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The sums of `_correlate` [SHARES, rows, 4, KH + 1, KW + 1, C] as gradients [rows, C, KH, KW]."""
    row = tl.program_id(0).to(tl.int64)
    WIDE: tl.constexpr = (KH + 1) * (KW + 1) * C
    k = tl.arange(0, BK)
    tap = k % (KH * KW)
    first = ((tap // KW) * (KW + 1) + tap % KW) * C + k // (KH * KW)
    inside = k < KH * KW * C
    total = tl.zeros((BK,), tl.float32)
    for share in range(SHARES):
        own = given + (share * ROWS + row) * (4 * WIDE)
        for pixel in tl.static_range(4):
            moved = first + ((pixel // 2) * (KW + 1) + pixel % 2) * C
            total += tl.load(own + pixel * WIDE + moved, inside, other=0.0)
    tl.store(out + row * (KH * KW * C) + k, total, inside)


def suits(geometry: Geometry, channels: int) -> bool:
    """Whether one patch should serve the four pixels of a pooling window, and can, as their inputs are neighbours."""
    return channels < 16 and geometry.stride == geometry.dilation == geometry.spread == (1, 1)


def suits_gradients(geometry: Geometry, channels: int, outputs: int) -> bool:
    return suits(geometry, channels) and outputs <= 16


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    code: Tensor,
    *,
    geometry: Geometry,
    bounded: bool,
    tile: Tile | None,
) -> None:
    """Fills the pooled output and the chosen positions."""
    height, width, channels = x.shape[2:]
    clients, batch, high, wide, outputs = out.shape
    (kh, kw), padding = geometry.kernel, geometry.padding
    count = batch * high * wide
    chosen = tile or _tile_forward(outputs, (kh + 1) * (kw + 1) * channels)
    _convolve[(triton.cdiv(count, chosen.pixels), triton.cdiv(outputs, chosen.channels), clients)](
        x, weight, x if bias is None else bias, out, code, per_client(x), per_client(weight),
        0 if bias is None else per_client(bias), count, height, width, channels, outputs, high, wide, kh, kw, *padding,
        bounded, bias is not None, precision(x), chosen.pixels, chosen.channels, chosen.taps,
        num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip


def correlate(
    x: Tensor,
    gradient: Tensor,
    code: Tensor,
    size: tuple[int, int],
    geometry: Geometry,
    *,
    tile: Tile | None,
    shares: int | None,
) -> tuple[Tensor, Tensor]:
    clients, batch, high, wide, outputs = gradient.shape
    height, width, channels = x.shape[2:]
    (kh, kw), padding = geometry.kernel, geometry.padding
    windows, taps = batch * high * wide, (kh + 1) * (kw + 1) * channels
    chosen = tile or _tile_backward(outputs, taps)
    grid = [triton.cdiv(taps, chosen.taps), triton.cdiv(outputs, chosen.channels), clients]
    blocks = triton.cdiv(windows, chosen.pixels)
    parts = shares or shares_of(math.prod(grid), blocks)
    grid[1] *= parts
    out = torch.empty(parts, clients, outputs, 4, taps, dtype=torch.float32, device=x.device)
    along = torch.empty(parts, clients, outputs, dtype=torch.float32, device=x.device)
    _correlate[tuple(grid)](
        x, gradient, code, out, along, per_client(x), windows, triton.cdiv(blocks, parts) * chosen.pixels,
        height, width, channels, outputs, high, wide, kh, kw, *padding, geometry.is_bounded(size, (height, width)),
        precision(x), parts, chosen.pixels, chosen.channels, chosen.taps,
        num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    weights = torch.empty(clients, outputs, channels, kh, kw, dtype=torch.float32, device=x.device)
    rows, width_of_row = clients * outputs, triton.next_power_of_2(channels * kh * kw)
    _add[(rows,)](out, weights, rows, parts, channels, kh, kw, width_of_row, num_warps=4)
    return weights, along.sum(0)


# Tiles were measured on an H200 for 3→64, 3→6, 1→6 and 6→16 channels, 5×5.


def _tile_forward(outputs: int, taps: int) -> Tile:
    return Tile(128, min(32, power_of_two(outputs)), power_of_two(taps) if taps <= 128 else 32, warps=4, stages=1)


def _tile_backward(outputs: int, taps: int) -> Tile:
    return Tile(32, power_of_two(outputs), min(128, power_of_two(taps)), warps=4, stages=2)
