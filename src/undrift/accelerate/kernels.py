"""Convolutions with different weights for every client, in Triton: implicit matrix products with fused pooling.

A grouped convolution, which is what `vmap` makes of them, reaches a few per cent of a GPU's peak rate. Here the pixels
of a client's batch are the rows of a matrix product and the taps of the kernel, channels last, its inner dimension;
patches are gathered on the fly and never stored. All tensors are contiguous, channels last: inputs [n, B, H, W, C],
outputs [n, B, OH, OW, F], weights [n, F, KH, KW, C]. A tensor that all clients share has n = 1.

With 2×2 pooling only the largest value of a window is stored, and its position: 0 to 3, or 4 if it is not positive, so
that ReLU blocks the gradient. Gradients are expanded to all pixels where they are read.

Where inputs have few channels, reading patches takes most of the time. The four pixels of a pooling window need nearly
the same inputs: there one patch, a tap wider and higher, is read for all four (`_convolve_windows`,
`_correlate_windows`), and each pixel has weights of its own, which are the same ones moved by a tap. For gradients that
needs four times the sums, so that it pays with few outputs only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Geometry(NamedTuple):
    """How output pixels map to input pixels. `spread`: the distance between input pixels, with zeros between them."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    spread: tuple[int, int] = (1, 1)


class Tile(NamedTuple):
    """The block that one Triton program computes, and how it is scheduled."""

    pixels: int
    channels: int
    taps: int
    warps: int
    stages: int


