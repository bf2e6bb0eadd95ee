"""Which engine, and how many clients at a time. The choice depends on the model and the device, never on a clock,
so that a run repeated is the same run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from undrift import check, tree
from undrift.engines.batched import Batched
from undrift.engines.sequential import Sequential
from undrift.engines.work import Engine, Work
from undrift.learner import Batch
from undrift.protocol import Cohort, Method
from undrift.random import Key

NAMES = ("auto", "batched", "sequential")
_MEMORY = {"cpu": 1 << 30, "cuda": 16 << 30}  # bytes that a chunk of clients may take
_HEAVY = 30e6  # floating-point operations of a forward pass
_MODEL_COPIES = 8  # parameters, gradient, update, state and temporaries of one client


class Choice(NamedTuple):
    engine: Engine
    reason: str


def choose(name: str, method: Method, work: Work) -> Choice:
    """The engine of this name; for ``auto``, the faster one. ``batched:16`` fixes the chunk."""
    kind, _, count = name.partition(":")
    check.choice("engine", kind, NAMES)
    if count and (kind != "batched" or not count.isdigit() or int(count) < 1):
        raise ValueError(f"engine: a chunk of clients is given as in 'batched:16', got {name!r}")
    heavy = _heavy(work)
    # Tiny steps are Python's work more than PyTorch's, and threads would only wait for its lock.
    sequential = Sequential(torch.get_num_threads() if heavy else 1)
    if kind == "sequential":
        return Choice(sequential, "as asked")
    if kind == "auto" and heavy:
        together = f", {sequential.workers} side by side" if sequential.workers > 1 else ""
        return Choice(sequential, f"on a CPU {heavy} is faster client by client{together}")
    engine = Batched(int(count) if count else _chunk(work))
    if obstacle := _mixing(work) or _obstacle(engine, method, work):
        if kind == "batched":
            raise ValueError(f"engine='batched' cannot train this model: {obstacle}")
        return Choice(sequential, f"the model cannot be batched: {obstacle}")
    return Choice(engine, "as asked" if kind == "batched" else f"up to {engine.chunk} clients at a time")


def _heavy(work: Work) -> str:
    """What keeps a core busy with one client, so that batching does not pay; empty if nothing does, or on a GPU.

    A convolution per client is a grouped convolution, which CPUs are slow at. Otherwise it depends on the work of a
    batch: perceptrons of three layers were faster batched up to 20 MFLOP, and one by one from 40 MFLOP on.
    """
    learner = work.learner
    if learner.device.type != "cpu":
        return ""
    if any(isinstance(part, nn.modules.conv._ConvNd) for part in learner.module.modules()):
        return "a convolution"
    with FlopCounterMode(display=False) as counter:
        learner.outputs(learner.parameters, learner.buffers, work.x[[0, 0]])  # two, for batch normalisation
    return "a batch of this much work" if counter.get_total_flops() / 2 * _batch(work) > _HEAVY else ""


def _batch(work: Work) -> int:
    """Samples in the largest batch."""
    largest = int(work.data.sizes.max())
    return min(work.schedule.batch_size or largest, largest)


def _chunk(work: Work) -> int:
    """Clients whose models and activations fit the memory set aside."""
    learner = work.learner
    probe = work.x[: min(2, len(work.x))]
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


def _mixing(work: Work) -> str:
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
        x = learner.prepare(work.x[rows])
        if work.augment is not None:
            x = work.augment(x, key, 0)
        values, buffers = learner.losses(learner.parameters, Batch(x, work.y[rows], weight, key, 0, learner.buffers))
        return buffers | {"losses": values[:count]}

    try:
        with torch.no_grad():
            alone, among = losses(real, None), losses(padded, weight)
    except (RuntimeError, NotImplementedError, ValueError, IndexError) as error:
        return str(error).strip().splitlines()[0]
    near = torch.finfo(learner.dtype).eps ** 0.5  # sums of other lengths are rounded otherwise
    if all(torch.allclose(among[k].double(), v.double(), rtol=near, atol=near) for k, v in alone.items()):
        return ""
    return "it mixes the samples of a batch, which those that pad it would change"


def _obstacle(engine: Engine, method: Method, work: Work) -> str:
    """Why the model cannot be batched; empty if a rehearsal with two clients and one step succeeds."""
    for part in work.learner.module.modules():
        if isinstance(part, nn.RNNBase):
            return f"PyTorch has no nn.{type(part).__name__} for many clients at once"
    ids = np.argsort(-work.data.sizes, kind="stable")[[0, -1]]
    learner = work.learner
    small = replace(
        work,
        ids=ids,
        shares=torch.ones(2, dtype=learner.dtype, device=learner.device),
        schedule=replace(work.schedule, steps=1, epochs=None),
    )
    cohort = Cohort(torch.from_numpy(ids).to(learner.device), small.shares / 2, small.shares, len(work.data), 1)
    server = method.server(learner.parameters, learner.buffers)
    if ledger := method.ledger(learner.parameters):
        server |= {"ledger": tree.repeat(ledger, 2)}
    clients: Any = tree.repeat(method.client(learner.parameters, learner.buffers), 2)
    try:
        for phase in method.phases:
            replies, clients, _ = engine.run(phase, phase.ask(server, cohort), clients, small)
            if phase is not method.phases[-1]:
                server = phase.hear(server, replies, cohort)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return str(error).strip().splitlines()[0]
    return ""
