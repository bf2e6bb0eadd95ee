"""Which engine, and how many clients at a time. The choice depends on the model and the device, never on a clock,
so that a run repeated is the same run."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from undrift.accelerate import convolution, recurrence
from undrift.client.learner import Batch, Learner
from undrift.client.task import Augment
from undrift.core import check, tree
from undrift.core.log import notice
from undrift.core.random import Key
from undrift.data.batches import Schedule, Table
from undrift.data.federated import FederatedData
from undrift.engines.batched import Batched
from undrift.engines.determinism import arithmetic
from undrift.engines.sequential import Sequential
from undrift.engines.work import Engine, Work
from undrift.protocol import Cohort, Method

NAMES = ("auto", "batched", "compiled", "sequential")
_MEMORY = {"cpu": 1 << 30, "cuda": 16 << 30}  # bytes that a chunk of clients may take
_HEAVY = 30e6  # floating-point operations of a forward pass
_WORTH_SAYING = 2  # seconds
_MODEL_COPIES = 8  # parameters, gradient, update, state and temporaries of one client
# Compiling takes some 30 ms for every operation of a round, and saves 8 µs or more of it in every round (two cores).
# Both grow with the steps of a client, but nobody wants to wait for minutes before the first round.
_ROUNDS_TO_COMPILE = 6000
_STEPS_TO_COMPILE = 20


class Rehearsal(NamedTuple):
    """What is going to be trained."""

    data: FederatedData
    table: Table
    learner: Learner
    schedule: Schedule
    augment: Augment | None
    seed: int
    precision: str
    rounds: int  # at least
    uneven: str  # why not all rounds have the same shape; empty if they do


class Choice(NamedTuple):
    engine: Engine
    reason: str


def choose(name: str, method: Method, work: Rehearsal) -> Choice:
    """The engine of this name; for ``auto``, the faster one. ``batched:16`` fixes the chunk."""
    kind, _, count = name.partition(":")
    check.choice("engine", kind, NAMES)
    if count and (kind not in ("batched", "compiled") or not count.isdigit() or int(count) < 1):
        raise ValueError(f"engine: a chunk of clients is given as in 'batched:16', got {name!r}")
    learner, heavy = work.learner, _heavy(work)
    if kind == "compiled" and (obstacle := _uncompiled(work)):
        raise ValueError(f"engine='compiled' {obstacle}; use 'batched'")
    # Tiny steps are Python's work more than PyTorch's, and threads would only wait for its lock.
    sequential = Sequential(torch.get_num_threads() if heavy else 1)
    if kind == "sequential":
        return Choice(sequential, "as asked")
    if kind == "auto" and heavy:
        together = f", {sequential.workers} side by side" if sequential.workers > 1 else ""
        return Choice(sequential, f"on a CPU {heavy} is faster client by client{together}")
    recurrence.accelerate(learner.module)
    engine = Batched(int(count) if count else _chunk(work), replayed=learner.device.type == "cuda")
    if obstacle := _mixing(work) or _obstacle(engine, method, work):
        if kind != "auto":
            raise ValueError(f"engine={kind!r} cannot train this model: {obstacle}")
        return Choice(sequential, f"the model cannot be batched: {obstacle}")
    if kind == "compiled":
        return Choice(replace(engine, compiled=True), "as asked")
    reason = "as asked" if kind == "batched" else f"up to {engine.chunk} clients at a time"
    if kind == "auto" and not _uncompiled(work) and _pays(work):
        return Choice(replace(engine, compiled=True), f"{reason}, for {work.rounds} rounds")
    if not _may_round(work) or not convolution.available() or not convolution.accelerate(learner.module):
        return Choice(engine, reason)
    own, begun = replace(engine, convolutions=True), time.perf_counter()
    if trouble := _obstacle(own, method, work, (Exception,)):  # a compiler can fail in many ways
        notice(f"convolutions are PyTorch's, which are slower for many clients at once: {trouble}")
        return Choice(engine, reason)
    if (seconds := time.perf_counter() - begun) > _WORTH_SAYING:
        notice(f"compiled convolutions for many clients in {seconds:.0f} s; the next run finds them in Triton's cache")
    return Choice(own, f"{reason}, convolutions for many clients")


def _uncompiled(work: Rehearsal) -> str:
    """Why rounds are not to be compiled, whatever it takes; empty if they may be."""
    if work.learner.device.type != "cpu":
        return "is for a CPU; on a GPU rounds are captured and replayed"
    return f"needs rounds of one shape, but {work.uneven}" if work.uneven else ""


def _pays(work: Rehearsal) -> bool:
    """Whether a run is so long that compiling is won back."""
    steps = int(work.schedule.step_counts(work.data.sizes).max())
    return work.rounds >= _ROUNDS_TO_COMPILE and steps <= _STEPS_TO_COMPILE


def _may_round(work: Rehearsal) -> bool:
    """Whether our own convolutions are precise enough: they multiply in tf32 or bfloat16."""
    return work.learner.device.type == "cuda" and work.learner.dtype is torch.float32 and work.precision != "fp32"


def _heavy(work: Rehearsal) -> str:
    """What keeps a core busy with one client, so that batching does not pay; empty if nothing does, or on a GPU.

    A convolution per client is a grouped convolution, which CPUs are slow at. Otherwise it depends on the work of a
    batch: perceptrons of three layers were faster batched up to 20 MFLOP, and one by one from 40 MFLOP on.
    """
    learner = work.learner
    if learner.device.type != "cpu":
        return ""
    if any(isinstance(part, nn.modules.conv._ConvNd) for part in learner.module.modules()):
        return "a convolution"
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.mkldnn_rnn_layer: _recurrence}) as counter:
        learner.outputs(learner.parameters, learner.buffers, work.table.x[[0, 0]])  # two, for batch normalisation
    return "a batch of this much work" if counter.get_total_flops() / 2 * _batch(work) > _HEAVY else ""


def _recurrence(x: Sequence[int], inputs: Sequence[int], hidden: Sequence[int], *_: Any, **__: Any) -> int:
    """Operations of a layer with these shapes, samples [T, B, ...], which PyTorch's counter does not know."""
    return 2 * x[0] * x[1] * (math.prod(inputs) + math.prod(hidden))


