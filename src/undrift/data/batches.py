"""Which samples a client uses in which step: a function of (seed, round, client) alone.

A `Shape` describes a block of clients before any batch is drawn; it depends on their sizes only. The batches themselves
are drawn on the device, by tensor operations alone, so that a round can be captured and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.core import random
from undrift.core.random import Key, Stream
from undrift.data.federated import FederatedData

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


_MOST_PADDING = 1.5  # work of a padded client, relative to its own, up to which one shape is shared by all


class Shape(NamedTuple):
    """A block of n clients, padded to the largest of them: J steps of B samples."""

    clients: int  # n
    batch: int  # B
    width: int  # M, samples of the largest client
    epochs: int  # permutations of the samples that must be drawn
    full: tuple[bool, ...]  # [J]: every client's batch is full in step j
    all_active: tuple[bool, ...]  # [J]: every client takes step j
    smallest: int  # every client has at least this many samples

    @property
    def steps(self) -> int:
        return len(self.all_active)


def exact(schedule: Schedule, sizes: Ints) -> Shape:
    """The shape of clients of these sizes, padded no further than they need."""
    steps, smallest, width = schedule.step_counts(sizes), int(sizes.min()), int(sizes.max())
    batch = width if schedule.batch_size is None else min(schedule.batch_size, width)
    step, full_batches = np.arange(int(steps.max())), (sizes // batch)[:, None]
    in_epoch = step % -(-sizes // batch)[:, None]  # which batch of its epoch a step takes
    return Shape(
        clients=len(sizes),
        batch=batch,
        width=width,
        epochs=_epochs(schedule, batch, smallest),
        full=tuple(np.all((in_epoch < full_batches) & (step < steps[:, None]), axis=0).tolist()),
        all_active=tuple((step < int(steps.min())).tolist()),
        smallest=smallest,
    )


def padded(schedule: Schedule, sizes: Ints, smallest: int, largest: int) -> Shape:
    """A shape that fits these clients and many others of a federation with clients of these extreme sizes.

    The number of steps is rounded up to about four values per octave, so that a few shapes cover every cohort.
    """
    size = _rounded(int(sizes.max()), largest)
    batch = size if schedule.batch_size is None else min(schedule.batch_size, largest)
    width = min(largest, -(-size // batch) * batch)
    step = np.arange(int(schedule.step_counts(np.array([width]))[0]))
    return Shape(
        clients=len(sizes),
        batch=batch,
        width=width,
        epochs=_epochs(schedule, batch, smallest),
        full=tuple((step < smallest // batch).tolist()),
        all_active=tuple((step < int(schedule.step_counts(np.array([smallest]))[0])).tolist()),
        smallest=smallest,
    )


def shared_shape(schedule: Schedule, smallest: int, largest: int) -> Shape | None:
    """One client's shape that fits every client of a federation; None if padding adds more than half to some."""
    if smallest == largest:
        return exact(schedule, np.array([largest]))
    used = [int(schedule.step_counts(np.array([n]))[0]) * min(schedule.batch_size or n, n) for n in (smallest, largest)]
    return padded(schedule, np.array([largest]), smallest, largest) if used[1] <= _MOST_PADDING * used[0] else None


def _rounded(count: int, most: int) -> int:
    """The next of 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ..., but not above `most`."""
    step = 1 << max(0, (count - 1).bit_length() - 3)
    return min(most, -(-count // step) * step)


def _epochs(schedule: Schedule, batch: int, smallest: int) -> int:
    """How many epochs the client with the fewest samples begins."""
    if schedule.steps is None:
        return schedule.epochs or 1
    return -(-schedule.steps // -(-smallest // batch))


class Plan(NamedTuple):
    """The batches of a block of clients."""

    rows: Tensor  # [n, J, B] rows of the data; padding repeats a client's own rows
    counts: Tensor  # [n, J] samples in every batch, 0 where a client has finished
    everything: Tensor  # [n, M] all rows of every client, padded likewise
    sizes: Tensor  # [n]


class Table(NamedTuple):
    """A federation's samples on a device, and which client has which."""

    x: Tensor
    y: Tensor
    rows: Tensor  # client i's are rows[offsets[i] : offsets[i] + sizes[i]]
    offsets: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, data: FederatedData, device: torch.device) -> Table:
        numbers = (torch.from_numpy(v).to(device) for v in (data.rows, data.offsets, data.sizes))
        return cls(data.x.to(device), data.y.to(device), *numbers)


def plan(
    table: Table,
    *,
    positions: Tensor,
    clients: Tensor,
    shape: Shape,
    schedule: Schedule,
    seed: int | Tensor,
    round: Any,
) -> Plan:
    """The batches of the clients at these `positions` [n] of the table, drawn with the random keys of `clients` [n].

    `seed` may be a tensor [n]; `round` a number or a 0-dimensional tensor.
    """
    device, batch, width = positions.device, shape.batch, shape.width
    sizes = table.sizes[positions]
    own = torch.arange(width, device=device).minimum(sizes[:, None] - 1) + table.offsets[positions][:, None]
    everything = table.rows[own]  # [n, M]

    step = torch.arange(shape.steps, device=device)[None]  # [1, J]
    per_epoch = -(-sizes // batch)[:, None]
    steps = per_epoch * shape.epochs if schedule.steps is None else torch.full_like(per_epoch, schedule.steps)
    if schedule.batch_size is None:
        counts = torch.where(step < steps, sizes[:, None], 0)
        return Plan(everything[:, None].expand(-1, shape.steps, -1), counts, everything, sizes)

    taken = step.minimum(steps - 1)  # padded steps repeat the last one
    epoch, first = taken // per_epoch, taken % per_epoch * batch  # [n, J]
    counts = torch.where(step < steps, (sizes[:, None] - first).clamp_max(batch), 0)

    key = Key(seed[:, None] if isinstance(seed, Tensor) else seed, round, clients[:, None])
    orders = [random.permutations(key, Stream.BATCHES, e, sizes=sizes, width=width) for e in range(shape.epochs)]
    index = (first[:, :, None] + torch.arange(batch, device=device)).minimum(sizes[:, None, None] - 1)  # [n, J, B]
    flat = (epoch[:, :, None] * width + index).flatten(1)
    chosen = torch.stack(orders, dim=1).flatten(1).gather(1, flat)
    return Plan(everything.gather(1, chosen).unflatten(1, (shape.steps, batch)), counts, everything, sizes)
