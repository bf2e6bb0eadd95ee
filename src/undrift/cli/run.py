"""`undrift run`: one experiment, or the built-in example."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undrift.cli import complete
from undrift.cli.console import print_markup
from undrift.cli.help import CommandWithSettings, examples
from undrift.cli.options import (
    AsJson,
    Clients,
    ConfigFile,
    Data,
    Model,
    Out,
    Partition,
    Rounds,
    Settings,
    shared_settings,
)
from undrift.cli.own_code import options_with_code, resumed_with, short, use_algorithms, use_data, use_model
from undrift.cli.results import TableFormat, output_directory, show_comparison, train

if TYPE_CHECKING:
    from undrift.profile import Profile
    from undrift.simulation.run import Run


def register(app: typer.Typer) -> None:
    epilog = examples("undrift run -a fedhbm -m mlp --rounds 60 --lr 0.3")
    app.command(cls=CommandWithSettings, epilog=epilog)(run)


def run(
    config: ConfigFile = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            "-a",
            metavar="NAME",
            help="As in fedhbm, 'fedprox(mu=0.1)' or 'fedavg(lr=0.3)', or code: mine.py:Mine.",
            autocompletion=complete.algorithms,
        ),
    ] = None,
    data: Data = None,
    model: Model = None,
    partition: Partition = None,
    clients: Clients = None,
    rounds: Rounds = None,
    rate: Annotated[float | None, typer.Option("--lr", metavar="RATE", help="Local learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="S", help="Seed of everything random.")] = None,
    place: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where clients are computed: local [dim](default)[/] or ray.")
    ] = None,
    actors: Annotated[int | None, typer.Option(metavar="N", help="On Ray, the number of actors.")] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="On Ray, a cluster, or auto [dim](a local one is started)[/]."),
    ] = None,
    settings: Settings = None,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time of a round goes.")] = False,
    out: Out = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, if there is one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run one experiment; with no argument, the built-in example.

    The example compares FedAvg with FedHBM on digits; every client has two classes.

    CONFIG.toml holds settings, which options override. Every data set has defaults of its own.
    """
    given = shared_settings(data, partition, clients, model, rounds) | {"local.lr": rate, "run.seed": seed}
    given |= {"run.place": place, "run.actors": actors, "run.address": address}
    if (overwrite or resume) and out is None:
        raise ValueError(f"{'--overwrite' if overwrite else '--resume'} needs the directory of a run; give --out DIR")
    others = (config, algorithm, settings, profile or None)
    if all(value is None for value in (*given.values(), *others)):
        if overwrite or resume:
            raise ValueError("--overwrite and --resume are for one experiment; give its settings, such as -a fedavg")
        _example(out, as_json)
        return
    code = options_with_code(algorithm, data, model)
    use_model(model)
    use_data(data)
    algorithm = use_algorithms(algorithm)
    import undrift as ud
    from undrift.cli.config import combine, find_algorithm, resolve

    sections = combine(config, given, settings or (), algorithm)
    configuration = resolve(sections)
    chosen = find_algorithm(sections)
    arguments = configuration.arguments
    federation = configuration.federation(arguments["seed"])
    with output_directory(out, f"{chosen.algorithm.name()}-{short(configuration.data['name'])}") as home:
        profiler = _profile(home) if profile else None

        def simulate() -> Run:
            callbacks = [*configuration.trackers, *([] if profiler is None else [profiler])]
            where: dict[str, Any] = {"out": home, "overwrite": overwrite, "resume": resume}
            return ud.simulate(chosen, configuration.model, federation, callbacks=callbacks, **where, **arguments)

        with resumed_with(code, home):
            train(simulate, as_json, profiler)


def _profile(home: Path) -> Profile:
    from undrift.profile import Profile

    return Profile(home / "profile.json")


def _example(out: Path | None, as_json: bool) -> None:
    import torch

    from undrift.cli import example

    torch.set_num_threads(1)  # the matrices are so small that several threads would mostly wait for each other
    with output_directory(out, "demo") as home:
        if not as_json:
            print_markup(example.ABOUT)
        try:
            comparison = example.compare_both(home)
        except KeyboardInterrupt as interruption:
            interruption.args = ()  # there is nothing worth resuming
            raise
        show_comparison(comparison, home, TableFormat.checked(None, None, as_json))
