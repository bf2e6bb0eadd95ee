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
from undrift.client.evaluate import one_by_one
from undrift.client.learner import Learner
from undrift.client.task import Samples
from undrift.core import tree
from undrift.core.tree import Nest, Tree
from undrift.data.batches import Plan, Schedule, Shape, exact, padded, shared_shape
from undrift.engines.work import (
    FULL_PASS_BLOCK,
    Arrangement,
    Calculus,
    ClientPart,
    Ints,
    Outcome,
    Stacked,
    States,
    Work,
    make_task,
    of_clients,
)
from undrift.protocol import Answer, Mail, Message, Phase

_LARGEST_BLOCK = 1024  # samples of a client in a block of a full pass; more would save no time
# Floating-point operations of a gradient, with which its kernels take longer to run than to launch: where rounds are
# replayed, and where they are run step by step (5 ms on the host, with convolutions that reach 10 TFLOP/s).
_BUSY, _BUSY_LAUNCHED = 10e9, 50e9
_MOST_BLOCKS = 4  # of a cohort by size, of at least so many clients each; every block has kernels of its own
_WORTH_BLOCKS = 1.25  # times the work of the best division, up to which fewer blocks are taken


@dataclass(frozen=True)
class Batched:
    chunk: int  # clients trained together
    replayed: bool = False  # rounds are captured and replayed, so that the fewer shapes, the better
    convolutions: bool = False  # the model's convolutions are our own kernels
    compiled: bool = False
    full_pass_samples: int = 0  # of all clients together, that a block of a full pass has room for; 0: small blocks
    batch: int = 0  # samples of a client's step
    flops: float = 0.0  # floating-point operations of a gradient, for every sample
    passes: float = 0.0  # gradients over all of a client's samples in a round, besides its steps
    launched: bool = False  # rounds are run step by step all the same

    @property
    def name(self) -> str:
        return "compiled" if self.compiled else "batched"

    @property
    def setting(self) -> str:
        return f"{self.name}:{self.chunk}"

    @property
    def workers(self) -> int:
        return 1

    @property
    def threads(self) -> int | None:
        return None

    def arrange(self, schedule: Schedule, sizes: Ints, extremes: tuple[int, int]) -> Arrangement:
        if self.compiled and (shape := shared_shape(schedule, *extremes)) is not None:
            counts = (min(self.chunk, len(sizes) - start) for start in range(0, len(sizes), self.chunk))
            return Arrangement(tuple(shape._replace(clients=count) for count in counts), None)
        order = np.lexsort((sizes, schedule.step_counts(sizes)))
        as_they_come = bool((order == np.arange(len(order))).all())
        chunk = self._even_chunk(schedule, sizes[order]) if self.replayed else self.chunk
        blocks = [sizes[order[start : start + chunk]] for start in range(0, len(order), chunk)]
        if self.replayed and extremes[0] < extremes[1]:
            return Arrangement(tuple(padded(schedule, block, *extremes) for block in blocks), order)
        return Arrangement(tuple(exact(schedule, block) for block in blocks), None if as_they_come else order)

    def _even_chunk(self, schedule: Schedule, sizes: Ints) -> int:
        """Clients of a block, which are sorted by size: fewer than memory allows where small ones would otherwise wait
        for the largest, in their steps or in full passes over all of their samples.

        Steps that leave a GPU idle cost the same however many clients take them, so that they are taken together.
        """
        count = len(sizes)
        chunks = [-(-count // blocks) for blocks in range(1, min(_MOST_BLOCKS, count // _MOST_BLOCKS) + 1)] or [count]
        work = {chunk: self._work(schedule, sizes, chunk) for chunk in chunks}
        enough = next(chunk for chunk in chunks if work[chunk] <= _WORTH_BLOCKS * min(work.values()))
        return min(self.chunk, enough)

    def _work(self, schedule: Schedule, sizes: Ints, chunk: int) -> float:
        """Floating-point operations of a round in such blocks; in idle times, those that a GPU could have done."""
        total, least = 0.0, _BUSY_LAUNCHED if self.launched else _BUSY
        for start in range(0, len(sizes), chunk):
            block = sizes[start : start + chunk]
            count, width, steps = len(block), int(block.max()), int(schedule.step_counts(block).max())
            total += steps * max(least, count * self.batch * self.flops)
            gradients = -(-width // self._full_pass_block(count))
            total += self.passes * max(gradients * least, count * width * self.flops)
        return total

    def run(self, phase: Phase, mail: Mail, states: States, work: Work) -> Outcome:
        with torch.no_grad(), convolution.for_many_clients(self.convolutions):
            answers = []
            for members, shape, plan in work.plans():
                block = _Block(work, shape, self._full_pass_block(shape.clients))
                given = block.inputs(members, plan)
                given |= {"mail": tree.row(mail.each, members), "state": states.read(members)}
                answers.append(_answer_together(phase, mail.shared, block, given))
            replies, after, reports = (tree.concat(list(parts)) for parts in zip(*answers, strict=True))
            if work.order is not None:
                restore = work.order.argsort()
                replies, after, reports = (tree.row(part, restore) for part in (replies, after, reports))
            return Outcome(replies, Stacked(after), reports)

    def _full_pass_block(self, clients: int) -> int:
        """Samples of a client in a block of a full pass: a power of two, so that few shapes occur."""
        room = min(_LARGEST_BLOCK, self.full_pass_samples // clients)
        return max(FULL_PASS_BLOCK, 1 << max(0, room.bit_length() - 1))

    def spread(self, task: Callable[[int, Learner], None], count: int, learner: Learner) -> None:
        if not self.convolutions:
            one_by_one(task, count, learner)
            return
        # The kernels that train are faster than cuDNN's for one model with many samples, too.
        with convolution.for_many_clients(True):
            for number in range(count):
                task(number, learner.batched)


def _answer_together(phase: Phase, shared: Message, block: _Block, given: Nest) -> Answer:
    def answer(mine: Nest) -> Answer:
        task = make_task(block.work, block.learner, block.client(mine), _FUNCTIONAL)
        return phase.answer(shared | mine["mail"], mine["state"], task)

    axes = {name: None if isinstance(part, int | float) else 0 for name, part in given.items()}
    return Answer(*vmap(answer, in_dims=(axes,))(given))


class _Block:
    """Clients that are trained together; what pads a client has weight zero, or is a step that changes nothing."""

    def __init__(self, work: Work, shape: Shape, full_pass: int) -> None:
        self.work, self.learner, self._shape = work, work.training.learner.batched, shape
        self._full_pass = full_pass  # samples of a block of a full pass

    def inputs(self, members: Tensor | slice, plan: Plan) -> Nest:
        """What differs between the clients: stacked [n, ...], unless it is the same number for all."""
        work = self.work
        return {
            "client": work.ids[members],
            "seed": of_clients(work.seed, members),
            "lr": of_clients(work.lr, members),
            "share": work.shares[members],
            "rows": plan.rows,
            "counts": plan.counts,
            "everything": list(plan.everything.split(self._full_pass, dim=1)),
            "size": plan.sizes,
        }

    def client(self, mine: Nest) -> ClientPart:
        """One client's part, under `vmap`."""
        shape, rows, counts, size = self._shape, mine["rows"], mine["counts"], mine["size"]
        return ClientPart(
            id=mine["client"],
            seed=mine["seed"],
            lr=mine["lr"],
            share=mine["share"],
            batches=[
                Samples(rows[j], None if full else self._weight(rows[j], counts[j]))
                for j, full in enumerate(shape.full)
            ],
            active=[None if everybody else counts[j] > 0 for j, everybody in enumerate(shape.all_active)],
            everything=[
                Samples(part, None if self._filled(i) else self._weight(part, size - i * self._full_pass))
                for i, part in enumerate(mine["everything"])
            ],
            steps=(counts > 0).sum().to(self.learner.dtype),
            samples=size.to(self.learner.dtype),
        )

    def _filled(self, number: int) -> bool:
        """Whether nobody needs padding in this block of a full pass."""
        shape = self._shape
        return shape.smallest == shape.width or (number + 1) * self._full_pass <= shape.smallest

    def _weight(self, rows: Tensor, count: Tensor) -> Tensor:
        return (torch.arange(len(rows), device=rows.device) < count).to(self.learner.dtype)


def fetch(table: Tensor, rows: Tensor) -> Tensor:
    """Rows of a table that all clients share: under `vmap` an embedding is several times faster than indexing."""
    return torch.embedding(table.reshape(len(table), -1), rows).reshape(len(rows), *table.shape[1:])


def functional(f: Callable[[Tree], tuple[Tensor, Any]], params: Tree) -> tuple[Tree, Tensor, Any]:
    """Gradient, value and auxiliary output by `torch.func`, which composes with `vmap`."""
    grads, (value, aux) = grad_and_value(f, has_aux=True)(params)
    return grads, value, aux


_FUNCTIONAL = Calculus(functional, fetch)
