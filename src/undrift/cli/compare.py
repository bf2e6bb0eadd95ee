"""`undrift compare`: several algorithms on the same data and the same seeds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from undrift.cli.help import CommandWithSettings, examples
from undrift.cli.options import (
    AlgorithmList,
    AsJson,
    Clients,
    ColumnNames,
    ConfigFile,
    Data,
    Format,
    Last,
    Model,
    Out,
    Partition,
    Rounds,
    Settings,
    Targets,
    shared_settings,
)
from undrift.cli.own_code import short, use_algorithms, use_data, use_model
from undrift.cli.results import TableFormat, listed, output_directory, show_comparison
from undrift.cli.varied import show_varied
from undrift.core import check


def register(app: typer.Typer) -> None:
    epilog = examples(
        "undrift compare -a fedavg,fedhbm --partition dirichlet:0.1 --seeds 5 --lr 0.1",
        "undrift compare -a fedavg,fedhbm --seeds 3 --targets 0.8,0.9 --format latex > table.tex",
        "undrift compare -a fedavg,fedhbm --vary data.partition=dirichlet:0.1,dirichlet:1 --seeds 3",
    )
    app.command(cls=CommandWithSettings, epilog=epilog)(compare)


def compare(
    config: ConfigFile = None,
    algorithms: AlgorithmList = "",
    data: Data = None,
    model: Model = None,
    partition: Partition = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seeds: Annotated[str | None, typer.Option(metavar="N", help="How many seeds [dim](1)[/], or which: 0,1,7.")] = None,
    rates: Annotated[
        str | None, typer.Option("--lr", metavar="LIST", help="Local learning rates, as in 0.01,0.1: a row for each.")
    ] = None,
    targets: Targets = None,
    last: Last = None,
    centralised: Annotated[
        bool, typer.Option("--centralised", help="Train on the pooled data as well, as a reference.")
    ] = False,
    vary: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=LIST",
            help="A setting with several values, as in data.partition=dirichlet:0.1,dirichlet:1 or feddpc.lam=0.1,1.",
        ),
    ] = None,
    settings: Settings = None,
    out: Out = None,
    format: Format = None,
    columns: ColumnNames = None,
    as_json: AsJson = False,
) -> None:
    """Compare algorithms on the same data and the same seeds.

    The first of them is the baseline of the others.

    CONFIG.toml holds settings, which options override, and in its section compare algorithms, seeds and targets.

    Every data set has defaults of its own. Clients are weighted by samples, unless server.weighting says otherwise.

    Runs that are in --out already are not repeated.
    """
    use_model(model)
    use_data(data)
    algorithms = use_algorithms(algorithms) or ""
    import undrift as ud
    from undrift.algorithms.text import split
    from undrift.cli.config import combine, find_comparison, find_measures, labelled, resolve
    from undrift.cli.values import argument, read_values
    from undrift.reporting.record import NAMED_METRICS
    from undrift.reporting.table import NAMES, check_names
    from undrift.simulation.vary import Loaded

    wanted = {"targets": listed(targets), "last_k": last, "centralised": centralised or None}
    printed = TableFormat.checked(format, columns, as_json)
    learning_rates = None if rates is None else _rates(rates)
    varied = None
    if vary is not None:
        name, values = read_values("--vary", vary)
        varied = {argument(name): values}
    given = shared_settings(data, partition, clients, model, rounds)
    sections = combine(config, given | {"local.lr": learning_rates and learning_rates[0]}, settings or ())
    configuration = resolve(sections)
    if printed.columns is not None:
        metrics = configuration.arguments["metrics"]
        check_names(printed.columns, [*NAMES, *NAMED_METRICS, *([metrics] if isinstance(metrics, str) else metrics)])
    configured, configured_seeds = find_comparison(sections)
    measures = find_measures(sections) | {key: value for key, value in wanted.items() if value is not None}
    chosen = labelled(split(algorithms)) or configured
    if not chosen:
        raise ValueError("compare needs algorithms, as in: undrift compare -a fedavg,fedhbm")
    arguments = dict(configuration.arguments)
    first_seed = arguments.pop("seed")
    if learning_rates is not None:
        arguments["lr"] = learning_rates
    with output_directory(out, f"compare-{short(configuration.data['name'])}") as home:
        try:
            comparison = ud.compare(
                chosen,
                configuration.model,
                Loaded(configuration.data),
                seeds=_counted("compare.seeds", configured_seeds or 1, first_seed)
                if seeds is None
                else seeds_of("--seeds", seeds, first_seed),
                vary=varied,
                callbacks=configuration.trackers,
                out=home,
                **measures,
                **arguments,
            )
        except KeyboardInterrupt as interruption:
            interruption.args = (f"interrupted; resume with the same command and --out {home}",)
            raise
        if varied is None:
            show_comparison(comparison, home, printed)
        else:
            show_varied(comparison, home, as_json)


def seeds_of(option: str, text: str, first: int | None) -> Any:
    """Of ``5``, five seeds from the first on, or the count if there is no first; of ``0,1,7``, these."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be a count or a list such as 0,1,7, got {check.shown(text)}") from None
    if len(numbers) == 1 and first is None:
        return numbers[0]
    return numbers if len(numbers) > 1 else _counted(option, numbers[0], first)


def _counted(name: str, seeds: int | list[int], first: int | None) -> list[int]:
    """Of a count, so many seeds from the first on."""
    from undrift.simulation.given import MOST_SEEDS

    if isinstance(seeds, list):
        return seeds
    check.integer(name, seeds, 1, MOST_SEEDS)
    return list(range(first or 0, (first or 0) + seeds))


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--lr must be a number or a list such as 0.01,0.1, got {check.shown(text)}") from None
