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
from undrift.client.task import Samples
from undrift.core import tree
from undrift.core.tree import Tree
from undrift.data.batches import Plan, Schedule, exact
from undrift.engines import allocation
from undrift.engines.determinism import threads
from undrift.engines.work import (
    FULL_PASS_BLOCK,
    Arrangement,
    Calculus,
    ClientPart,
    Ints,
    Outcome,
    Rows,
    States,
    Work,
    make_task,
    of_clients,
)
from undrift.protocol import Mail, Phase

_PLANNED_TOGETHER = 64  # clients whose batches are drawn in one go
# Bytes of a model whose copies, freed by threads that end, should not stay with the process when the server computes.
_LARGE = 1 << 24


@dataclass(frozen=True)
class Sequential:
    """`workers` clients are trained side by side, each by a thread that has one core, or `cores` of them.

    PyTorch releases Python's lock while it computes, and two clients on a core each are faster than one on two. As the
    bits of a client depend on its cores, these are part of the engine's setting, and not what happens to be free; all
    else is computed on one core.
    """

    workers: int = 1
    cores: int = 1
    name: str = "sequential"
    replayed: bool = False
    compiled: bool = False

    @property
    def setting(self) -> str:
        return self.name if self.cores == 1 else f"{self.name}:{self.cores}"

    @property
    def threads(self) -> int | None:
        return 1

    def arrange(self, schedule: Schedule, sizes: Ints, extremes: tuple[int, int]) -> Arrangement:
        blocks = (sizes[start : start + _PLANNED_TOGETHER] for start in range(0, len(sizes), _PLANNED_TOGETHER))
        return Arrangement(tuple(exact(schedule, block) for block in blocks), None)

    def run(self, phase: Phase, mail: Mail, states: States, work: Work) -> Outcome:
        count = len(work.ids)
        replies, after, reports = Rows(count), states.successor(count), Rows(count)
        large = tree.nbytes(work.training.learner.parameters) > _LARGE
        if large:
            allocation.share_freed_memory()
        for members, shape, plan in work.plans():
            block = _Block(work, plan, torch.arange(len(work.ids))[members].tolist())

            def answer(number: int, learner: Learner, block: _Block = block) -> None:
                member = block.members[number]
                inbox = mail.shared | tree.row(mail.each, member)
                task = make_task(work, learner, block.client(number, learner), _AUTOGRAD)
                with torch.no_grad():
                    reply, state, report = phase.answer(inbox, states.read(member), task)
                    replies.put(member, reply)
                    after.put(member, state)
                    reports.put(member, report)

            self.spread(answer, shape.clients, work.training.learner, self.cores)
            if large:
                allocation.return_freed_memory()
        return Outcome(replies.nest, after.states, reports.nest)

    def spread(self, task: Callable[[int, Learner], None], count: int, learner: Learner, cores: int = 1) -> None:
        """Calls ``task(0)``, ``task(1)``, ... ``task(count - 1)``, each with a learner of its own and so many cores."""
        workers = min(self.workers, count)
        if workers == 1:
            with threads(cores):
                for number in range(count):
                    task(number, learner.alone)
            return
        idle: SimpleQueue[Learner] = SimpleQueue()
        for worker in range(workers):
            idle.put(learner.replica(worker))

        def work(number: int) -> None:
            mine = idle.get()
            try:
                task(number, mine)
            finally:
                idle.put(mine)

        # A thread that sets its number of threads also sets that of threads yet to be started.
        with threads(cores), ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(cores,)) as pool:
            for _ in pool.map(work, range(count)):  # raises what a task raised
                pass


class _Block:
    """Clients whose batches were drawn together; sizes are known to the host, so that nothing needs padding."""

    def __init__(self, work: Work, plan: Plan, members: list[int]) -> None:
        self.members = members  # positions in the cohort
        self._work, self._plan = work, plan
        self._counts, self._sizes = plan.counts.tolist(), plan.sizes.tolist()

    def client(self, number: int, learner: Learner) -> ClientPart:
        work, plan, member = self._work, self._plan, self.members[number]
        counts = [count for count in self._counts[number] if count]
        size = self._sizes[number]

        def scalar(value: int) -> Tensor:
            return torch.tensor(value, dtype=learner.dtype, device=learner.device)

        return ClientPart(
            id=work.ids[member],
            seed=of_clients(work.seed, member),
            lr=of_clients(work.lr, member),
            share=work.shares[member],
            batches=[Samples(plan.rows[number, j, :count], None) for j, count in enumerate(counts)],
            active=[None] * len(counts),
            everything=[Samples(rows, None) for rows in plan.everything[number, :size].split(FULL_PASS_BLOCK)],
            steps=scalar(len(counts)),
            samples=scalar(size),
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


_AUTOGRAD = Calculus(autograd, fetch)
