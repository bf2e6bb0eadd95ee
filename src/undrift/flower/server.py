"""The server's side of a Flower app: a run like that of a simulation, whose clients are Flower's nodes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from undrift.client import metrics
from undrift.core import check
from undrift.core.extras import needs
from undrift.core.log import notice, warning
from undrift.data.batches import Schedule
from undrift.data.federated import FederatedData
from undrift.flower.expected import expected_messages
from undrift.flower.facts import digest, facts
from undrift.flower.log import to_flower
from undrift.flower.nodes import Census, Nodes
from undrift.flower.order import Terms, new_name
from undrift.flower.samples import Samples
from undrift.flower.settings import ALGORITHM, MODEL, Federation, no_census, read_arguments, read_federation
from undrift.flower.transport import FlowerTransport
from undrift.methods.private import deployed
from undrift.reporting.record import RESERVED_NAMES
from undrift.reporting.wording import count_text
from undrift.simulation import cohort
from undrift.simulation.arguments import Arguments
from undrift.simulation.defaults import Resolved, resolve_defaults
from undrift.simulation.describe import check_same_algorithm, same_options
from undrift.simulation.loop import train
from undrift.simulation.prepare import Known, find_algorithm, prepare, with_engine
from undrift.simulation.run import Run
from undrift.simulation.setup import Experiment, Setup
from undrift.simulation.simulate import announce, reopen, start
from undrift.storage import files, fingerprint
from undrift.storage.directory import RunDirectory

with needs("flower"):
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

_SECRET = "cohorts.secret"  # a file of a private run's directory
_FEW = 4  # samples that stand for those of clients, where the model is tried


def server_app(
    test_samples: Callable[[Context], Samples], *, algorithm: Any = None, model: Any = None, loss: Any = None
) -> ServerApp:
    """A ServerApp that trains as `undrift.simulate` does, with the settings of the app's configuration.

    `test_samples` gives the samples by which the model is evaluated. Algorithm and model are named in the
    configuration, or given as objects here and to `client_app` alike, as a loss of one's own is.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with to_flower():
            serve(grid, context.run_config, test_samples(context), algorithm=algorithm, model=model, loss=loss)

    return app


def serve(
    grid: Grid,
    config: Mapping[str, Any],
    test: Samples,
    *,
    algorithm: Any = None,
    model: Any = None,
    loss: Any = None,
) -> Run:
    """Start the run that the configuration describes, or continue the one in its directory, to its last round."""
    federation, arguments = read_federation(config), _arguments(config, algorithm, model, loss)
    if not isinstance(test, Samples):
        raise TypeError(f"the function of the test samples must return Samples(x, y), got {check.shown(test)}")
    _refuse(arguments)
    draft = _prepared(arguments, _Population("", range(federation.clients), [1] * federation.clients), test)
    census = Census(grid, federation, facts(draft.setup, test), json.dumps(asdict(draft.setup.options)))
    census.take()
    _check_tests(draft.setup, census)
    with _opened(federation, arguments, census, test) as (run, population, resolved):
        run.open_transport = lambda experiment: _transport(experiment, grid, census, population, federation, test)
        announce(run, resolved)
        if run.rounds == run.options.rounds:
            notice(f"{federation.out} has all its {run.rounds} rounds; another run needs another federation.out")
        train([run], (), "raise")
    notice(f"the run is in {federation.out}; undrift report {federation.out} makes a page of it")
    notice(f"clients keep what they remember of it, in the folder {population.run}, as long as it may be continued")
    return run


class _Population(NamedTuple):
    """The clients of a run: what the server knows of their samples."""

    run: str  # the run's own name
    numbers: Sequence[int]
    samples: Sequence[int]


class _Prepared(NamedTuple):
    setup: Setup
    resolved: Resolved


def _arguments(config: Mapping[str, Any], algorithm: Any, model: Any, loss: Any) -> Arguments:
    given = read_arguments(config)
    chosen = algorithm or config.get(ALGORITHM)
    if chosen is None:
        raise ValueError(f"{ALGORITHM} is missing in [tool.flwr.app.config] of pyproject.toml")
    own: dict[str, Any] = {"loss": loss, "place": "flower", "engine": "sequential"}
    return Arguments(chosen, model or config.get(MODEL), **given | own)


def _refuse(arguments: Arguments) -> None:
    """What needs the samples of clients, or more of their training than messages bring."""
    if find_algorithm(arguments.algorithm).algorithm.pooled:
        raise ValueError("centralised training needs the samples of all clients in one place; simulate it instead")
    for name in ("faults", "attack"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"{name}={str(getattr(arguments, name))!r} is for simulations; a federation has its own")
    if arguments.privacy is None:
        return
    chosen = metrics.find(arguments.metrics, reserved=RESERVED_NAMES)
    for name, asked in (("run.diagnostics", arguments.diagnostics), ("run.metrics", chosen.of_clients)):
        if asked:
            given = f"{name}={','.join(asked)}"
            raise ValueError(f"with server.privacy, clients send clipped updates only: leave out {given}")


