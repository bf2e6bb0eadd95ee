"""`undrift tune`: rates and options for every algorithm, and then a comparison of the best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from undrift.cli.compare import seeds_of
from undrift.cli.console import print_json, print_markup, print_paths, print_table
from undrift.cli.help import CommandWithSettings, examples
from undrift.cli.options import (
    AlgorithmList,
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
from undrift.cli.own_code import short, use_algorithms, use_data, use_model
from undrift.cli.results import TableFormat, comparison_figures, output_directory, show_comparison

if TYPE_CHECKING:
    from undrift.tuning import Tuning


def register(app: typer.Typer) -> None:
    epilog = examples(
        "undrift tune -a fedavg,scaffold --partition dirichlet:0.1 --compare --seeds 3",
        "undrift tune -a fedavg,fedprox --grid lr=0.01,0.1,1 --grid fedprox.mu=0.01,0.1 --method halving",
    )
    app.command(cls=CommandWithSettings, epilog=epilog)(tune)


def tune(
    config: ConfigFile = None,
    algorithms: AlgorithmList = "",
    data: Data = None,
    model: Model = None,
    partition: Partition = None,
    clients: Clients = None,
    rounds: Rounds = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LIST",
            help="Values to try, as in lr=0.01,0.1 or fedprox.mu=0.1,1; repeatable. Or a paper's grid: feddpc, fedhbm "
            "[dim](rates around the data set's)[/].",
        ),
    ] = None,
    method: Annotated[str, typer.Option(metavar="NAME", help="grid, halving or optuna.")] = "grid",
    budget: Annotated[
        int | None,
        typer.Option(metavar="N", help="Configurations of every algorithm [dim](those of the smallest grid)[/]."),
    ] = None,
    share: Annotated[
        float, typer.Option("--validation-share", metavar="SHARE", help="Part of the training samples held out.")
    ] = 0.2,
    tuning_seeds: Annotated[
        str, typer.Option(metavar="N", help="How many seeds every configuration is tried with, or which.")
    ] = "1",
    compare: Annotated[bool, typer.Option("--compare", help="Compare the best of each, with fresh seeds.")] = False,
    seeds: Annotated[
        str | None, typer.Option(metavar="N", help="How many seeds the comparison has [dim](5)[/], or which: 7,8,9.")
    ] = None,
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Choose rates and options of algorithms, each with the same budget, on held-out training data.

    The test set is not looked at before the comparison.

    The same command with the same --out continues a tuning that was interrupted.
    """
    use_model(model)
    use_data(data)
    algorithms = use_algorithms(algorithms) or ""
    import undrift as ud
    from undrift.algorithms.text import split
    from undrift.cli.config import combine, find_comparison, labelled, resolve
    from undrift.cli.values import read_grid
    from undrift.simulation.vary import Loaded

    sections = combine(config, shared_settings(data, partition, clients, model, rounds), settings or ())
    configuration = resolve(sections)
    if configuration.trackers:
        raise ValueError("run.trackers is for undrift run and undrift compare, which take the winners of undrift tune")
    chosen = labelled(split(algorithms)) or find_comparison(sections)[0]
    if not chosen:
        raise ValueError("tune needs algorithms, as in: undrift tune -a fedavg,fedhbm")
    if seeds is not None and not compare:
        raise ValueError("--seeds is for --compare; configurations are tried with --tuning-seeds")
    arguments = dict(configuration.arguments)
    first = arguments.pop("seed")
    fresh = None if seeds is None else seeds_of("--seeds", seeds, None)
    with output_directory(out, f"tune-{short(configuration.data['name'])}") as home:
        try:
            tuning = ud.tune(
                chosen,
                configuration.model,
                Loaded(configuration.data),
                seeds=seeds_of("--tuning-seeds", tuning_seeds, first),
                grid=read_grid(grid or ()),
                method=method,
                budget=budget,
                validation_share=share,
                out=home,
                **arguments,
            )
            if not as_json:
                _show(tuning, home)
            comparison = tuning.compare(5 if fresh is None else fresh) if compare else None
        except KeyboardInterrupt as interruption:
            interruption.args = (f"interrupted; resume with the same command and --out {home}",)
            raise
        if as_json:
            rows = json.loads(tuning.table().to_json(orient="records", double_precision=15))
            found = {"best": tuning.best(), "notes": tuning.notes, "table": rows, "out": str(home)}
            if comparison is not None:
                found["comparison"] = comparison_figures(comparison)
                found["report"] = str(comparison.report(home / "report.html"))
            print_json(found)
        elif comparison is not None:
            show_comparison(comparison, home, TableFormat(None, None))


def _show(tuning: Tuning, home: Path) -> None:
    """A row per algorithm: what was chosen out of how many, and what it reached."""
    choices = tuning.choices
    print()
    print_table([heading.replace(" ", "\n") for heading in choices.headings], choices.chosen, numbers=range(2, 5))
    print_markup("".join(f"{escape(note)}\n" for note in choices.notes))
    print_paths(tuning=home)
