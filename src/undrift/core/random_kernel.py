"""The words of `random.bits` in one Triton kernel; as tensor operations, a draw takes a hundred small ones."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["stream", "step", "count"])
def _philox(seed, round, client, out, seeds, rounds, clients, stream, step, count, SIZE: tl.constexpr):
    row = tl.program_id(1)
    block = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    zero = tl.zeros((SIZE,), tl.uint32)
    whose = zero + tl.load(client + row * clients).to(tl.uint32)
    when = zero + tl.load(round + row * rounds).to(tl.uint32)
    key = zero + tl.load(seed + row * seeds).to(tl.uint32)
    a, b, c, d = tl.philox_impl(
        block.to(tl.uint32), zero + step.to(tl.uint32), when, whose, key, zero + stream.to(tl.uint32)
    )
    first = out + row.to(tl.int64) * count + block * 4
    left = count - block * 4
    tl.store(first, a.to(tl.int64), left > 0)
    tl.store(first + 1, b.to(tl.int64), left > 1)
    tl.store(first + 2, c.to(tl.int64), left > 2)
    tl.store(first + 3, d.to(tl.int64), left > 3)


class Words(torch.autograd.Function):
    """Of one client [count], of several [n, count], also under `vmap`; nothing to differentiate."""

    @staticmethod
    def forward(seed: Tensor, round: Tensor, client: Tensor, stream: int, step: int, count: int) -> Tensor:
        return _words([seed, round, client], stream, step, count)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, axes: Any, *inputs: Any) -> tuple[Tensor, int]:
        *key, stream, step, count = inputs
        parts = list(zip(key, axes[:3], strict=True))
        most = max(each.dim() - (axis is not None) for each, axis in parts)
        stacked = [each if axis is None else _leading(each.movedim(axis, 0), 1 + most) for each, axis in parts]
        return _words(stacked, stream, step, count), 0


def _leading(tensor: Tensor, dims: int) -> Tensor:
    """The same with so many dimensions, of which the first stays the first."""
    return tensor.reshape(len(tensor), *[1] * (dims - tensor.dim()), *tensor.shape[1:])


def _words(key: list[Tensor], stream: int, step: int, count: int) -> Tensor:
    """`key` is seed, round and client, whose shapes broadcast to the rows of the result [..., count]."""
    rows = torch.broadcast_shapes(*(each.shape for each in key))
    out = torch.empty(*rows, count, dtype=torch.int64, device=key[2].device)
    blocks = triton.cdiv(count, 4)
    size = min(256, triton.next_power_of_2(blocks))
    flat = [each if each.numel() == 1 else each.expand(rows).reshape(-1) for each in key]
    strides = (0 if each.numel() == 1 else each.stride(0) for each in flat)
    grid = (triton.cdiv(blocks, size), rows.numel())
    _philox[grid](*flat, out, *strides, stream, step, count, size, num_warps=max(1, size // 64))
    return out
