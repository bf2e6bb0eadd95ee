"""Which samples a client uses in which step: a function of (seed, round, client) alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift import random
from undrift.data.federated import FederatedData
from undrift.random import Key, Stream

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Schedule:
    """How much a client trains: `epochs` passes or exactly `steps` steps, in batches of `batch_size` (None: all)."""

    batch_size: int | None
    epochs: int | None
    steps: int | None

    def step_counts(self, sizes: Ints) -> Ints:
        """K_i for clients of these sizes; the last short batch is kept."""
        if self.steps is not None:
            return np.full(len(sizes), self.steps, dtype=np.int64)
        return (self.epochs or 1) * self._per_epoch(sizes)

    def _per_epoch(self, sizes: Ints) -> Ints:
        return np.ones_like(sizes) if self.batch_size is None else -(-sizes // self.batch_size)


@dataclass(frozen=True)
class Plan:
    """The batches of a block of n clients, padded to its longest: J steps of B samples."""

    rows: Tensor  # [n, J, B] rows of the data; padding repeats a client's own rows
    counts: Ints  # [n, J] samples in every batch, 0 where a client has finished
    everything: Tensor  # [n, M] all rows of every client, padded likewise
    sizes: Ints  # [n]


def plan(
    data: FederatedData,
    ids: Ints,
    schedule: Schedule,
    seed: int,
    round: int,
    device: torch.device,
) -> Plan:
    sizes = data.sizes[ids]
    width, steps = int(sizes.max()), schedule.step_counts(sizes)
    places = np.minimum(np.arange(width), sizes[:, None] - 1) + data.offsets[ids][:, None]
    everything = torch.from_numpy(data.rows[places]).to(device)  # [n, M]

    length = int(steps.max())
    turn = np.arange(length)[None]  # [1, J]
    if schedule.batch_size is None:
        counts = np.where(turn < steps[:, None], sizes[:, None], 0)
        return Plan(everything[:, None].expand(-1, length, -1), counts, everything, sizes)

    batch = min(schedule.batch_size, width)
    per_epoch = -(-sizes // batch)[:, None]
    taken = np.minimum(turn, steps[:, None] - 1)  # padded steps repeat the last one
    epoch, first = taken // per_epoch, taken % per_epoch * batch  # [n, J]
    counts = np.where(turn < steps[:, None], np.minimum(batch, sizes[:, None] - first), 0)

    clients = torch.from_numpy(ids).to(device)[:, None]
    on_device = torch.from_numpy(sizes).to(device)
    orders = torch.stack(
        [
            random.permutations(Key(seed, round, clients), Stream.BATCHES, e, on_device, width)
            for e in range(int(epoch.max()) + 1)
        ],
        dim=1,
    )  # [n, E, M]
    place = np.minimum(first[:, :, None] + np.arange(batch), sizes[:, None, None] - 1)  # [n, J, B]
    flat = torch.from_numpy(epoch[:, :, None] * width + place).to(device).flatten(1)
    chosen = orders.flatten(1).gather(1, flat)
    return Plan(everything.gather(1, chosen).unflatten(1, (length, batch)), counts, everything, sizes)