@triton.jit
def _patch(
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


@triton.jit
def _window(p, OH: tl.constexpr, OW: tl.constexpr, POOL: tl.constexpr):
    """Image, row and column of output pixels; with pooling, the four pixels of a window are consecutive."""
    if POOL:
        q = p // 4
        rest = q // (OW // 2)
        image = rest // (OH // 2)
        row = (rest % (OH // 2)) * 2 + (p % 4) // 2
        column = (q % (OW // 2)) * 2 + p % 2
    else:
        rest = p // OW
        image = rest // OH
        row = rest % OH
        column = p % OW
    return image, row, column


@triton.jit
def _convolve(
    x, w, bias, out, code, x_client, w_client, bias_client, P, H: tl.constexpr, W: tl.constexpr,
    C: tl.constexpr, F: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, K: tl.constexpr, KW: tl.constexpr,
    TY: tl.constexpr, TX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
    SY: tl.constexpr, SX: tl.constexpr, BOUNDED: tl.constexpr, POOL: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr, BP: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    image, row, column = _window(p, OH, OW, POOL)
    valid = p < P
    y = row * TY - PY
    z = column * TX - PX
    total = tl.zeros((BP, BO), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = _patch(
            x + client * x_client, image, y, z, valid, k, K, H, W, C, KW, DY, DX, SY, SX, BOUNDED, K % BK == 0,
        )  # fmt: skip
        b = tl.load(w + client * w_client + o[None, :] * K + k[:, None], (k < K)[:, None] & (o < F)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + client * bias_client + o, o < F, other=0.0)[None, :]
    if POOL:
        top, which = tl.max(tl.reshape(total, (BP // 4, 4, BO)), axis=1, return_indices=True)
        q = tl.program_id(0) * (BP // 4) + tl.arange(0, BP // 4)
        place = client * (P // 4) * F + q[:, None] * F + o[None, :]
        inside = (q < P // 4)[:, None] & (o < F)[None, :]
        dead = top <= 0  # not `top > 0` negated, so that NaN stays NaN
        tl.store(out + place, tl.where(dead, 0.0, top).to(out.dtype.element_ty), inside)
        tl.store(code + place, tl.where(dead, 4, which).to(tl.uint8), inside)
    else:
        place = client * P * F + p[:, None] * F + o[None, :]
        tl.store(out + place, total.to(out.dtype.element_ty), valid[:, None] & (o < F)[None, :])


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
def _convolve_windows(
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
        a = _patch(
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
    x, g, code, out, out_bias, x_client, P, SHARE, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, F: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, K: tl.constexpr, KW: tl.constexpr, TY: tl.constexpr, TX: tl.constexpr,
    PY: tl.constexpr, PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr, BOUNDED: tl.constexpr, POOL: tl.constexpr,
    PRECISION: tl.constexpr, SHARES: tl.constexpr, BP: tl.constexpr, BO: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """The contribution of one share of the pixels to the gradients of the weights and of the bias."""
    client = tl.program_id(2).to(tl.int64)
    share = tl.program_id(1) % SHARES
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    o = (tl.program_id(1) // SHARES) * BO + tl.arange(0, BO)
    total = tl.zeros((BO, BK), tl.float32)
    along = tl.zeros((BO,), tl.float32)
    last = tl.minimum((share + 1) * SHARE, P)
    for start in range(share * SHARE, last, BP):
        p = start + tl.arange(0, BP)
        image, row, column = _window(p, OH, OW, POOL)
        valid = p < last
        a = _patch(
            x + client * x_client, image, row * TY - PY, column * TX - PX, valid, k, K, H, W, C, KW, DY, DX, 1, 1,
            BOUNDED, K % BK == 0,
        )  # fmt: skip
        if POOL:
            q = start // 4 + tl.arange(0, BP // 4)
            place = client * (P // 4) * F + q[:, None] * F + o[None, :]
            inside = (q < last // 4)[:, None] & (o < F)[None, :]
            value = tl.load(g + place, inside, other=0.0)
            which = tl.load(code + place, inside, other=4)
            mine = which[:, None, :] == tl.arange(0, 4)[None, :, None]
            d = tl.reshape(tl.where(mine, value[:, None, :], 0.0), (BP, BO))
        else:
            place = client * P * F + p[:, None] * F + o[None, :]
            d = tl.load(g + place, valid[:, None] & (o < F)[None, :], other=0.0)
        total = tl.dot(tl.trans(d), a, total, input_precision=PRECISION)
        along += tl.sum(d.to(tl.float32), axis=0)
    row_of = (share * tl.num_programs(2) + client) * F + o
    inside = (o < F)[:, None] & (k < K)[None, :]
    tl.store(out + row_of[:, None] * K + k[None, :], total, inside)
    tl.store(out_bias + row_of, along, (o < F) & (tl.program_id(0) == 0))


@triton.jit
def _correlate_windows(
    x, g, code, out, out_bias, x_client, Q, SHARE, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, F: tl.constexpr,
    QH: tl.constexpr, QW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    BOUNDED: tl.constexpr, PRECISION: tl.constexpr, SHARES: tl.constexpr, BQ: tl.constexpr, BO: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """`_correlate` with one patch for the four pixels of a window, of each of which there are sums of their own."""
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
        a = _patch(
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
def _add_windows(
    given, out, ROWS, SHARES: tl.constexpr, C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The sums of `_correlate_windows` [SHARES, rows, 4, KH + 1, KW + 1, C] as gradients [rows, C, KH, KW]."""
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


@triton.jit
def _transpose(
    given, out, SHARES: tl.constexpr, A: tl.constexpr, B: tl.constexpr, FLIP: tl.constexpr, BA: tl.constexpr,
    BB: tl.constexpr,
):  # fmt: skip
    """Sums shares [SHARES, rows, A, B] and transposes the last two axes, groups of FLIP along B in reversed order."""
    row = tl.program_id(0).to(tl.int64)
    a = tl.program_id(1) * BA + tl.arange(0, BA)
    b = tl.program_id(2) * BB + tl.arange(0, BB)
    inside = (a < A)[:, None] & (b < B)[None, :]
    place = row * A * B + a[:, None] * B + b[None, :]
    total = tl.load(given + place, inside, other=0.0)
    for share in range(1, SHARES):
        total += tl.load(given + share * tl.num_programs(0).to(tl.int64) * A * B + place, inside, other=0.0)
    if FLIP > 1:
        b = b - b % FLIP + (FLIP - 1 - b % FLIP)
    there = row * A * B + b[:, None] * A + a[None, :]
    tl.store(out + there, tl.trans(total).to(out.dtype.element_ty), (b < B)[:, None] & (a < A)[None, :])


@triton.jit
def _unpool(
    pooled, code, out, COUNT, OH: tl.constexpr, OW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, F: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < COUNT
    value = tl.load(pooled + place, inside)
    which = tl.load(code + place, inside)
    o = place % F
    rest = place // F
    image = rest // (PH * PW)
    row = 2 * ((rest // PW) % PH)
    column = 2 * (rest % PW)
    for pixel in tl.static_range(4):
        there = ((image * OH + row + pixel // 2) * OW + column + pixel % 2) * F + o
        tl.store(out + there, tl.where(which == pixel, value, 0.0), inside)


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    size: tuple[int, int],
    geometry: Geometry,
    clients: int,
    *,
    pool: bool = False,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The convolution, of `size` [OH, OW] before pooling; with pooling, also the chosen position in every window."""
    batch, height, width, channels = x.shape[1:]
    outputs, taps = weight.shape[1], weight.shape[2:].numel()
    high, wide = (2 * (size[0] // 2), 2 * (size[1] // 2)) if pool else size
    pixels = batch * high * wide
    shape = (clients, batch, high // 2, wide // 2, outputs) if pool else (clients, batch, high, wide, outputs)
    out = x.new_empty(shape)
    which = torch.empty(shape, dtype=torch.uint8, device=x.device) if pool else None
    (kh, kw), stride, padding, dilation, spread = geometry
    bounded = _bounded(geometry, size, (height, width))
    if which is not None and _reading_dominates(geometry, channels):
        chosen = tile or _tile_windows(outputs, (kh + 1) * (kw + 1) * channels)
        _convolve_windows[(triton.cdiv(pixels // 4, chosen.pixels), triton.cdiv(outputs, chosen.channels), clients)](
            x, weight, x if bias is None else bias, out, which, _per_client(x), _per_client(weight),
            0 if bias is None else _per_client(bias), pixels // 4, height, width, channels, outputs, high // 2,
            wide // 2, kh, kw, *padding, bounded, bias is not None, _precision(x), chosen.pixels, chosen.channels,
            chosen.taps, num_warps=chosen.warps, num_stages=chosen.stages,
        )  # fmt: skip
        return out, which
    chosen = tile or _tile_forward(outputs, channels, bounded, x.dtype)
    _convolve[(triton.cdiv(pixels, chosen.pixels), triton.cdiv(outputs, chosen.channels), clients)](
        x, weight, x if bias is None else bias, out, out if which is None else which,
        _per_client(x), _per_client(weight), 0 if bias is None else _per_client(bias), pixels,
        height, width, channels, outputs, high, wide, taps, kw, *stride, *padding, *dilation, *spread,
        bounded, pool, bias is not None, _precision(x),
        chosen.pixels, chosen.channels, chosen.taps,
        num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    return out, which


def correlate(
    x: Tensor,
    gradient: Tensor,
    code: Tensor | None,
    size: tuple[int, int],
    geometry: Geometry,
    *,
    tile: Tile | None = None,
    shares: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of the weights [n, F, C, KH, KW] and of the bias [n, F], in single precision."""
    if code is not None and _reading_dominates(geometry, x.shape[-1]) and gradient.shape[-1] <= 16:
        return _correlated_windows(x, gradient, code, size, geometry, tile=tile, shares=shares)
    clients, outputs = gradient.shape[0], gradient.shape[-1]
    batch, height, width, channels = x.shape[1:]
    high, wide = size if code is None else (2 * (size[0] // 2), 2 * (size[1] // 2))
    pixels = batch * high * wide
    (kh, kw), stride, padding, dilation, _ = geometry
    taps = kh * kw * channels
    chosen = tile or _tile_backward(outputs, taps, channels, x.dtype)
    programs = triton.cdiv(taps, chosen.taps) * triton.cdiv(outputs, chosen.channels)
    parts = shares or _shares(programs * clients, triton.cdiv(pixels, chosen.pixels))
    share = triton.cdiv(triton.cdiv(pixels, chosen.pixels), parts) * chosen.pixels
    out = torch.empty(parts, clients, outputs, taps, dtype=torch.float32, device=x.device)
    along = torch.empty(parts, clients, outputs, dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(taps, chosen.taps), triton.cdiv(outputs, chosen.channels) * parts, clients)
    _correlate[grid](
        x, gradient, x if code is None else code, out, along, _per_client(x), pixels, share,
        height, width, channels, outputs, high, wide, taps, kw, *stride, *padding, *dilation,
        _bounded(geometry, size, (height, width)), code is not None, _precision(x), parts,
        chosen.pixels, chosen.channels, chosen.taps, num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    weights = transposed(out.view(parts, clients, outputs, kh * kw, channels), torch.float32, shares=True)
    return weights.view(clients, outputs, channels, kh, kw), along.sum(0)


def _correlated_windows(
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
    chosen = tile or _tile_windows_backward(outputs, taps)
    grid = [triton.cdiv(taps, chosen.taps), triton.cdiv(outputs, chosen.channels), clients]
    blocks = triton.cdiv(windows, chosen.pixels)
    parts = shares or _shares(math.prod(grid), blocks)
    grid[1] *= parts
    out = torch.empty(parts, clients, outputs, 4, taps, dtype=torch.float32, device=x.device)
    along = torch.empty(parts, clients, outputs, dtype=torch.float32, device=x.device)
    _correlate_windows[tuple(grid)](
        x, gradient, code, out, along, _per_client(x), windows, triton.cdiv(blocks, parts) * chosen.pixels,
        height, width, channels, outputs, high, wide, kh, kw, *padding, _bounded(geometry, size, (height, width)),
        _precision(x), parts, chosen.pixels, chosen.channels, chosen.taps,
        num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    weights = torch.empty(clients, outputs, channels, kh, kw, dtype=torch.float32, device=x.device)
    rows, width_of_row = clients * outputs, triton.next_power_of_2(channels * kh * kw)
    _add_windows[(rows,)](out, weights, rows, parts, channels, kh, kw, width_of_row, num_warps=4)
    return weights, along.sum(0)


def transposed(tensor: Tensor, dtype: torch.dtype, *, shares: bool = False, flip: int = 1) -> Tensor:
    """A contiguous tensor [..., A, B] as [..., B, A]; with `shares`, summed over its first axis."""
    *leading, a, b = tensor.shape
    count = leading.pop(0) if shares else 1
    out = torch.empty(*leading, b, a, dtype=dtype, device=tensor.device)
    rows = out.numel() // (a * b)
    sides = (min(32, triton.next_power_of_2(a)), min(64, triton.next_power_of_2(b)))
    grid = (rows, triton.cdiv(a, sides[0]), triton.cdiv(b, sides[1]))
    _transpose[grid](tensor, out, count, a, b, flip, *sides, num_warps=4)
    return out


def unpool(pooled: Tensor, code: Tensor, size: tuple[int, int]) -> Tensor:
    """Gradients of a pooled output [n, B, OH/2, OW/2, F] at the pixels that were chosen [n, B, OH, OW, F]."""
    clients, batch, high, wide, outputs = pooled.shape
    out = pooled.new_zeros if (size[0] % 2 or size[1] % 2) else pooled.new_empty
    spread = out((clients, batch, *size, outputs))
    count = pooled.numel()
    _unpool[(triton.cdiv(count, 1024),)](pooled, code, spread, count, *size, high, wide, outputs, 1024)
    return spread


def _per_client(tensor: Tensor) -> int:
    """Elements from one client to the next; 0 if all share the tensor."""
    return 0 if len(tensor) == 1 else tensor[0].numel()


def _bounded(geometry: Geometry, size: tuple[int, int], input_size: tuple[int, int]) -> bool:
    """Whether a window may reach beyond the edge of the image."""
    return any(
        p != 0 or (out - 1) * t + (k - 1) * d >= side
        for out, side, k, t, p, d in zip(
            size, input_size, geometry.kernel, geometry.stride, geometry.padding, geometry.dilation, strict=True
        )
    )


def _precision(x: Tensor) -> str:
    """How factors in single precision are multiplied; for half precision it makes no difference."""
    fast = torch.backends.cuda.matmul.fp32_precision == "tf32"  # type: ignore[attr-defined]
    return "tf32" if x.dtype is torch.float32 and fast else "ieee"


def _reading_dominates(geometry: Geometry, channels: int) -> bool:
    """Whether one patch should serve the four pixels of a pooling window, and can, as their inputs are neighbours."""
    return channels < 16 and geometry.stride == geometry.dilation == geometry.spread == (1, 1)


# Tiles were measured on an H200 for the convolutions of the LeNet of Hsu et al. (3→64 and 64→64 channels, 5×5) and of
# LeNet-5 (3→6 or 1→6, and 6→16).


def _tile_forward(outputs: int, channels: int, bounded: bool, dtype: torch.dtype) -> Tile:
    wide = min(64, _power(outputs))
    if channels < 16:  # scattered reads
        return Tile(128, wide, 16, warps=4, stages=2)
    inner = min(32 if dtype is torch.float32 else 64, _power(channels))
    pixels, warps = (128, 4) if bounded or dtype is torch.float32 else (256, 8)
    return Tile(pixels, wide, inner, warps=warps, stages=3)


def _tile_windows(outputs: int, taps: int) -> Tile:
    return Tile(128, min(32, _power(outputs)), _power(taps) if taps <= 128 else 32, warps=4, stages=1)


def _tile_windows_backward(outputs: int, taps: int) -> Tile:
    return Tile(32, _power(outputs), min(128, _power(taps)), warps=4, stages=2)


def _tile_backward(outputs: int, taps: int, channels: int, dtype: torch.dtype) -> Tile:
    wide, inner = min(64, _power(outputs)), min(128, _power(taps))
    if dtype is torch.float32:
        # Two warps: Hopper's own products want the inner dimension first in memory, which tf32 does not allow here.
        return Tile(32, wide, inner, warps=4 if channels < 16 else 2, stages=3)
    return Tile(32 if channels < 16 else 64, wide, inner, warps=4, stages=3)


def _power(count: int) -> int:
    """The next power of two, at least the smallest side of a tensor core's product."""
    return max(16, triton.next_power_of_2(count))


def _shares(programs: int, blocks: int) -> int:
    """Into how many shares the pixels are split to keep the GPU busy; depends on nothing but the sizes."""
    return max(1, min(blocks, 512 // programs))
