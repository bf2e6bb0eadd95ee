"""`simulate` and `resume`: run one algorithm on one federation."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from undrift import algorithms
from undrift.client.learner import SampleLoss
from undrift.client.task import Augment
from undrift.core import check
from undrift.data import FederatedData, load
from undrift.engines import Batched, allocation
from undrift.engines.determinism import arithmetic
from undrift.methods.algorithm import Algorithm
from undrift.plugins.pgvc import PGVC
from undrift.simulation.prepare import Cohorts, Experiment, Options, prepare
from undrift.simulation.progress import meter
from undrift.simulation.round import Stage
from undrift.simulation.run import DivergenceError, Run, advance
from undrift.storage.directory import RunDirectory, describe_environment, write_json

Callback = Callable[[dict[str, Any], Run], object]  # called with the row of every round; a true result ends the run


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run: the rounds so far are in `run` and, with `out`, in a checkpoint for `resume`."""

    def __init__(self, run: Run) -> None:
        where = f"; go on with: undrift resume {run.out}" if run.out else ""
        super().__init__(f"interrupted after round {run.rounds}{where}")
        self.run = run


def simulate(
    algorithm: str | Algorithm,
    model: str | nn.Module,
    data: str | FederatedData | Sequence[tuple[Any, Any]],
    test: tuple[Any, Any] | None = None,
    rounds: int = 100,
    cohort: Cohorts = None,
    epochs: int = 1,
    steps: int | None = None,
    batch_size: int | None = 32,
    lr: float = 0.01,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    optimizer: str = "sgd",
    server_lr: float = 1.0,
    weighting: str | None = None,
    loss: SampleLoss | None = None,
    augment: str | Augment | None = None,
    eval_every: int = 1,
    target: float | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    engine: str = "auto",
    callbacks: Iterable[Callback] = (),
    out: str | Path | None = None,
    *,
    clip: float | None = None,
    lr_decay: float = 1.0,
    buffers: str = "averaged",
    precision: str | None = None,
    on_divergence: str = "raise",
) -> Run:
    """Train `model` on the clients of `data` by `algorithm`, and return the run.

    Args:
        algorithm: a name such as ``"fedhbm"``, or an instance such as ``ud.algorithms.FedHBM(beta=1.0)``.
        model: a module, whose parameters are the starting point and which is never changed, or a name.
        data: a pair of arrays (x, y) for every client, a `FederatedData`, or a name.
        test: held-out samples (x, y); a named or federated data set brings its own.
        cohort: None for everyone, a number or a fraction of clients a round, or a list of clients for every round.
        epochs, steps: local passes over a client's samples, or exactly so many local steps.
        batch_size: samples a step; None for all.
        weighting: ``"samples"`` or ``"uniform"``; None for what the algorithm's paper uses.
        loss: None for cross-entropy, or ``f(output, target)`` with one value per sample.
        augment: a name, or ``f(x, key, step)`` on a batch.
        eval_every: rounds between evaluations; the last round is always evaluated.
        target: stop as soon as this accuracy is reached.
        device, dtype: a GPU if there is one; the model's type.
        engine: ``"auto"``, ``"batched"`` (``"batched:16"``: sixteen clients at a time), ``"compiled"`` (batched, and
            compiled to C++, which takes a while) or ``"sequential"``.
        callbacks: called as ``f(row, run)`` after every round; a true result ends the run.
        out: a directory for everything needed to inspect, resume and report.
        clip: the largest norm of a minibatch gradient; it is clipped before any correction.
        lr_decay: the local learning rate is multiplied by this after every round.
        buffers: what becomes of BatchNorm statistics: ``"averaged"``, ``"local"`` or ``"dropped"``.
        precision: ``"fp32"``; ``"tf32"``, the default on a GPU, which rounds the factors of products to ten bits; or
            ``"bf16"``, which computes in bfloat16 and keeps parameters in single precision.
        on_divergence: ``"raise"`` a `DivergenceError`, or ``"stop"`` and return the rounds so far.
    """
    options = Options(
        rounds=rounds,
        cohort=cohort,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        optimizer=optimizer,
        server_lr=server_lr,
        weighting=weighting,
        eval_every=eval_every,
        target=target,
        seed=seed,
        device=None if device is None else str(device),
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        engine=engine,
        clip=clip,
        lr_decay=lr_decay,
        buffers=buffers,
        precision=precision,
    )
    check.choice("on_divergence", on_divergence, ("raise", "stop"))
    calls = _callbacks(callbacks)
    run = start(algorithm, model, data, test, loss, augment, options, out)
    go_on([run], calls, on_divergence)
    return run


def start(
    algorithm: str | Algorithm,
    model: str | nn.Module,
    data: str | FederatedData | Sequence[tuple[Any, Any]],
    test: tuple[Any, Any] | None,
    loss: SampleLoss | None,
    augment: str | Augment | None,
    options: Options,
    out: str | Path | None,
    label: str | None = None,
    beside: Run | None = None,
) -> Run:
    """A run that has not begun; `beside` is another one, with which samples are shared where they are the same."""
    other = None if beside is None else beside.experiment
    experiment = prepare(algorithm, model, data, test, loss, augment, options, other)
    config = configuration(experiment, label)
    environment = describe_environment(experiment.learner.device, config["options"]["engine"], experiment.engine_reason)
    directory = None if out is None else RunDirectory.create(out, config, environment)
    return Run(experiment, config, environment, directory)


def configuration(experiment: Experiment, label: str | None) -> dict[str, Any]:
    """All that `resume` needs; engine and device are those that were chosen, so that it goes on with the same."""
    engine = experiment.engine
    fixed = f"{engine.name}:{engine.chunk}" if isinstance(engine, Batched) else engine.name
    return {
        "label": label or type(experiment.algorithm).__name__,
        **experiment.description,
        "options": asdict(replace(experiment.options, engine=fixed, device=str(experiment.learner.device))),
    }


