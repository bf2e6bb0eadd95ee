"""One client at a time, any module, no padding: the engine that all others must agree with."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from undrift.client.learner import Learner
from undrift.client.task import Samples, Task
from undrift.core import tree
from undrift.core.random import Key
from undrift.core.tree import Tree
from undrift.data.batches import Plan, Schedule, exact
from undrift.engines.work import FULL_PASS_BLOCK, Arrangement, Ints, Outcome, Work
from undrift.protocol import Answer, Mail, Phase, State

_PLANNED_TOGETHER = 64  # clients whose batches are drawn in one go


@dataclass(frozen=True)
class Sequential:
    """`workers` clients are trained side by side, each by a thread that has one core; fewer clients share the cores.

    PyTorch lets go of Python's lock while it computes, and two clients on a core each are faster than one on two.
    """

    workers: int = 1
    name: str = "sequential"
    replayed: bool = False
    compiled: bool = False

    def arrange(self, schedule: Schedule, sizes: Ints, extremes: tuple[int, int]) -> Arrangement:
        blocks = (sizes[start : start + _PLANNED_TOGETHER] for start in range(0, len(sizes), _PLANNED_TOGETHER))
        return Arrangement(tuple(exact(schedule, block) for block in blocks), None)

    def run(self, phase: Phase, mail: Mail, states: State, work: Work) -> Outcome:
        answers: list[Answer] = []
        for members, shape, plan in work.plans():
            clients = torch.arange(len(work.ids))[members].tolist()
            counts, sizes = plan.counts.tolist(), plan.sizes.tolist()

            def answer(
                place: int,
                learner: Learner,
                clients: list[int] = clients,
                counts: list[list[int]] = counts,
                sizes: list[int] = sizes,
                plan: Plan = plan,
            ) -> Answer:
                member = clients[place]
                inbox = mail.shared | tree.row(mail.each, member)
                task = _task(work, learner, plan, place, member, [c for c in counts[place] if c], sizes[place])
                with torch.no_grad():
                    return phase.answer(inbox, tree.row(states, member), task)

            answers += self._all(answer, shape.clients, work.learner)
        return Outcome(
            tree.stack([a.reply for a in answers]),
            tree.stack([a.state for a in answers]),
            tree.stack([a.report for a in answers]),
        )

    def _all(self, answer: Callable[[int, Learner], Answer], count: int, learner: Learner) -> list[Answer]:
        """The answers of `count` clients, in their order."""
        workers = min(self.workers, count)
        if workers == 1:
            return [answer(place, learner.alone) for place in range(count)]
        idle: SimpleQueue[Learner] = SimpleQueue()
        for number in range(workers):
            idle.put(learner.replica(number))

        def work(place: int) -> Answer:
            mine = idle.get()
            try:
                return answer(place, mine)
            finally:
                idle.put(mine)

        cores = self.workers // workers
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(cores,)) as pool:
            return list(pool.map(work, range(count)))


def _task(work: Work, learner: Learner, plan: Plan, place: int, member: int, counts: list[int], size: int) -> Task:
    everything = plan.everything[place, :size].split(FULL_PASS_BLOCK)

    def number(value: int) -> Tensor:
        return torch.tensor(value, dtype=learner.dtype, device=learner.device)

    return Task(
        learner=learner,
        x=work.table.x,
        y=work.table.y,
        batches=[Samples(plan.rows[place, j, :count], None) for j, count in enumerate(counts)],
        active=[None] * len(counts),
        everything=[Samples(rows, None) for rows in everything],
        key=Key(work.seed[member] if isinstance(work.seed, Tensor) else work.seed, work.round, work.ids[member]),
        steps=number(len(counts)),
        samples=number(size),
        share=work.shares[member],
        participation=work.participation,
        lr=work.lr[member] if isinstance(work.lr, Tensor) else work.lr,
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