def _batch(work: Rehearsal) -> int:
    """Samples in the largest batch."""
    largest = int(work.data.sizes.max())
    return min(work.schedule.batch_size or largest, largest)


def _chunk(work: Rehearsal) -> int:
    """Clients whose models and activations fit the memory set aside."""
    learner = work.learner
    probe = work.table.x[: min(2, len(work.table.x))]
    taken = 0

    def note(saved: Tensor) -> Tensor:
        nonlocal taken
        taken += saved.nbytes
        return saved

    points = {k: v.detach().clone().requires_grad_() for k, v in learner.parameters.items()}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        learner.module.eval()
        torch.func.functional_call(learner.module, points | learner.buffers, (learner.prepare(probe),))
    model = tree.nbytes(learner.parameters)
    activations = max(taken - model, 0) * _batch(work) // len(probe)
    each = _MODEL_COPIES * model + 2 * activations
    return max(1, _MEMORY.get(learner.device.type, _MEMORY["cpu"]) // each)


def _mixing(work: Rehearsal) -> str:
    """Why samples that only pad a batch would change the others; empty if they do not, or if none are needed."""
    learner, sizes = work.learner, work.data.sizes
    size, batch = int(sizes.max()), work.schedule.batch_size or int(sizes.max())
    if sizes.min() == size and (size % batch == 0 or size < batch):
        return ""
    count = min(8, len(work.data.rows))
    spread = np.linspace(0, len(work.data.rows) - 1, count).astype(np.int64)
    real = torch.from_numpy(work.data.rows[spread]).to(learner.device)
    padded = torch.cat([real, real[-1:].expand(3)])  # as a plan pads
    weight = (torch.arange(count + 3, device=learner.device) < count).to(learner.dtype)
    key = Key(work.seed, 1, torch.tensor(0, device=learner.device))

    def losses(rows: Tensor, weight: Tensor | None) -> tree.Tree:
        x = learner.prepare(work.table.x[rows])
        if work.augment is not None:
            x = work.augment(x, key, 0)
        values, buffers = learner.losses(
            learner.parameters, Batch(x, work.table.y[rows], weight, key, 0, learner.buffers)
        )
        return buffers | {"losses": values[:count]}

    try:
        with torch.no_grad(), arithmetic("fp32"), learner.exactly():  # less would look like mixing
            alone, among = losses(real, None), losses(padded, weight)
    except (RuntimeError, NotImplementedError, ValueError, IndexError) as error:
        return str(error).strip().splitlines()[0]
    near = torch.finfo(learner.dtype).eps ** 0.5  # sums of other lengths are rounded otherwise
    if all(torch.allclose(among[k].double(), v.double(), rtol=near, atol=near) for k, v in alone.items()):
        return ""
    return "it mixes the samples of a batch, which those that pad it would change"


_REFUSALS = (RuntimeError, NotImplementedError, ValueError)  # what PyTorch raises for what cannot be batched


def _obstacle(
    engine: Engine, method: Method, work: Rehearsal, refusals: tuple[type[Exception], ...] = _REFUSALS
) -> str:
    """Why the model cannot be batched; empty if a rehearsal with two clients and one step succeeds."""
    for part in work.learner.module.modules():
        if isinstance(part, nn.RNNBase) and not recurrence.suits(part):
            return f"PyTorch has no nn.{type(part).__name__} for many clients at once"
    sizes, learner = work.data.sizes, work.learner
    ids = np.argsort(-sizes, kind="stable")[[0, -1]]
    schedule = replace(work.schedule, steps=1, epochs=None)
    shapes, order = engine.arrange(schedule, sizes[ids], (int(sizes.min()), int(sizes.max())))
    places = torch.from_numpy(ids).to(learner.device)
    small = Work(
        learner=learner,
        table=work.table,
        shapes=shapes,
        order=None if order is None else torch.from_numpy(order).to(learner.device),
        places=places,
        ids=places,
        shares=torch.ones(2, dtype=learner.dtype, device=learner.device),
        schedule=schedule,
        seed=work.seed,
        round=1,
        lr=0.1,
        participation=1.0,
        weight_decay=0.0,
        clip=None,
        augment=work.augment,
    )
    cohort = Cohort(places, small.shares / 2, small.shares, len(work.data), 1)
    server = method.server(learner.parameters, learner.buffers)
    if ledger := method.ledger(learner.parameters):
        server |= {"ledger": tree.repeat(ledger, 2)}
    clients: Any = tree.repeat(method.client(learner.parameters, learner.buffers), 2)
    try:
        for phase in method.phases:
            replies, clients, _ = engine.run(phase, phase.ask(server, cohort), clients, small)
            if phase is not method.phases[-1]:
                server = phase.hear(server, replies, cohort)
    except refusals as error:
        return str(error).strip().splitlines()[0]
    return ""
