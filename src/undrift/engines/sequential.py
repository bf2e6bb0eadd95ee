"""One client at a time, any module, no padding: the engine that all others must agree with."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift import tree
from undrift.data.batches import Plan
from undrift.engines.work import FULL_PASS_BLOCK, Outcome, Work
from undrift.learner import Learner
from undrift.protocol import Answer, Mail, Phase, State
from undrift.random import Key
from undrift.task import Samples, Task
from undrift.tree import Tree

_PLANNED_TOGETHER = 64  # clients whose batches are drawn in one go


@dataclass(frozen=True)
class Sequential:
    """`workers` clients are trained side by side, each by a thread that has one core.

    PyTorch lets go of Python's lock while it computes, and two clients on a core each are faster than one on two.
    """

    workers: int = 1
    name: str = "sequential"

    def run(self, phase: Phase, mail: Mail, states: State, work: Work) -> Outcome:
        answers: list[Answer] = []
        for start in range(0, len(work.ids), _PLANNED_TOGETHER):
            members = np.arange(start, min(start + _PLANNED_TOGETHER, len(work.ids)))
            plan = work.plan(members)

            def answer(place: int, learner: Learner, plan: Plan = plan, start: int = start) -> Answer:
                member = start + place
                inbox = mail.shared | tree.row(mail.each, member)
                with torch.no_grad():
                    return phase.answer(inbox, tree.row(states, member), _task(work, learner, plan, place, member))

            answers += self._all(answer, len(members), work.learner)
        return Outcome(
            tree.stack([a.reply for a in answers]),
            tree.stack([a.state for a in answers]),
            tree.stack([a.report for a in answers]),
        )

    def _all(self, answer: Callable[[int, Learner], Answer], count: int, learner: Learner) -> list[Answer]:
        """The answers of `count` clients, in their order."""
        if self.workers == 1 or count < self.workers:
            return [answer(place, learner) for place in range(count)]
        idle: SimpleQueue[Learner] = SimpleQueue()
        for number in range(self.workers):
            idle.put(learner.replica(number))

        def work(place: int) -> Answer:
            mine = idle.get()
            try:
                return answer(place, mine)
            finally:
                idle.put(mine)

        with ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, range(count)))


def _task(work: Work, learner: Learner, plan: Plan, place: int, member: int) -> Task:
    counts = [int(c) for c in plan.counts[place] if c]
    size = int(plan.sizes[place])
    everything = plan.everything[place, :size].split(FULL_PASS_BLOCK)

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
