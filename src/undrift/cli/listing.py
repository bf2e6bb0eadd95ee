"""`undrift list`: what there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from undrift.cli.console import console, print_json, print_markup, print_table
from undrift.cli.help import examples
from undrift.cli.options import AsJson
from undrift.core.log import warning

Row = dict[str, Any]
_WIDE = 100  # columns of a terminal that has room for more than the essentials
_HEADINGS = {"name": "Name", "here": "Here", "about": "About"}


class Topic(StrEnum):
    ALGORITHMS = "algorithms"
    DATASETS = "datasets"
    MODELS = "models"
    PARTITIONS = "partitions"


def register(app: typer.Typer) -> None:
    app.command("list", epilog=examples("undrift list algorithms"))(list_topic)


def list_topic(
    topic: Annotated[Topic, typer.Argument(metavar="|".join(Topic), hidden=True)], as_json: AsJson = False
) -> None:
    """List algorithms, data sets, models or partitions."""
    rows = _ROWS[topic]()
    if as_json:
        print_json(rows)
    elif topic is Topic.ALGORITHMS:
        _print_algorithms(rows)
    else:
        print_table([_HEADINGS[key] for key in rows[0]], [[_cell(value) for value in row.values()] for row in rows])
    if topic is Topic.PARTITIONS and not as_json:
        print_markup("\n[dim]A number follows a colon, a minimum size a comma: classes:2, dirichlet:0.1,min=10[/]")


def _algorithms() -> list[Row]:
    import torch

    from undrift import algorithms
    from undrift.explain import page

    torch.set_num_threads(1)  # what is measured is tiny
    rows = []
    for name in algorithms.available():
        try:
            found = page(name)
        except Exception as error:  # the code of another package; its trouble must not hide the others
            warning(f"undrift: the algorithm {name!r} is left out: {type(error).__name__}: {error}")
            continue
        cost = found.cost
        rows.append(
            {
                "name": name,
                "year": found.year,
                "client_state": round(cost.client, 2),
                "server_state": round(cost.server, 2),
                "server_state_per_client": round(cost.server_per_client, 2),
                "down": round(cost.down, 2),
                "up": round(cost.up, 2),
                "gradients": round(cost.gradients, 2),
                "passes": round(cost.passes, 2),
                "stateless": cost.stateless,
                "title": found.title,
            }
        )
    return rows


def _datasets() -> list[Row]:
    from undrift.data import available, is_local

    return [{"name": name, "here": is_local(name), "about": about} for name, about in available().items()]


def _models() -> list[Row]:
    from undrift.models import available

    return [{"name": name, "about": about} for name, about in available().items()]


def _partitions() -> list[Row]:
    from undrift.data.partition import SCHEMES

    return [{"name": name, "about": (scheme.__doc__ or "").strip().splitlines()[0]} for name, scheme in SCHEMES.items()]


_ROWS: dict[Topic, Callable[[], list[Row]]] = {
    Topic.ALGORITHMS: _algorithms,
    Topic.DATASETS: _datasets,
    Topic.MODELS: _models,
    Topic.PARTITIONS: _partitions,
}


def _cell(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _print_algorithms(rows: Sequence[Row]) -> None:
    from undrift.explain import server_sizes, sizes

    columns: dict[str, Callable[[Row], str]] = {
        "Client": lambda row: "–" if row["stateless"] else sizes(row["client_state"]),
        "Server": lambda row: server_sizes(row["server_state"], row["server_state_per_client"]),
        "Down": lambda row: sizes(row["down"]),
        "Up": lambda row: sizes(row["up"]),
    }
    note = (
        "Sizes are measured, in models: what a client keeps, what the server keeps besides the model (N: for every "
        "client), and what a client receives and sends in a round."
    )
    if console().width >= _WIDE:
        columns["Grads"] = lambda row: sizes(row["gradients"])
        columns["Passes"] = lambda row: sizes(row["passes"])
        note += " Grads: gradients of a local step. Passes: further passes over all of a client's samples in a round."
    cells = [
        [
            row["name"],
            str(row["year"] or "–"),
            *(text(row) for text in columns.values()),
            Text(row["title"], no_wrap=True, overflow="ellipsis"),
        ]
        for row in rows
    ]
    print_table(["Name", "Year", *columns, "About"], cells, numbers=range(2, 2 + len(columns)))
    print_markup(f"\n[dim]{note} More: undrift explain NAME[/]")
