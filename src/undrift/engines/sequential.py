"""One client at a time, any module, no padding: the engine that all others must agree with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift import tree
from undrift.data.batches import Plan
from undrift.engines.work import FULL_PASS_BLOCK, Outcome, Work
from undrift.protocol import Answer, Mail, Phase, State
from undrift.random import Key
from undrift.task import Samples, Task
from undrift.tree import Tree

_PLANNED_TOGETHER = 64  # clients whose batches are drawn in one go


@dataclass(frozen=True)
class Sequential:
    name: str = "sequential"

    def run(self, phase: Phase, mail: Mail, states: State, work: Work) -> Outcome:
        answers: list[Answer] = []
        with torch.no_grad():
            for start in range(0, len(work.ids), _PLANNED_TOGETHER):
                members = np.arange(start, min(start + _PLANNED_TOGETHER, len(work.ids)))
                plan = work.plan(members)
                for place, member in enumerate(members.tolist()):
                    inbox = mail.shared | tree.row(mail.each, member)
                    answers.append(phase.answer(inbox, tree.row(states, member), _task(work, plan, place, member)))
        return Outcome(
            tree.stack([a.reply for a in answers]),
            tree.stack([a.state for a in answers]),
            tree.stack([a.report for a in answers]),
        )


def _task(work: Work, plan: Plan, place: int, member: int) -> Task:
    counts = [int(c) for c in plan.counts[place] if c]
    size = int(plan.sizes[place])
    everything = plan.everything[place, :size].split(FULL_PASS_BLOCK)
    learner = work.learner

    def number(value: int) -> Tensor:
        return torch.tensor(value, dtype=learner.dtype, device=learner.device)

    return Task(
        learner=learner,
        x=work.x,
        y=work.y,
        batches=[Samples(plan.rows[place, j, :count], None) for j, count in enumerate(counts)],
        active=[None] * len(counts),
        everything=[Samples(rows, None) for rows in everything],
        key=Key(work.seed, work.round, torch.tensor(int(work.ids[member]), device=learner.device)),
        steps=number(len(counts)),
        samples=number(size),
        share=work.shares[member],
        participation=work.participation,
        lr=work.lr,
        weight_decay=work.weight_decay,
        clip=work.clip,
        augment=work.augment,
        differentiate=autograd,
        fetch=fetch,
    )


def fetch(table: Tensor, rows: Tensor) -> Tensor:
    return table.index_select(0, rows)


def autograd(f: Callable[[Tree], tuple[Tensor, Any]], params: Tree) -> tuple[Tree, Tensor, Any]:
    """Gradient, value and auxiliary output by the autograd tape, which costs less per call than `torch.func`."""
    points = {k: v.detach().requires_grad_() for k, v in params.items()}
    with torch.enable_grad():
        value, aux = f(points)
    grads = torch.autograd.grad(value, list(points.values()), allow_unused=True)
    zero_filled = (torch.zeros_like(p) if g is None else g for g, p in zip(grads, points.values(), strict=True))
    return dict(zip(points, zero_filled, strict=True)), value.detach(), aux
