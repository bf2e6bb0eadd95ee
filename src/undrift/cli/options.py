"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undrift.cli import complete

DEFAULT_DATA = "digits"

# Arguments are explained by the command's text: with recent versions of click their own help is not shown.
ConfigFile = Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", hidden=True)]
AlgorithmList = Annotated[
    str,
    typer.Option(
        "--algorithms",
        "-a",
        metavar="LIST",
        help="As in fedavg,fedhbm or 'fedavg,fedadam(server_lr=0.01, lr=0.03)'.",
        autocompletion=complete.algorithms,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        "-d",
        metavar="NAME",
        help=f"Data set [dim]({DEFAULT_DATA})[/], or code: mine.py:load.",
        autocompletion=complete.datasets,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="Model [dim](the data set's default)[/], or code: net.py:Net.",
        autocompletion=complete.models,
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(
        metavar="SCHEME",
        help="How samples are split among clients, as in classes:2 or dirichlet:0.1.",
        autocompletion=complete.partitions,
    ),
]
Clients = Annotated[int | None, typer.Option(metavar="N", help="Number of clients that share the data.")]
Rounds = Annotated[int | None, typer.Option(metavar="N", help="Rounds of training.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any other setting, as in local.epochs=2; repeatable."),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Directory for all output [dim](runs/...)[/].")]
Targets = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Accuracies to count rounds and bytes to, as in 0.6,0.7, or shares of the centralised one: 90%.",
    ),
]
Last = Annotated[
    int | None, typer.Option("--last", metavar="K", help="Rounds that the mean at the end is over [dim](100)[/].")
]
Format = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="Print only the table: text, csv, markdown or latex (booktabs)."),
]
ColumnNames = Annotated[
    str | None,
    typer.Option("--columns", metavar="LIST", help="Columns of that table, as in accuracy,best_round,rounds,speed_up."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def shared_settings(
    data: str | None, partition: str | None, clients: int | None, model: str | None, rounds: int | None
) -> dict[str, str | int | float | None]:
    """The options that several commands have, by the names of their settings."""
    return {
        "data.name": data,
        "data.partition": partition,
        "data.clients": clients,
        "model.name": model,
        "run.rounds": rounds,
    }
