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
        return _words(key, stream, step, count), 0


def _words(key: list[Tensor], stream: int, step: int, count: int) -> Tensor:
    """`key` is seed, round and client, each a number or [n]."""
    rows = torch.broadcast_shapes(*(each.shape for each in key))
    out = torch.empty(*rows, count, dtype=torch.int64, device=key[2].device)
    blocks = triton.cdiv(count, 4)
    size = min(256, triton.next_power_of_2(blocks))
    strides = (each.stride(0) if each.dim() else 0 for each in key)
    grid = (triton.cdiv(blocks, size), rows.numel())
    _philox[grid](*key, out, *strides, stream, step, count, size, num_warps=max(1, size // 64))
    return out
