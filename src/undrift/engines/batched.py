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

from undrift import tree
from undrift.engines.work import FULL_PASS_BLOCK, Outcome, Work
from undrift.protocol import Answer, Mail, Message, Phase, State
from undrift.random import Key
from undrift.task import Samples, Task
from undrift.tree import Tree


@dataclass(frozen=True)
class Batched:
    chunk: int  # clients trained together
    name: str = "batched"

    def run(self, phase: Phase, mail: Mail, states: State, work: Work) -> Outcome:
        sizes = work.data.sizes[work.ids]
        order = np.lexsort((sizes, work.schedule.step_counts(sizes)))
        outcomes: list[Answer] = []
        with torch.no_grad():
            for start in range(0, len(order), self.chunk):
                outcomes.append(_answer_together(phase, mail, states, work, order[start : start + self.chunk]))
        restore = torch.from_numpy(np.argsort(order)).to(work.learner.device)
        sorted_already = bool((order == np.arange(len(order))).all())
        joined = [tree.concat(list(parts)) for parts in zip(*outcomes, strict=True)]
        return Outcome(*(part if sorted_already else tree.row(part, restore) for part in joined))


def _answer_together(
    phase: Phase, mail: Mail, states: State, work: Work, members: np.ndarray[Any, np.dtype[np.int64]]
) -> Answer:
    plan, learner = work.plan(members), work.learner
    length, width = plan.rows.shape[1:]
    whole = [bool((column == width).all()) for column in plan.counts.T]  # [J]: no padded sample in step j
    certain = [bool((column > 0).all()) for column in plan.counts.T]  # [J]: everybody takes step j
    blocks = plan.everything.split(FULL_PASS_BLOCK, dim=1)
    smallest, largest = int(plan.sizes.min()), int(plan.sizes.max())
    filled = [smallest == largest or (i + 1) * FULL_PASS_BLOCK <= smallest for i in range(len(blocks))]
    place = torch.from_numpy(members).to(learner.device)

    def on_device(values: Any) -> Tensor:
        return torch.as_tensor(values, device=learner.device)

    def answer(
        each: Message,
        state: State,
        client: Tensor,
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
            x=work.x,
            y=work.y,
            batches=[Samples(rows[j], None if whole[j] else weight(rows[j], counts[j])) for j in range(length)],
            active=[None if certain[j] else counts[j] > 0 for j in range(length)],
            everything=[
                Samples(part, None if filled[i] else weight(part, size - i * FULL_PASS_BLOCK))
                for i, part in enumerate(parts)
            ],
            key=Key(work.seed, work.round, client),
            steps=(counts > 0).sum().to(learner.dtype),
            samples=size.to(learner.dtype),
            share=share,
            participation=work.participation,
            lr=work.lr,
            weight_decay=work.weight_decay,
            clip=work.clip,
            augment=work.augment,
            differentiate=functional,
            fetch=fetch,
        )
        return phase.answer(mail.shared | each, state, task)

    reply, state, report = vmap(answer)(
        tree.row(mail.each, place),
        tree.row(states, place),
        on_device(work.ids[members]),
        plan.rows,
        on_device(plan.counts),
        list(blocks),
        on_device(plan.sizes),
        work.shares[place],
    )
    return Answer(reply, state, report)


def fetch(table: Tensor, rows: Tensor) -> Tensor:
    """Rows of a table that all clients share: under `vmap` an embedding is several times faster than indexing."""
    return torch.embedding(table.reshape(len(table), -1), rows).reshape(len(rows), *table.shape[1:])


def functional(f: Callable[[Tree], tuple[Tensor, Any]], params: Tree) -> tuple[Tree, Tensor, Any]:
    """Gradient, value and auxiliary output by `torch.func`, which composes with `vmap`."""
    grads, (value, aux) = grad_and_value(f, has_aux=True)(params)
    return grads, value, aux