def resume(
    out: str | Path,
    rounds: int | None = None,
    *,
    algorithm: Algorithm | None = None,
    model: str | nn.Module | None = None,
    data: str | FederatedData | Sequence[tuple[Any, Any]] | None = None,
    test: tuple[Any, Any] | None = None,
    loss: SampleLoss | None = None,
    augment: str | Augment | None = None,
    callbacks: Iterable[Callback] = (),
    on_divergence: str = "raise",
) -> Run:
    """Go on with a run, to `rounds` in total, exactly as if it had never stopped.

    What was given to `simulate` as an object (a module, arrays, a loss) is given again and checked against the stored
    fingerprint; what was given by name need not be.
    """
    check.choice("on_divergence", on_divergence, ("raise", "stop"))
    calls = _callbacks(callbacks)
    run = reopen(out, rounds, algorithm, model, data, test, loss, augment)
    go_on([run], calls, on_divergence)
    return run


def reopen(
    out: str | Path,
    rounds: int | None,
    algorithm: Algorithm | None,
    model: str | nn.Module | None,
    data: str | FederatedData | Sequence[tuple[Any, Any]] | None,
    test: tuple[Any, Any] | None,
    loss: SampleLoss | None,
    augment: str | Augment | None,
    beside: Run | None = None,
) -> Run:
    """A run as its newest checkpoint left it; `beside` as in `start`."""
    directory = RunDirectory.open(out)
    config = directory.config
    stored = Options(**config["options"])
    options = replace(stored, rounds=rounds or stored.rounds)
    experiment = prepare(
        algorithm or _stored_algorithm(config["algorithm"]),
        _stored("model", config["model"], model),
        _stored_data(config["data"], data),
        _stored("test", config["test"], test),
        _stored("loss", config["loss"], loss),
        _stored("augment", config["augment"], augment),
        options,
        None if beside is None else beside.experiment,
    )
    for part, fingerprint in experiment.description.items():
        if fingerprint != config[part]:
            raise ValueError(f"the given {part} is not the one this run was started with")
    config |= {"options": asdict(options)}
    run = Run(experiment, config, directory.environment, directory)
    run.restore()
    if run.rounds > options.rounds:
        raise ValueError(f"the run has {run.rounds} rounds already; rounds must be at least that, got {rounds}")
    if rounds is not None:
        write_json(directory.path / "config.json", config)
    return run


def _callbacks(callbacks: Any) -> tuple[Callback, ...]:
    calls = tuple(callbacks) if isinstance(callbacks, Iterable) else (None,)
    if not all(map(callable, calls)):
        raise TypeError(f"callbacks must be a list of functions of (row, run), got {callbacks!r}")
    return calls


def go_on(runs: Sequence[Run], callbacks: Iterable[Callback], on_divergence: str) -> None:
    """Train a run, or several that are `alike`, to the end; those that are equally far play their rounds together."""
    calls, going, rounds = _callbacks(callbacks), list(runs), runs[0].options.rounds
    group: list[Run] = []
    label = runs[0].label if len(runs) == 1 else f"{runs[0].label} × {len(runs)}"
    with (
        arithmetic(runs[0].precision),
        allocation.kept(),
        _ctrl_c() as interrupted,
        meter(label, rounds, len(runs)) as tick,
    ):
        tick(min(run.rounds for run in runs), None)
        while going := [run for run in going if run.rounds < rounds and not run.reached_target]:
            done, row = min(run.rounds for run in going), None
            if group != (behind := [run for run in going if run.rounds == done]):
                group, stage = behind, Stage([run.experiment for run in behind])
            for run, keep in zip(group, advance(group, stage), strict=True):
                try:
                    row = keep()
                except DivergenceError:
                    if on_divergence == "raise":
                        raise
                    going.remove(run)
                    continue
                run.save_if_due()
                wishes = [callback(row, run) for callback in calls]  # of all of them, whatever the first one says
                if any(wishes):
                    going.remove(run)
            tick(done + 1, row)
            if interrupted():
                for run in runs:
                    run.save()
                raise Interrupted(runs[0])
        for run in runs:
            run.save()


def _stored_algorithm(description: dict[str, Any]) -> Algorithm:
    options = description["options"]
    given = [k for k, v in options.items() if isinstance(v, dict) and "fingerprint" in v]
    if given:
        raise ValueError(f"this run's algorithm was given {given[0]} as an object; give algorithm= again")
    kind = algorithms.find(description["name"])
    if "pgvc" in options:
        options = options | {"pgvc": PGVC(**_chosen(PGVC, options["pgvc"]))}
    return kind(**_chosen(kind, options))


def _chosen(kind: type[Algorithm] | type[PGVC], options: dict[str, Any]) -> dict[str, Any]:
    """Options that are not the defaults, which may know more than a stored value does (see `AtMost`)."""
    defaults = {f.name: f.default for f in fields(kind)}
    return {k: v for k, v in options.items() if v != defaults.get(k)}


def _stored(part: str, stored: Any, given: Any) -> Any:
    """What was given by name; what was given as an object must be given again."""
    if given is not None:
        return given
    if isinstance(stored, dict):
        raise ValueError(f"this run was started with a {part} given as an object; give {part}= again")
    return stored


def _stored_data(stored: dict[str, Any], given: Any) -> Any:
    if given is not None:
        return given
    return load(**stored) if "name" in stored else _stored("data", stored, None)


@contextmanager
def _ctrl_c() -> Iterator[Callable[[], bool]]:
    """Ctrl-C ends a run after the current round, so that it can be saved; a second one ends it at once."""
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
