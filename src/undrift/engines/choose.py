"""Which engine, and how many clients at a time: a table of rules.

The choice depends on the model, the data and the device, never on a clock, so that a run repeated is the same run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undrift.core import check, sharing, torch_private, tree
from undrift.core.log import notice
from undrift.engines.batched import Batched
from undrift.engines.dry_run import batching_obstacle, full_passes, mixing, training_obstacle
from undrift.engines.sequential import Sequential
from undrift.engines.work import Engine
from undrift.engines.workload import Workload

_MEMORY = {"cpu": 1 << 30, "cuda": 16 << 30}  # bytes that a chunk of clients may take
_FULL_PASS = {"cpu": 64 << 20, "cuda": 16 << 30}  # bytes of a block of their full passes; a CPU has a cache
_HEAVY = 30e6  # floating-point operations of a forward pass
_BACKWARD = 3  # times the operations of a forward pass are those of one with its backward pass
_LATE = 1 << 20  # a round after all those that an algorithm may begin with
_WORTH_A_NOTICE = 2  # seconds
_MOST_CORES = 1024  # of a client
_MODEL_COPIES = 8  # parameters, gradient, update, state and temporaries of one client
# Compiling takes some 30 ms for every operation of a round, and saves 8 µs or more of it in every round (two cores).
# Both grow with the steps of a client, but nobody wants to wait for minutes before the first round.
_ROUNDS_TO_COMPILE = 6000
_STEPS_TO_COMPILE = 20


class Choice(NamedTuple):
    engine: Engine
    reason: str


class Rule(NamedTuple):
    """`auto` takes the first rule whose `reason` is not empty."""

    engine: str
    reason: Callable[[Workload], str]


def choose(name: str, workload: Workload) -> Choice:
    """The engine of this name; ``auto`` goes by the rules.

    ``batched:16`` fixes the number of clients at a time, ``sequential:4`` that of the cores of a client.
    """
    kind, _, count = name.partition(":")
    check.choice("engine", kind, ("auto", *_BUILDERS))
    number = int(count) if count.isdecimal() else 0
    if (":" in name and not number) or (number and kind == "auto") or (kind == "sequential" and number > _MOST_CORES):
        raise ValueError(
            "engine: a number of clients at a time is given as in 'batched:16', of cores for a client as in "
            f"'sequential:4', got {name!r}"
        )
    if kind == "auto":
        kind, reason = next((rule.engine, reason) for rule in RULES if (reason := rule.reason(workload)))
        engine, details = _BUILDERS[kind](workload, 0)
        if isinstance(engine, Batched):
            details = [f"up to {engine.chunk} at a time", *details]
        return Choice(engine, ", ".join([reason, *details]))
    if obstacle := _OBSTACLES[kind](workload):
        raise ValueError(f"engine={kind!r} {obstacle}")
    engine, details = _BUILDERS[kind](workload, number or int(kind == "sequential"))
    return Choice(engine, ", ".join(["as asked", *details]))


# Reasons


def _heavy_clients(workload: Workload) -> str:
    heavy = _heavy(workload)
    return f"on a CPU {heavy} is faster client by client" if heavy else ""


def _not_batchable(workload: Workload) -> str:
    obstacle = batching_obstacle(_plain_batched(workload), workload)
    return f"the model cannot be batched: {obstacle}" if obstacle else ""


def _long_run(workload: Workload) -> str:
    """Rounds of one shape on a CPU, so many of them that compiling pays."""
    steps = int(workload.training.schedule.step_counts(workload.data.sizes).max())
    pays = workload.rounds >= _ROUNDS_TO_COMPILE and steps <= _STEPS_TO_COMPILE
    return f"clients train together, for {workload.rounds} rounds" if pays and not _not_compilable(workload) else ""


def _otherwise(workload: Workload) -> str:
    return "clients train together"


def _large_model(workload: Workload) -> str:
    """One client at a time under `vmap` takes more memory than by itself, and is no faster."""
    alone = workload.cohort > 1 and _chunk(workload) == 1
    return "the model is too large to train several clients at once" if alone else ""


RULES = (
    Rule("sequential", _heavy_clients),
    Rule("sequential", _large_model),
    Rule("sequential", _not_batchable),
    Rule("compiled", _long_run),
    Rule("batched", _otherwise),
)


# Obstacles to an engine that was asked for


def _nothing(workload: Workload) -> str:
    return ""


def _not_batched(workload: Workload) -> str:
    obstacle = batching_obstacle(_plain_batched(workload), workload)
    return f"cannot train this model: {obstacle}" if obstacle else ""


def _not_compilable(workload: Workload) -> str:
    if workload.training.learner.device.type != "cpu":
        return "is for a CPU; on a GPU rounds are captured and replayed; use 'batched'"
    return f"needs rounds of one shape, but {workload.uneven}; use 'batched'" if workload.uneven else ""


_OBSTACLES: dict[str, Callable[[Workload], str]] = {
    "batched": _not_batched,
    "compiled": lambda workload: _not_compilable(workload) or _not_batched(workload),
    "sequential": _nothing,
}


# Builders: (workload, the number asked for, 0 for as many as there is room for) -> the engine, and what else users may
# want to know. The number is that of clients at a time or, one by one, of cores for a client.


def _sequential(workload: Workload, cores: int) -> tuple[Engine, list[str]]:
    # Tiny steps are Python's work more than PyTorch's, and threads would only wait for its lock.
    threads = torch.get_num_threads() if _heavy(workload) else 1
    cores = cores or max(1, threads // workload.cohort)
    engine = Sequential(max(1, threads // cores), cores)
    details = [f"{engine.workers} clients in parallel"] if engine.workers > 1 else []
    return engine, details + ([f"{cores} cores each"] if cores > 1 else [])


def _compiled(workload: Workload, count: int) -> tuple[Engine, list[str]]:
    return replace(_plain_batched(workload, count), compiled=True), []


def _batched(workload: Workload, count: int) -> tuple[Engine, list[str]]:
    engine = _plain_batched(workload, count)
    if not _may_round(workload) or not workload.training.learner.batched.own_convolutions:
        return _for_full_passes(engine, workload), []
    own, begun = replace(engine, convolutions=True), time.perf_counter()
    if trouble := training_obstacle(own, workload):
        notice(f"convolutions are PyTorch's, which are slower for many clients at once: {trouble}")
        return _for_full_passes(engine, workload), []
    if (seconds := time.perf_counter() - begun) > _WORTH_A_NOTICE:
        notice(f"compiled convolutions for many clients in {seconds:.0f} s; the next run finds them in Triton's cache")
    return _for_full_passes(own, workload), ["with convolutions for many clients"]


def _for_full_passes(engine: Batched, workload: Workload) -> Batched:
    """Where rounds are replayed, blocks of unequal clients depend on how often they look at all of their samples.

    If that changes with the number of the round, the host must know it, and rounds will be run step by step.
    """
    (smallest, largest), together = workload.extremes, min(engine.chunk, workload.cohort)
    if not engine.replayed or smallest == largest or together == 1:
        return engine
    first, late = (full_passes(engine, workload, round) for round in (1, _LATE))
    return replace(engine, passes=late, launched=first != late)


_BUILDERS: dict[str, Callable[[Workload, int], tuple[Engine, list[str]]]] = {
    "batched": _batched,
    "compiled": _compiled,
    "sequential": _sequential,
}


# What the rules look at


def _plain_batched(workload: Workload, count: int = 0) -> Batched:
    learner = workload.training.learner
    replayed = learner.device.type == "cuda"
    # Small blocks leave a GPU idle, and of the models that a CPU trains batched they cost more than they compute.
    larger = not (learner.normalises or learner.draws_numbers or mixing(workload))  # which depend on the blocks
    room = _FULL_PASS["cuda" if replayed else "cpu"] // max(1, _bytes_of_sample(workload)) if larger else 0
    return Batched(
        count or _chunk(workload),
        replayed=replayed,
        full_pass_samples=room,
        batch=workload.largest_batch,
        flops=_BACKWARD * _flops_of_sample(workload) if replayed else 0.0,
    )


def _may_round(workload: Workload) -> bool:
    """Whether our own convolutions are precise enough: they multiply in tf32 or bfloat16."""
    learner = workload.training.learner
    return learner.device.type == "cuda" and learner.dtype is torch.float32 and workload.precision != "fp32"


def _heavy(workload: Workload) -> str:
    """What keeps a core busy with one client, so that batching does not pay; empty if nothing does, or on a GPU.

    A convolution per client is a grouped convolution, which CPUs are slow at. Otherwise it depends on the work of a
    batch: perceptrons of three layers were faster batched up to 20 MFLOP, and one by one from 40 MFLOP on.
    """
    learner = workload.training.learner
    if learner.device.type != "cpu":
        return ""
    if any(torch_private.is_convolution(part) for part in learner.module.modules()):
        return "a convolution"
    return "a batch of this much work" if _flops_of_sample(workload) * workload.largest_batch > _HEAVY else ""


def _flops_of_sample(workload: Workload) -> float:
    """Floating-point operations of a forward pass."""
    learner, table = workload.training.learner, workload.training.table
    two = table.x[[0, 0]]  # for batch normalisation
    return torch_private.flops(lambda: learner.outputs(learner.parameters, learner.buffers, two), _uncounted()) / 2


def _uncounted() -> dict[Any, Any]:
    """Operators that PyTorch's counter does not know, where this version has them, and their formulas."""
    formulas = {"mkldnn_rnn_layer": _recurrence, "_cudnn_rnn": _recurrences}
    return {getattr(torch.ops.aten, name): f for name, f in formulas.items() if hasattr(torch.ops.aten, name)}


