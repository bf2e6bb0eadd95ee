"""Whether a model can be batched, detected by trying: a few samples with padding, two clients with two steps."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from undrift.accelerate import recurrence
from undrift.client.learner import Batch
from undrift.core import tree
from undrift.core.check import first_line
from undrift.core.random import Key
from undrift.core.wide import wide
from undrift.engines.determinism import arithmetic
from undrift.engines.work import Engine, Stacked, States, Work
from undrift.engines.workload import Workload
from undrift.protocol import Cohort, Message, State


def batching_obstacle(engine: Engine, workload: Workload) -> str:
    """Why clients of this model cannot be trained at once; empty if they can."""
    return _padding_obstacle(workload) or training_obstacle(engine, workload)


def training_obstacle(engine: Engine, workload: Workload) -> str:
    """Why two clients cannot take two steps together; empty if they can."""
    for part in workload.training.learner.module.modules():
        if isinstance(part, nn.RNNBase) and not recurrence.suits(part):
            return f"PyTorch has no nn.{type(part).__name__} for many clients at once"
    try:
        with torch.no_grad():
            dry_round(engine, workload)
    except Exception as error:  # models and compilers can fail in many ways
        return first_line(error)
    return ""


class Exchange(NamedTuple):
    """What two clients answered in a phase, and what the server knew then."""

    server: State
    replies: Message
    cohort: Cohort


def full_passes(engine: Engine, workload: Workload, round: int) -> float:
    """Over how many times its samples a client takes gradients in this round, besides its local steps.

    The samples whose loss is computed are counted with one step and with two: the difference is what a step takes.
    """
    samples = 0
    learner = workload.training.learner.copied()
    loss = learner.loss

    def counted(output: Tensor, target: Tensor) -> Tensor:
        nonlocal samples
        samples += len(output)  # of a client: all of them are computed at once
        return loss(output, target)

    learner.loss = counted
    watched = workload._replace(training=replace(workload.training, learner=learner))
    counts = []
    for steps in (1, 2):
        samples = 0
        dry_round(engine, watched, steps=steps, round=round)
        counts.append(samples)
    return (2 * counts[0] - counts[1]) / workload.extremes[1]


def dry_round(
    engine: Engine, workload: Workload, *, steps: int = 2, round: int = 1, hear: bool = False
) -> list[Exchange]:
    """A round of the largest and the smallest client; nothing of it is kept. What its exchanges brought is returned.

    Of two steps by default, as clients share parameters in the first one, and every client has its own in the second.
    With `hear`, the server hears their last answers as well, and the model is made ready for evaluation.
    """
    method, learner, sizes = workload.method, workload.training.learner, workload.data.sizes
    ids = np.argsort(-sizes, kind="stable")[[0, -1]]
    schedule = replace(workload.training.schedule, steps=steps, epochs=None)
    shapes, order = engine.arrange(schedule, sizes[ids], workload.extremes)
    clients = torch.from_numpy(ids).to(learner.device)
    work = Work(
        training=replace(workload.training, schedule=schedule, weight_decay=0.0, clip=None),
        shapes=shapes,
        order=None if order is None else torch.from_numpy(order).to(learner.device),
        positions=clients,
        ids=clients,
        shares=torch.ones(2, dtype=learner.dtype, device=learner.device),
        seed=workload.seed,
        round=round,
        lr=0.1,
        participation=1.0,
    )
    cohort = Cohort(clients, work.shares / 2, work.shares, population=len(workload.data), round=round)
    server = method.server(learner.parameters, learner.buffers)
    if ledger := method.ledger(learner.parameters):
        server |= {"ledger": tree.repeat(ledger, 2)}
    states: States = Stacked(tree.repeat(method.client(learner.parameters, learner.buffers), 2))
    exchanges = []
    for phase in method.phases:
        replies, states, _ = engine.run(phase, phase.ask(server, cohort), states, work)
        exchanges.append(Exchange(server, replies, cohort))
        if hear or phase is not method.phases[-1]:
            server = phase.hear(server, replies, cohort)
    if hear:
        method.presented(server)
        if (personal := method.personal) is not None:
            engine.run(personal, personal.ask(server, cohort), states, work)
    return exchanges


def _padding_obstacle(workload: Workload) -> str:
    """Why samples that only pad a batch would change the others; empty if they do not, or if none are needed."""
    (smallest, largest), batch = workload.extremes, workload.training.schedule.batch_size or workload.extremes[1]
    padded = smallest != largest or (largest % batch and largest > batch)
    return mixing(workload) if padded else ""


def mixing(workload: Workload) -> str:
    """In which way the samples of a batch change each other; empty if they do not."""
    training, data = workload.training, workload.data
    learner = training.learner
    count = min(8, len(data.rows))
    spread = np.linspace(0, len(data.rows) - 1, count).astype(np.int64)
    real = torch.from_numpy(data.rows[spread]).to(learner.device)
    padded = torch.cat([real, real[-1:].expand(3)])  # as a plan pads
    weight = (torch.arange(count + 3, device=learner.device) < count).to(learner.dtype)
    key = Key(workload.seed, 1, torch.tensor(0, device=learner.device))

    def losses(rows: Tensor, weight: Tensor | None) -> tree.Tree:
        x = learner.prepare(training.table.x[rows])
        if training.augment is not None:
            x = training.augment(x, key, 0)
        batch = Batch(x, training.table.y[rows], weight, key=key, step=0, buffers=learner.buffers)
        values, after, changed = learner.losses(learner.parameters, batch)
        return tree.flatten({"values": values[:count], "buffers": after, "changed": changed})

    try:
        with (
            torch.set_grad_enabled(learner.differentiates),
            arithmetic("fp32"),
            learner.exactly(),
        ):  # less would look like mixing
            alone, among = losses(real, None), losses(padded, weight)
    except Exception as error:
        return first_line(error)
    near = torch.finfo(learner.dtype).eps ** 0.5  # sums of other lengths are rounded otherwise
    if all(torch.allclose(wide(among[k]), wide(v), rtol=near, atol=near) for k, v in alone.items()):
        return ""
    return "it mixes the samples of a batch, which those that pad it would change"
