"""`simulate` and `resume`: run one algorithm on one federation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from undrift.client.learner import SampleLoss
from undrift.client.metrics import Metric
from undrift.core import check
from undrift.core.log import notice, warning
from undrift.data import FederatedData
from undrift.data.augment import Augment
from undrift.data.federated import Clients
from undrift.data.split import Split
from undrift.methods.aggregate import Aggregate
from undrift.methods.algorithm import Algorithm
from undrift.methods.codec import Codec
from undrift.methods.plugin import Plugin
from undrift.simulation.arguments import Arguments, takes
from undrift.simulation.callbacks import CallbackLike, as_callbacks
from undrift.simulation.cohort import choices, instabilities
from undrift.simulation.defaults import Resolved, resolve_defaults
from undrift.simulation.describe import (
    as_begun,
    check_same,
    check_same_algorithm,
    read_options,
    restore,
    same_options,
    with_rounds,
)
from undrift.simulation.loop import train
from undrift.simulation.options import AUTO
from undrift.simulation.place import place_of
from undrift.simulation.prepare import find_algorithm, find_data, prepare, with_engine
from undrift.simulation.run import Run
from undrift.simulation.setup import Experiment
from undrift.storage import environment as surroundings
from undrift.storage.directory import RunDirectory


@takes(Arguments)
def simulate(given: Arguments) -> Run:
    """Train `model` on the clients of `data` by `algorithm`, and return the run."""
    callbacks = as_callbacks(given.callbacks)
    resolved = resolve_defaults(given.objects, given.options, find_data(given.data, given.seed))
    with place_of(resolved.options).session(resolved.options), _started(resolved, given) as run:
        announce(run, resolved)
        train([run], callbacks, given.on_divergence)
    return run


def announce(run: Run, resolved: Resolved) -> None:
    """Say what was decided, and what is known to be unstable."""
    notice(resolved.notice)
    if not run.rounds:
        for text in choices(run.experiment):
            notice(f"{run.label}: {text}")
        for text in instabilities(run.experiment):
            warning(f"{run.label}: {text}")


@contextmanager
def _started(resolved: Resolved, given: Arguments) -> Iterator[Run]:
    """A new run, or the one in its directory that is to be continued; during the block, nobody else writes there."""
    objects, options, label, _ = resolved
    if not given.resume or given.out is None or not RunDirectory.is_run(given.out):
        with start(with_engine(prepare(objects, options)), given.out, label, overwrite=given.overwrite) as run:
            yield run
        return
    directory = RunDirectory.open(given.out)
    with directory.writing():
        if given.rounds == AUTO:
            options = replace(options, rounds=read_options(directory).rounds)
        check_same_algorithm(directory, find_algorithm(objects.algorithm).algorithm)
        options, objects = same_options(directory, options), replace(objects, model=as_begun(directory, objects.model))
        run = reopen(with_engine(prepare(objects, options)), directory)
        run.ended = False
        yield run


def resume(
    out: str | Path,
    rounds: int | None = None,
    *,
    algorithm: Algorithm | None = None,
    model: str | nn.Module | None = None,
    data: str | FederatedData | Clients | None = None,
    test: tuple[Any, Any] | Dataset[Any] | None = None,
    loss: SampleLoss | None = None,
    augment: str | Augment | None = None,
    metrics: Mapping[str, Metric] | None = None,
    plugins: Sequence[Plugin] | None = None,
    aggregate: Aggregate | None = None,
    compress: Codec | None = None,
    address: str | None = None,
    callbacks: Iterable[CallbackLike] = (),
    on_divergence: str = "raise",
) -> Run:
    """Continue a run, to `rounds` in total, exactly as if it had never stopped.

    What was given to `simulate` as an object (a module, arrays, a loss) is given again and checked; what was given by
    name need not be. Of a module the architecture is checked: its weights come from the run directory. A run on Ray
    goes on where it was begun, or at the `address` of another cluster.
    """
    out = check.path("out", out)
    check.choice("on_divergence", on_divergence, ("raise", "stop"))
    if rounds is not None:
        check.integer("rounds", rounds, 1)
    watching = as_callbacks(callbacks)
    directory = RunDirectory.open(out)
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
    stored = read_options(directory)
    if address is not None:
        stored = replace(stored, address=address)
    with place_of(stored).session(stored), directory.writing():
        options = stored if rounds is None else with_rounds(directory, stored, rounds)
        run = reopen(with_engine(prepare(restore(directory, given), options)), directory)
        run.ended = False
        if run.rounds < options.rounds and len(run.config.get("group", ())) > 1:
            warning(f"{run.label}: alone, it continues to rounding as in its comparison; repeat that for the same bits")
        train([run], watching, on_divergence)
    return run


@contextmanager
def start(
    experiment: Experiment,
    out: str | Path | None,
    label: str | None = None,
    group: Sequence[Mapping[str, Any]] = (),
    *,
    trial: bool = False,
    overwrite: bool = False,
) -> Iterator[Run]:
    """A run that has not begun; during the block, nobody else writes to its directory.

    `group` says which runs of a comparison train together with it; a `trial` is one of a tuning, which has no use for
    predictions. With `overwrite`, a run that is there is replaced.
    """
    config = configuration(experiment, label or experiment.algorithm.label)
    config |= ({"group": list(group)} if group else {}) | ({"trial": True} if trial else {})
    environment = _environment(experiment)
    if out is None:
        yield Run(experiment, config, environment, None)
        return
    module = experiment.objects.model if isinstance(experiment.objects.model, nn.Module) else None
    with RunDirectory.create(out, config, environment, module, overwrite=overwrite) as directory:
        yield Run(experiment, config, environment, directory)


def reopen(experiment: Experiment, directory: RunDirectory) -> Run:
    """A run as its newest good checkpoint left it. Nothing in the directory is changed before it trains."""
    config = directory.config
    check_same(config, experiment.description)
    # The stored engine was not asked for by whoever resumes.
    reason = directory.environment.get("engine_reason", experiment.engine_reason)
    experiment = replace(experiment, engine_reason=reason)
    run = Run(experiment, config | {"options": asdict(experiment.options)}, directory.environment, directory)
    run.restore()
    if run.rounds > (rounds := experiment.options.rounds):
        raise ValueError(f"the run has {run.rounds} rounds already; rounds must be at least that, got {rounds}")
    if run.rounds < rounds and (changed := surroundings.differences(run.environment, _environment(experiment))):
        notice(f"{run.label}: last bits may differ from those of a run that never stopped: {changed}")
    return run


def _environment(experiment: Experiment) -> dict[str, Any]:
    engine, options = experiment.engine, experiment.options
    found = surroundings.describe(
        experiment.learner.device,
        precision=experiment.precision,
        engine=engine.setting,
        reason=experiment.engine_reason,
        workers=engine.workers,
        split=engine.threads is None and experiment.learner.device.type == "cpu",
    )
    return found | ({"actors": options.actors, "actor_threads": options.actor_threads} if options.actors else {})


def configuration(experiment: Experiment, label: str) -> dict[str, Any]:
    """All that `resume` needs; engine and device are those that were chosen, so that it continues with the same."""
    options = replace(experiment.options, engine=experiment.engine.setting, device=str(experiment.learner.device))
    # What reports draw of data that cannot be loaded again by name.
    split = {} if experiment.data.recipe else {"split": Split.of(experiment.data).plain()}
    return {"label": label, **experiment.description, "options": asdict(options), **split}
