"""Convolutions with different weights for every client, in Triton: implicit matrix products with fused pooling.

A grouped convolution, which is what `vmap` makes of them, reaches a few per cent of a GPU's peak rate. Here the pixels
of a client's batch are the rows of a matrix product and the taps of the kernel, channels last, its inner dimension;
patches are gathered on the fly and never stored. All tensors are contiguous, channels last: inputs [n, B, H, W, C],
outputs [n, B, OH, OW, F], weights [n, F, KH, KW, C]. A tensor that all clients share has n = 1.

With 2×2 pooling only the largest value of a window is stored, and its position: 0 to 3, or 4 if it is not positive, so
that ReLU blocks the gradient. Gradients are expanded to all pixels where they are read.

Where inputs have few channels, pooled convolutions are those of `windows.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from undrift.accelerate import windows
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
        a = patch(
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
        a = patch(
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
    (_, kw), stride, padding, dilation, spread = geometry
    bounded = geometry.is_bounded(size, (height, width))
    if which is not None and windows.suits(geometry, channels):
        windows.convolve(x, weight, bias, out, which, geometry=geometry, bounded=bounded, tile=tile)
        return out, which
    chosen = tile or _tile_forward(outputs, channels, bounded, x.dtype)
    _convolve[(triton.cdiv(pixels, chosen.pixels), triton.cdiv(outputs, chosen.channels), clients)](
        x, weight, x if bias is None else bias, out, out if which is None else which,
        per_client(x), per_client(weight), 0 if bias is None else per_client(bias), pixels,
        height, width, channels, outputs, high, wide, taps, kw, *stride, *padding, *dilation, *spread,
        bounded, pool, bias is not None, precision(x),
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
    if code is not None and windows.suits_gradients(geometry, x.shape[-1], gradient.shape[-1]):
        return windows.correlate(x, gradient, code, size, geometry, tile=tile, shares=shares)
    clients, outputs = gradient.shape[0], gradient.shape[-1]
    batch, height, width, channels = x.shape[1:]
    high, wide = size if code is None else (2 * (size[0] // 2), 2 * (size[1] // 2))
    pixels = batch * high * wide
    (kh, kw), stride, padding, dilation, _ = geometry
    taps = kh * kw * channels
    chosen = tile or _tile_backward(outputs, taps, channels, x.dtype)
    programs = triton.cdiv(taps, chosen.taps) * triton.cdiv(outputs, chosen.channels)
    parts = shares or shares_of(programs * clients, triton.cdiv(pixels, chosen.pixels))
    share = triton.cdiv(triton.cdiv(pixels, chosen.pixels), parts) * chosen.pixels
    out = torch.empty(parts, clients, outputs, taps, dtype=torch.float32, device=x.device)
    along = torch.empty(parts, clients, outputs, dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(taps, chosen.taps), triton.cdiv(outputs, chosen.channels) * parts, clients)
    _correlate[grid](
        x, gradient, x if code is None else code, out, along, per_client(x), pixels, share,
        height, width, channels, outputs, high, wide, taps, kw, *stride, *padding, *dilation,
        geometry.is_bounded(size, (height, width)), code is not None, precision(x), parts,
        chosen.pixels, chosen.channels, chosen.taps, num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    weights = transposed(out.view(parts, clients, outputs, kh * kw, channels), torch.float32, shares=True)
    return weights.view(clients, outputs, channels, kh, kw), along.sum(0)


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


# Tiles were measured on an H200 for the two convolutions of the LeNet of Hsu et al. (3→64 and 64→64 channels, 5×5).


def _tile_forward(outputs: int, channels: int, bounded: bool, dtype: torch.dtype) -> Tile:
    wide = min(64, power_of_two(outputs))
    if channels < 16:  # scattered reads
        return Tile(128, wide, 16, warps=4, stages=2)
    inner = min(32 if dtype is torch.float32 else 64, power_of_two(channels))
    pixels, warps = (128, 4) if bounded or dtype is torch.float32 else (256, 8)
    return Tile(pixels, wide, inner, warps=warps, stages=3)


def _tile_backward(outputs: int, taps: int, channels: int, dtype: torch.dtype) -> Tile:
    wide, inner = min(64, power_of_two(outputs)), min(128, power_of_two(taps))
    if dtype is torch.float32:
        # Two warps: Hopper's own products want the inner dimension first in memory, which tf32 does not allow here.
        return Tile(32, wide, inner, warps=4 if channels < 16 else 2, stages=3)
    return Tile(32 if channels < 16 else 64, wide, inner, warps=4, stages=3)
