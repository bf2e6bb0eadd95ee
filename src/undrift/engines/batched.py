"""All clients of the cohort at once, under `torch.func.vmap`, in chunks that bound memory.

Clients of unequal size are padded to the longest of their chunk: padded samples have weight zero, padded steps change
nothing. Clients are sorted by their number of steps first, so that there is little to pad.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from undrift.accelerate import convolution
from undrift.client.task import Samples, Task
from undrift.core import tree
from undrift.core.random import Key
from undrift.core.tree import Tree
from undrift.data.batches import Plan, Schedule, Shape, exact, padded, shared_shape
from undrift.engines.work import FULL_PASS_BLOCK, Arrangement, Ints, Outcome, Work
from undrift.protocol import Answer, Mail, Message, Phase, State


@dataclass(frozen=True)
class Batched:
    chunk: int  # clients trained together
    replayed: bool = False  # rounds are captured and replayed, so that the fewer shapes, the better
    convolutions: bool = False  # the model's convolutions are our own
    compiled: bool = False

    @property
    def name(self) -> str:
        return "compiled" if self.compiled else "batched"

    def arrange(self, schedule: Schedule, sizes: Ints, extremes: tuple[int, int]) -> Arrangement:
        if self.compiled and (shape := shared_shape(schedule, *extremes)) is not None:
            counts = (min(self.chunk, len(sizes) - start) for start in range(0, len(sizes), self.chunk))
            return Arrangement(tuple(shape._replace(clients=count) for count in counts), None)
        order = np.lexsort((sizes, schedule.step_counts(sizes)))
        as_they_come = bool((order == np.arange(len(order))).all())
        chunk = self._even_chunk(schedule, sizes) if self.replayed else self.chunk
        blocks = [sizes[order[start : start + chunk]] for start in range(0, len(order), chunk)]
        if self.replayed and extremes[0] < extremes[1]:
            return Arrangement(tuple(padded(schedule, block, *extremes) for block in blocks), order)
        return Arrangement(tuple(exact(schedule, block) for block in blocks), None if as_they_come else order)

    def _even_chunk(self, schedule: Schedule, sizes: Ints) -> int:
        """Clients of a block: fewer than memory allows where the smaller ones would otherwise wait for the largest."""
        steps, count = schedule.step_counts(sizes), len(sizes)
        waste = int(steps.max()) * count / int(steps.sum())
        blocks = 1 if waste < 1.25 else max(1, min(4, count // 4))
        return min(self.chunk, -(-count // blocks))

    def run(self, phase: Phase, mail: Mail, states: State, work: Work) -> Outcome:
        with torch.no_grad(), convolution.together(self.convolutions):
            answers = [_answer_together(phase, mail, states, work, *block) for block in work.plans()]
            joined = [tree.concat(list(parts)) for parts in zip(*answers, strict=True)]
            if work.order is None:
                return Outcome(*joined)
            restore = work.order.argsort()
            return Outcome(*(tree.row(part, restore) for part in joined))


def _answer_together(
    phase: Phase, mail: Mail, states: State, work: Work, members: Tensor | slice, shape: Shape, plan: Plan
) -> Answer:
    learner = work.learner
    blocks = plan.everything.split(FULL_PASS_BLOCK, dim=1)
    same = shape.smallest == shape.width
    filled = [same or (i + 1) * FULL_PASS_BLOCK <= shape.smallest for i in range(len(blocks))]
    seed = work.seed[members] if isinstance(work.seed, Tensor) else work.seed
    lr = work.lr[members] if isinstance(work.lr, Tensor) else work.lr

    def answer(
        each: Message,
        state: State,
        client: Tensor,
        seed: int | Tensor,
        lr: float | Tensor,
        rows: Tensor,
        counts: Tensor,
        parts: list[Tensor],
        size: Tensor,
        share: Tensor,
    ) -> Answer:
        def weight(of: Tensor, count: Tensor) -> Tensor:
            return (torch.arange(len(of), device=of.device) < count).to(learner.dtype)

        task = Task(
            learner=learner,
            x=work.table.x,
            y=work.table.y,
            batches=[
                Samples(rows[j], None if full else weight(rows[j], counts[j])) for j, full in enumerate(shape.full)
            ],
            active=[None if active else counts[j] > 0 for j, active in enumerate(shape.all_active)],
            everything=[
                Samples(part, None if filled[i] else weight(part, size - i * FULL_PASS_BLOCK))
                for i, part in enumerate(parts)
            ],
            key=Key(seed, work.round, client),
            steps=(counts > 0).sum().to(learner.dtype),
            samples=size.to(learner.dtype),
            share=share,
            participation=work.participation,
            lr=lr,
            weight_decay=work.weight_decay,
            clip=work.clip,
            augment=work.augment,
            differentiate=functional,
            fetch=fetch,
        )
        return phase.answer(mail.shared | each, state, task)

    given = (
        tree.row(mail.each, members),
        tree.row(states, members),
        work.ids[members],
        seed,
        lr,
        plan.rows,
        plan.counts,
        list(blocks),
        plan.sizes,
        work.shares[members],
    )
    axes = tuple(None if isinstance(part, int | float) else 0 for part in given)
    return Answer(*vmap(answer, in_dims=axes)(*given))


def fetch(table: Tensor, rows: Tensor) -> Tensor:
    """Rows of a table that all clients share: under `vmap` an embedding is several times faster than indexing."""
    return torch.embedding(table.reshape(len(table), -1), rows).reshape(len(rows), *table.shape[1:])


def functional(f: Callable[[Tree], tuple[Tensor, Any]], params: Tree) -> tuple[Tree, Tensor, Any]:
    """Gradient, value and auxiliary output by `torch.func`, which composes with `vmap`."""
    grads, (value, aux) = grad_and_value(f, has_aux=True)(params)
    return grads, value, aux
