"""Random numbers that depend on (seed, round, client) and on nothing else.

A counter-based generator, Philox4x32-10 (Salmon et al., SC 2011), evaluated with ordinary tensor operations: the same
bits on a CPU and on a GPU, for one client alone and for a thousand under `vmap`, in any order. Words are 32-bit numbers
held in int64, which wraps around the same way everywhere.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.core.log import notice
from undrift.core.wide import wide

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
SEED_LIMIT = 2**32


class Stream(IntEnum):
    """Independent uses of one seed; extra passes over the data must not disturb the order of batches."""

    BATCHES = 1
    COHORT = 2
    DROPOUT = 3
    AUGMENT = 4
    INITIAL = 6
    MORE_BATCHES = 7
    PART = 8
    GROUPS = 9
    OWN_AUGMENT = 10
    EVALUATION = 11
    CODEC = 12
    NOISE = 13
    ATTACK = 14
    FAULTS = 16


class Key(NamedTuple):
    """Whose numbers: a client of a round. Tensors are 0-dimensional, batched under `vmap`, or [n, 1]."""

    seed: int | Tensor
    round: int | Tensor
    client: Tensor


def philox(counter: tuple[Any, ...], key: tuple[Any, int]) -> tuple[Any, ...]:
    """Ten rounds of Philox4x32: four words from four counter words (which broadcast) and two key words.

    Words are numbers, tensors of int64 or arrays of uint64.
    """
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, c = ((right >> 32) ^ b ^ k0) & _WORD, ((left >> 32) ^ d ^ k1) & _WORD
        # The upper halves of b and d are cut off where they are used; a number must fit into int64, though.
        b, d = (v & _WORD if isinstance(v, int) else v for v in (right, left))
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return a, b & _WORD, c, d & _WORD


def bits(key: Key, stream: int, step: int, count: int) -> Tensor:
    """`count` 32-bit words (int64) [..., count]; a longer draw begins with a shorter one."""
    if key.client.is_cuda and (kernel := _kernel(key.client.device)) is not None:
        return by_kernel(kernel, key, stream, step, count)
    blocks = torch.arange((count + 3) // 4, device=key.client.device)
    words = philox((blocks, step & _WORD, key.round, key.client), (key.seed, int(stream)))
    return torch.stack(torch.broadcast_tensors(*words), dim=-1).flatten(-2)[..., :count]


Kernel = Callable[..., Tensor]  # (seed, round, client, stream, step, count): the words of `bits`


@cache
def _kernel(device: torch.device) -> Kernel | None:
    """What draws in one kernel on a GPU; None where Triton is missing or does not work."""
    if importlib.util.find_spec("triton") is None:
        return None
    key = (torch.full((), number, device=device) for number in (3, 5, 7))
    try:
        from undrift.core.random_kernel import Words

        kernel: Kernel = Words.apply
        if kernel(*key, 1, 2, 9).tolist() != _on_host((3, 5, 7), 2, 9, Stream.BATCHES).tolist():
            raise ValueError("the kernel draws other numbers")
    except Exception as error:  # compilers can fail in many ways
        notice(f"random numbers take longer than they could on {device}: {type(error).__name__}: {error}")
        return None
    return kernel


def by_kernel(kernel: Kernel, key: Key, stream: int, step: int, count: int) -> Tensor:
    """`bits`, by the kernel, which takes a number or [n] for each part of the key."""
    parts = [
        part.reshape(part.shape[:-1]) if isinstance(part, Tensor) else torch.full_like(key.client.flatten()[0], part)
        for part in key
    ]
    return kernel(*parts, int(stream), step & _WORD, count)


def uniform(key: Key, stream: int, step: int, shape: tuple[int, ...]) -> Tensor:
    """Numbers in [0, 1) with 24 bits, exact in float32 [..., *shape]."""
    words = bits(key, stream, step, math.prod(shape))
    numbers = (words >> 8).to(torch.float32) * 2.0**-24
    return numbers.reshape((*words.shape[:-1], *shape))


def normal(key: Key, stream: int, step: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers by Box and Muller [..., *shape]."""
    count = math.prod(shape)
    pairs = wide(uniform(key, stream, step, (count, 2)))
    radius = torch.sqrt(-2.0 * torch.log1p(-pairs[..., 0]))
    numbers = radius * torch.cos(2.0 * math.pi * pairs[..., 1])
    # Devices may differ in the last bit of a logarithm; rounding to float32 hides it.
    return numbers.float().reshape((*pairs.shape[:-2], *shape))


def permutations(key: Key, stream: Stream, step: int, sizes: Tensor, width: int) -> Tensor:
    """Row i: a permutation of ``range(sizes[i])``, then the rest of ``range(width)`` [n, width].

    `key.client` is [n, 1]. Positions break ties, so that sorting is exact on every device; a row does not depend on
    `width`.
    """
    places = torch.arange(width, device=sizes.device)
    draws = bits(key, stream, step, width) << 31 | places
    return torch.where(places < sizes[:, None], draws, torch.iinfo(torch.int64).max).argsort(dim=1, stable=True)


def sample(seed: int, round: int, population: int, count: int, again: int = 0) -> Tensor:
    """`count` different clients of `population`, in increasing order [count]; the cost depends on `count` only.

    `again` counts further draws for the same round.
    """
    if 2 * count >= population:  # so many that sorting everybody is cheapest
        draws = _on_host((seed, round, again), 0, population) << 31 | np.arange(population)
        return torch.from_numpy(np.sort(draws.argsort()[:count]))
    chosen: dict[int, None] = {}
    attempt = 0
    while len(chosen) < count:
        words = _on_host((seed, round, again), attempt, 2 * count)
        for index in ((words * population) >> 32).tolist():
            if len(chosen) < count:
                chosen.setdefault(index)
        attempt += 1
    return torch.tensor(sorted(chosen), dtype=torch.int64)


def _on_host(
    key: tuple[int, int, int], step: int, count: int, stream: Stream = Stream.COHORT
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """What `bits` would draw for the client that is the last of `key`; NumPy takes less time to do little."""
    seed, round, client = key
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    words = philox((blocks, step, round, client), (seed, int(stream)))
    return np.stack(np.broadcast_arrays(*words), axis=-1).reshape(-1)[:count].astype(np.int64)