def _check_tests(setup: Setup, census: Census) -> None:
    """Refuses metrics of clients that have nothing to test their models on."""
    asked, without = setup.metrics.of_clients, [n for n, client in census.clients.items() if not client.tests]
    if asked and len(without) == len(census.clients):
        raise ValueError(
            f"run.metrics={','.join(asked)} needs clients with test samples of their own, and none has any; give "
            "Samples(x, y, test=(x, y))"
        )
    if asked and without:
        warning(f"{count_text(len(without), 'client')} without test samples count in no metric of clients")


@contextmanager
def _opened(
    federation: Federation, arguments: Arguments, census: Census, test: Samples
) -> Iterator[tuple[Run, _Population, Resolved]]:
    """A new run, or the one in its directory; during the block, nobody else writes there."""
    secret = "" if arguments.privacy is None else _secret(federation.out)
    if not RunDirectory.is_run(federation.out):
        numbers = sorted(census.clients)
        samples = [census.clients[number].samples for number in numbers]
        population = _Population(new_name(), numbers, samples)
        setup, resolved = _prepared(arguments, population, test)
        with start(_deployed(setup, secret), federation.out, resolved.label) as run:
            _keep_secret(federation.out, secret)
            yield run, population, resolved
        return
    directory = RunDirectory.open(federation.out)
    with directory.writing():
        population = _stored(directory)
        setup, resolved = _prepared(arguments, population, test)
        check_same_algorithm(directory, setup.algorithm)
        options = same_options(directory, setup.options)
        run = reopen(_deployed(replace(setup, options=options), secret), directory)
        _keep_secret(federation.out, secret)
        run.ended = False
        notice(f"{federation.out} is continued after round {run.rounds}")
        yield run, population, resolved


def _secret(out: Path) -> str:
    """What draws the cohorts of a private run: its own, or a new one. Reports do not show it."""
    file = out / _SECRET
    return file.read_text("ascii") if file.exists() else secrets.token_hex(16)


def _keep_secret(out: Path, secret: str) -> None:
    if secret:
        files.replace(out / _SECRET, secret.encode())
        (out / _SECRET).chmod(0o600)


def _deployed(setup: Setup, secret: str) -> Experiment:
    """The run as it is computed with real clients; with a `secret`, nobody can guess its cohorts."""
    if setup.objects.privacy is not None:
        _check_nothing_kept(setup)
        notice("noise and cohorts of a private run are secret and follow from no seed: it cannot be repeated")
    experiment = replace(with_engine(setup), deployed=True, cohort_secret=secret)
    return replace(experiment, method=deployed(experiment.method))


def _check_nothing_kept(setup: Setup) -> None:
    """Refuses algorithms whose server evaluates and exports a mean of what clients keep of the model."""
    parameters, buffers = setup.learner.parameters, setup.learner.buffers
    if {"private", "buffers"} & setup.method.client(parameters, buffers).keys():
        raise ValueError(
            f"privacy={str(setup.objects.privacy)!r} does not cover what clients keep of the model, of which the "
            "server evaluates the mean, without noise; give another algorithm, or buffers='dropped'"
        )


def _stored(directory: RunDirectory) -> _Population:
    stored = directory.config.get("data")
    if not isinstance(stored, dict) or not {"run", "clients", "samples"} <= stored.keys():
        raise ValueError(f"{directory.path} holds a run that is not of a federation; give another federation.out")
    return _Population(str(stored["run"]), stored["clients"], stored["samples"])


def _prepared(arguments: Arguments, population: _Population, test: Samples) -> _Prepared:
    data = _stand_in(population, test)
    resolved = resolve_defaults(arguments.objects, arguments.options, data)
    options = resolved.options
    schedule = Schedule(options.batch_size, None if options.steps else options.epochs, options.steps)
    cohort.size(options, len(data))
    known = Known(len(data), cohort.plan(options, schedule, data), no_census)
    return _Prepared(prepare(resolved.objects, options, known=known), resolved)


def _stand_in(population: _Population, test: Samples) -> FederatedData:
    """A federation with as many clients and samples, all of them copies of a few: only their numbers are used."""
    x, y = test.x[:_FEW], test.y[:_FEW]
    if not len(x):
        x, y = (torch.zeros((_FEW, *part.shape[1:]), dtype=part.dtype) for part in (test.x, test.y))
    sizes = np.array(population.samples, dtype=np.int64)
    data = FederatedData.from_rows(
        x,
        y,
        np.zeros(int(sizes.sum()), dtype=np.int64),
        sizes,
        test=(test.x, test.y) if len(test.x) else None,
        classes=test.classes,
        name=test.name,
        normalise=test.normalise,
    )
    about = {"run": population.run, "clients": list(population.numbers), "samples": sizes.tolist()}
    seen = test.kind | fingerprint.of_samples((test.x, test.y))
    data.recipe = about | {fingerprint.FINGERPRINT: files.digest(about | {"test": seen})}
    return data


def _transport(
    experiment: Experiment, grid: Grid, census: Census, population: _Population, federation: Federation, test: Samples
) -> FlowerTransport:
    size, data, learner = len(population.numbers), experiment.data, experiment.learner
    plan = cohort.plan(experiment.options, experiment.schedule, data)
    terms = Terms(population.run, digest(facts(experiment, test)), size, plan, experiment.options, learner.tried)
    return FlowerTransport(
        grid,
        Nodes(census, population.numbers, population.samples),
        terms,
        lambda round: expected_messages(experiment, size, round),
        experiment.method.client(learner.parameters, learner.buffers),
        federation,
    )