def _recurrence(x: Sequence[int], inputs: Sequence[int], hidden: Sequence[int], *_: Any, **__: Any) -> int:
    """Operations of an LSTM layer with these shapes, samples [T, B, ...]."""
    return 2 * x[0] * x[1] * (math.prod(inputs) + math.prod(hidden))


def _recurrences(x: Sequence[int], weights: Sequence[Sequence[int]], *_: Any, **__: Any) -> int:
    """The same of all layers at once, by cuDNN."""
    return 2 * x[0] * x[1] * sum(math.prod(shape) for shape in weights if len(shape) > 1)


def _chunk(workload: Workload) -> int:
    """Clients whose models and activations fit the memory set aside."""
    learner = workload.training.learner
    each = _MODEL_COPIES * tree.nbytes(learner.parameters) + _bytes_of_sample(workload) * workload.largest_batch
    return max(1, _memory(learner.device.type) // each)


def _memory(device: str) -> int:
    """Bytes that a chunk of clients may take; less where processes of one run share a machine."""
    return _MEMORY.get(device, _MEMORY["cpu"]) // sharing.processes(device)


def _bytes_of_sample(workload: Workload) -> int:
    """What a sample takes in a forward and a backward pass."""
    learner, table = workload.training.learner, workload.training.table
    probe = table.x[: min(2, len(table.x))]
    taken = 0

    def note(saved: Tensor) -> Tensor:
        nonlocal taken
        taken += saved.nbytes
        return saved

    points = {k: v.detach().clone().requires_grad_() for k, v in learner.parameters.items()}
    try:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
            learner.recorded(points, probe)
    except RuntimeError:  # `torch.func` knows no such hooks; all that operations read is at least as much
        with torch_private.operations(lambda read, _: sum(note(tensor).ndim for tensor in read)):
            learner.recorded(points, probe)
    return 2 * max(taken - tree.nbytes(learner.parameters), 0) // len(probe)
