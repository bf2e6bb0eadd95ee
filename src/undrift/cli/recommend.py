"""`undrift recommend`: which algorithm for a setting, from stored results."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from undrift.cli.console import print_json, print_markup, print_table
from undrift.cli.help import examples
from undrift.cli.options import AsJson, Partition

if TYPE_CHECKING:
    from undrift.recommendation.choose import Row

_SHOWN = 5  # algorithms, and FedAvg


def register(app: typer.Typer) -> None:
    epilog = examples(
        "undrift recommend --clients 5 --classes-per-client 2 --can-keep-state",
        "undrift recommend --clients 10000 --participation 0.01 --alpha 0.1",
        "undrift recommend --clients 20 --partition iid --can-keep-state --traffic 1",
    )
    app.command(epilog=epilog)(recommend)


def recommend(
    clients: Annotated[int, typer.Option(metavar="N", help="Number of clients.")],
    participation: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the clients that takes part in a round.")
    ] = 1.0,
    classes_per_client: Annotated[
        float | None, typer.Option(metavar="N", help="How many classes a client has samples of.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(metavar="α", help="Instead: of a Dirichlet distribution of classes.")
    ] = None,
    partition: Partition = None,
    classes: Annotated[int, typer.Option(metavar="N", help="Number of classes in all.")] = 10,
    can_keep_state: Annotated[
        bool, typer.Option("--can-keep-state", help="Clients return, and can keep a model or two between rounds.")
    ] = False,
    traffic: Annotated[
        float | None, typer.Option(metavar="X", help="At most so many times FedAvg's bytes, as in 1 or 1.5.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which algorithm to use, and how sure that is.

    Answers from stored results of all algorithms in settings that are like yours; nothing is trained.
    """
    from rich.markup import escape

    from undrift.recommendation.choose import recommend as choose

    found = choose(
        clients=clients,
        participation=participation,
        classes_per_client=classes_per_client,
        alpha=alpha,
        partition=partition,
        classes=classes,
        can_keep_state=can_keep_state,
        traffic=traffic,
    )
    if as_json:
        print_json(found.plain())
        return
    print_markup(f"\n[bold]{escape(found.answer)}[/]\n{escape(found.sure)}\n")
    shown = [row for number, row in enumerate(found.rows) if number < _SHOWN or row.algorithm == "fedavg"]
    heads = ["Algorithm", "Rank", "Accuracy", "vs FedAvg", "Certain?", "Traffic", "Rate", "Lost", "Memory"]
    print_table(heads, [_cells(row) for row in shown], numbers=range(1, 4))
    print_markup(f"[dim]The first of {len(found.rows)} that are allowed, in: {escape('; '.join(found.settings))}[/]\n")
    for line in (*found.distance, *found.notes):
        print_markup(f"[dim]· {escape(line)}[/]")
    print_markup(f"\n[dim]More: undrift explain {found.algorithm}[/]")


def _cells(row: Row) -> list[str]:
    baseline = not math.isfinite(row.over_fedavg) or row.algorithm == "fedavg"
    return [
        row.algorithm,
        f"{row.rank:.1f}",
        f"{100 * row.accuracy:.1f} %",
        "" if baseline else f"{100 * row.over_fedavg:+.1f}",
        "" if baseline else row.certain,
        f"{row.traffic:.2f}×",
        ", ".join(f"{rate:g}" for rate in row.rates),
        str(row.lost) if row.lost else "–",
        "at clients" if row.keeps_state else "of clients, at server" if row.server_per_client >= 0.5 else "–",
    ]
