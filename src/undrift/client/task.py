"""What one client can compute in one round: batches, gradients, full passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undrift.client.learner import Batch, Learner, Loss
from undrift.core import random, tree
from undrift.core.random import Key, Stream
from undrift.core.tree import Tree
from undrift.core.wide import wide
from undrift.data.augment import Augment

# f(params) -> (value, aux); returns (gradient, value, aux). From the engine: autograd, or `torch.func` under vmap.
Differentiate = Callable[[Callable[[Tree], tuple[Tensor, Any]], Tree], tuple[Tree, Tensor, Any]]
Fetch = Callable[[Tensor, Tensor], Tensor]  # (table, rows [B]) -> table[rows]; supplied by the engine as well


# Random numbers of full passes and of further batches are counted from here, so that they differ from those of steps.
MOST_STEPS = _PASS = 1 << 22
_FURTHER = 1 << 23


class Observation(StrEnum):
    """What a client reports of its local training where diagnostics ask for it; no algorithm sees it."""

    DISPLACEMENT = "displacement"  # the trained model minus the received one, a tree
    GRADIENT_NORMS = "gradient_norms"  # mean, variance and maximum over its steps [3, 1 + layers], the whole first
    FIRST_STEP = "first_step"  # two trees: the gradient of its first step, and what the algorithm added to it


class Slope(NamedTuple):
    gradient: Tree
    loss: Tensor
    buffers: Tree
    changed: Tree = {}  # noqa: RUF012  # as in `Losses`


class Samples(NamedTuple):
    """The rows of the data that form a batch."""

    rows: Tensor  # [B]
    weight: Tensor | None  # [B], 0 where a row only pads; None: no padding


@dataclass(frozen=True)
class Task:
    learner: Learner
    x: Tensor  # the whole federation's samples; a client reads its own rows
    y: Tensor
    batches: Sequence[Samples]  # one per step
    active: Sequence[Tensor | None]  # whether this client takes step j; None: every client does
    everything: Sequence[Samples]  # all of the client's samples, in blocks
    key: Key
    steps: Tensor  # K_i
    samples: Tensor  # n_i
    share: Tensor  # N p_i
    participation: float  # |S| / N
    lr: float | Tensor
    weight_decay: float
    clip: float | None
    augment: Augment | None
    differentiate: Differentiate
    fetch: Fetch
    observe: frozenset[Observation] = frozenset()

    def batch(self, step: int, buffers: Tree, draw: int = 0) -> Batch:
        """The batch of a step; `draw` 1 and 2 are further ones of its size, drawn independently for every step."""
        rows, weight = self.batches[step]
        if draw:
            step = _FURTHER + 2 * step + draw - 1
            rows = self._drawn(Stream.MORE_BATCHES, step, len(rows))
        return self.select(rows, weight, step, buffers)

    def select(self, rows: Tensor, weight: Tensor | None, step: int, buffers: Tree) -> Batch:
        """These rows as the batch of a step."""
        x = self.learner.prepare(self.fetch(self.x, rows))
        if self.augment is not None:
            x = self.augment(x, self.key, step)
        return Batch(x, self.fetch(self.y, rows), weight, key=self.key, step=step, buffers=buffers)

    def gradient(
        self,
        params: Tree,
        batch: Batch,
        loss: Loss | None = None,
        of: Callable[[Tensor], Tensor] | None = None,
    ) -> Slope:
        """Gradient of the mean loss, or of the mean of `of` the per-sample losses; clipped, without weight decay."""
        slope = self._slope(params, batch, loss, of)
        return slope if self.clip is None else slope._replace(gradient=_clipped(slope.gradient, self.clip))

    def _slope(
        self, params: Tree, batch: Batch, loss: Loss | None = None, of: Callable[[Tensor], Tensor] | None = None
    ) -> Slope:
        chosen = loss or self.learner.losses

        def objective(point: Tree) -> tuple[Tensor, tuple[Tree, Tree]]:
            values, buffers, changed = chosen(point, batch)
            return _average(values if of is None else of(values), batch.weight), (buffers, changed)

        gradient, value, (buffers, changed) = self.differentiate(objective, params)
        if self.learner.gradient_hooks:
            gradient = self.learner.hooked(gradient)
        return Slope(gradient, value, buffers, changed)

    def decayed(self, gradient: Tree, params: Tree) -> Tree:
        """With weight decay, which belongs to the objective: g + λ w."""
        return tree.add(gradient, params, self.weight_decay) if self.weight_decay else gradient

    def full_gradient(self, params: Tree, buffers: Tree, share: float = 1.0) -> Slope:
        """Gradient and loss over all of the client's samples, without augmentation, weight decay included.

        With a `share` below one, over so many of them (at least one), drawn anew in every round.
        """
        slope = self.full_pass(params, buffers, share=share)
        return slope._replace(gradient=self.decayed(slope.gradient, params))

    def full_pass(
        self,
        params: Tree,
        buffers: Tree,
        loss: Loss | None = None,
        of: Callable[[Tensor], Tensor] | None = None,
        share: float = 1.0,
    ) -> Slope:
        """The same without weight decay, of any loss, or of the mean of `of` the per-sample losses."""
        gradient, value = tree.zeros(params), self.samples * 0
        blocks, count = (self.everything, self.samples) if share == 1 else self._part(share)
        for number, (rows, weight) in enumerate(blocks):
            x = self.learner.prepare(self.fetch(self.x, rows))
            step = _PASS + number
            batch = Batch(x, self.fetch(self.y, rows), weight, key=self.key, step=step, buffers=buffers)
            slope = self._slope(params, batch, loss, of)
            part = (len(rows) if weight is None else weight.sum()) / count
            gradient, value = tree.add(gradient, slope.gradient, part), value + part * slope.loss
        return Slope(gradient, value, buffers)

    def _drawn(self, stream: Stream, step: int, count: int) -> Tensor:
        """`count` of the client's rows in a random order [count]; where there are too few, padding comes last."""
        everything = torch.cat([rows for rows, _ in self.everything])
        own = self.key._replace(client=self.key.client.view(1, 1))
        size = self.samples.to(torch.int64).view(1)
        return everything[random.permutations(own, stream, step, sizes=size, width=len(everything))[0, :count]]

    def _part(self, share: float) -> tuple[list[Samples], Tensor]:
        """A share of the client's samples in blocks, and how many they are."""
        block = len(self.everything[0].rows)
        most = max(1, round(share * sum(len(rows) for rows, _ in self.everything)))
        rows = self._drawn(Stream.PART, 0, most)
        count = (share * wide(self.samples)).round().clamp_min(1)
        weight = (torch.arange(most, device=rows.device) < count).to(self.samples.dtype)
        parts = zip(rows.split(block), weight.split(block), strict=True)
        return [Samples(*part) for part in parts], count.to(self.samples.dtype)


def _clipped(gradient: Tree, limit: float) -> Tree:
    norm = tree.dot(gradient, gradient).sqrt()
    return tree.scale(gradient, (limit / norm.clamp_min(1e-30)).clamp_max(1))


def _average(values: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return values.mean()
    return (values * weight).sum() / weight.sum().clamp_min(1)
