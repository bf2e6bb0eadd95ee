"""`undrift compare`: several algorithms on the same data and the same seeds."""

from __future__ import annotations

from typing import Annotated

import typer

from undrift.cli import complete
from undrift.cli.help import CommandWithSettings, examples
from undrift.cli.options import AsJson, Clients, ConfigFile, Data, Model, Out, Partition, Rounds, Settings
from undrift.cli.own_code import short, use_algorithms, use_data, use_model
from undrift.cli.results import output_directory, show_comparison
from undrift.core import check


def register(app: typer.Typer) -> None:
    epilog = examples("undrift compare -a fedavg,fedhbm --partition dirichlet:0.1 --seeds 5 --lr 0.1")
    app.command(cls=CommandWithSettings, epilog=epilog)(compare)


def compare(
    config: ConfigFile = None,
    algorithms: Annotated[
        str,
        typer.Option(
            "--algorithms",
            "-a",
            metavar="LIST",
            help="As in fedavg,fedhbm or 'fedprox(mu=0.1),fedavg'.",
            autocompletion=complete.algorithms,
        ),
    ] = "",
    data: Data = None,
    model: Model = None,
    partition: Partition = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seeds: Annotated[
        str, typer.Option(metavar="N", help="How many seeds [dim](1)[/], or which: 0,1,7.", show_default=False)
    ] = "1",
    rates: Annotated[
        str | None, typer.Option("--lr", metavar="LIST", help="Local learning rates, as in 0.01,0.1: a row for each.")
    ] = None,
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare algorithms on the same data and the same seeds.

    The first of them is the baseline of the others.

    CONFIG.toml holds settings, which options override. Every data set has defaults of its own.

    Runs that are in --out already are not repeated.
    """
    use_model(model)
    use_data(data)
    algorithms = use_algorithms(algorithms) or ""
    import undrift as ud
    from undrift.algorithms.text import parse, split
    from undrift.cli.config import combine, resolve

    learning_rates = None if rates is None else _rates(rates)
    given = {
        "data.name": data,
        "data.partition": partition,
        "data.clients": clients,
        "model.name": model,
        "run.rounds": rounds,
        "local.lr": learning_rates and learning_rates[0],
    }
    configuration = resolve(combine(config, given, settings or ()))
    chosen = [parse(text) for text in split(algorithms)]
    labels = [each.label for each in chosen]
    if not chosen:
        raise ValueError("compare needs algorithms, as in: undrift compare -a fedavg,fedhbm")
    if len(set(labels)) < len(labels):
        raise ValueError(f"algorithms must differ, got {', '.join(labels)}")
    arguments = dict(configuration.arguments)
    first_seed = arguments.pop("seed")
    if learning_rates is not None:
        arguments["lr"] = learning_rates
    with output_directory(out, f"compare-{short(configuration.data['name'])}") as home:
        try:
            comparison = ud.compare(
                dict(zip(labels, chosen, strict=True)),
                configuration.model,
                configuration.federation,
                seeds=_seeds(seeds, first_seed),
                out=home,
                **arguments,
            )
        except KeyboardInterrupt as interruption:
            interruption.args = (f"interrupted; resume with the same command and --out {home}",)
            raise
        show_comparison(comparison, home, as_json)


def _seeds(text: str, first: int) -> list[int]:
    """Of ``5``, five seeds from the first on; of ``0,1,7``, these."""
    from undrift.simulation.compare import MOST_SEEDS

    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds must be a count or a list such as 0,1,7, got {check.shown(text)}") from None
    if len(numbers) > 1:
        return numbers
    check.integer("--seeds", numbers[0], 1, MOST_SEEDS)
    return list(range(first, first + numbers[0]))


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--lr must be a number or a list such as 0.01,0.1, got {check.shown(text)}") from None
