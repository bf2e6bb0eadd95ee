"""`simulate` and `resume`: run one algorithm on one federation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from undrift.client.learner import SampleLoss
from undrift.client.metrics import Metric
from undrift.core import check
from undrift.data import FederatedData
from undrift.data.augment import Augment
from undrift.methods.aggregate import Aggregate
from undrift.methods.algorithm import Algorithm
from undrift.methods.codec import Codec
from undrift.methods.plugin import Plugin
from undrift.simulation.arguments import Arguments, takes
from undrift.simulation.callbacks import CallbackLike, as_callbacks
from undrift.simulation.describe import check_same, restore
from undrift.simulation.loop import train
from undrift.simulation.options import Options
from undrift.simulation.prepare import prepare, with_engine
from undrift.simulation.run import Run
from undrift.simulation.setup import Experiment
from undrift.storage.directory import RunDirectory, describe_environment, write_json


@takes(Arguments)
def simulate(given: Arguments) -> Run:
    """Train `model` on the clients of `data` by `algorithm`, and return the run."""
    callbacks = as_callbacks(given.callbacks)
    run = start(with_engine(prepare(given.objects, given.options)), given.out)
    train([run], callbacks, given.on_divergence)
    return run


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
    metrics: Mapping[str, Metric] | None = None,
    plugins: Sequence[Plugin] | None = None,
    aggregate: Aggregate | None = None,
    compress: Codec | None = None,
    callbacks: Iterable[CallbackLike] = (),
    on_divergence: str = "raise",
) -> Run:
    """Continue a run, to `rounds` in total, exactly as if it had never stopped.

    What was given to `simulate` as an object (a module, arrays, a loss) is given again and checked against the stored
    fingerprint; what was given by name need not be.
    """
    check.choice("on_divergence", on_divergence, ("raise", "stop"))
    watching = as_callbacks(callbacks)
    directory = RunDirectory.open(out)
    stored = Options(**directory.config["options"])
    given = {
        "algorithm": algorithm,
        "model": model,
        "data": data,
        "test": test,
        "loss": loss,
        "augment": augment,
        "metrics": metrics,
        "plugins": plugins,
        "aggregate": aggregate,
        "compress": compress,
    }
    setup = prepare(restore(directory.config, given), replace(stored, rounds=rounds or stored.rounds))
    run = reopen(with_engine(setup), directory)
    train([run], watching, on_divergence)
    return run


def start(experiment: Experiment, out: str | Path | None, label: str | None = None) -> Run:
    """A run that has not begun."""
    config = configuration(experiment, label or experiment.algorithm.label)
    environment = describe_environment(experiment.learner.device, config["options"]["engine"], experiment.engine_reason)
    directory = None if out is None else RunDirectory.create(out, config, environment)
    return Run(experiment, config, environment, directory)


def reopen(experiment: Experiment, directory: RunDirectory) -> Run:
    """A run as its newest checkpoint left it."""
    config = directory.config
    check_same(config, experiment.description)
    run = Run(experiment, config | {"options": asdict(experiment.options)}, directory.environment, directory)
    run.restore()
    if run.rounds > (rounds := experiment.options.rounds):
        raise ValueError(f"the run has {run.rounds} rounds already; rounds must be at least that, got {rounds}")
    if run.config != config:
        write_json(directory.path / "config.json", run.config)
    return run


def configuration(experiment: Experiment, label: str) -> dict[str, Any]:
    """All that `resume` needs; engine and device are those that were chosen, so that it continues with the same."""
    options = replace(experiment.options, engine=experiment.engine.setting, device=str(experiment.learner.device))
    return {"label": label, **experiment.description, "options": asdict(options)}
