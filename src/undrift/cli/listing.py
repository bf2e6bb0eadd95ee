"""`undrift list`: what there is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from undrift import overview
from undrift.cli.console import console, print_json, print_markup, print_table
from undrift.cli.help import examples
from undrift.cli.options import AsJson
from undrift.core.log import warning
from undrift.overview import Entry, server_sizes, sizes

Row = dict[str, Any]
_WIDTH = 100  # columns of the table of algorithms where there is no terminal
_WIDE = 140  # columns of a terminal that has room for more than the essentials
_HEADINGS = {"name": "Name", "here": "Here", "about": "About"}


class Topic(StrEnum):
    ALGORITHMS = "algorithms"
    DATASETS = "datasets"
    MODELS = "models"
    PARTITIONS = "partitions"
    DIAGNOSTICS = "diagnostics"


def register(app: typer.Typer) -> None:
    app.command("list", epilog=examples("undrift list algorithms"))(list_topic)


def list_topic(
    topic: Annotated[Topic, typer.Argument(metavar="|".join(Topic), hidden=True)], as_json: AsJson = False
) -> None:
    """List algorithms, data sets, models, partitions or drift diagnostics."""
    rows = _ROWS[topic]()
    if as_json:
        print_json(rows)
    elif topic is Topic.ALGORITHMS:
        _print_algorithms(rows)
    else:
        print_table([_HEADINGS[key] for key in rows[0]], [[_cell(value) for value in row.values()] for row in rows])
    if topic is Topic.PARTITIONS and not as_json:
        print_markup(
            "\n[dim]A number follows a colon, a minimum size a comma: classes:2, dirichlet:0.1,min=10. "
            "Clients of similar sizes: dirichlet:0.2,balanced,min=10[/]"
        )


def _algorithms() -> list[Row]:
    return [_row(entry) for entry in [*overview.algorithms().values(), *_of_other_packages()]]


def _of_other_packages() -> list[Entry]:
    """Algorithms that are installed besides, measured now; only they need torch."""
    if not entry_points(group="undrift.algorithms"):
        return []
    import torch

    from undrift import algorithms
    from undrift.explain import page

    torch.set_num_threads(1)  # what is measured is tiny
    found = []
    for name in algorithms.available().keys() - overview.algorithms().keys():
        try:
            each = page(name)
        except Exception as error:  # the code of another package; its trouble must not hide the others
            warning(f"undrift: the algorithm {name!r} is left out: {type(error).__name__}: {error}")
        else:
            found.append(Entry(name, each.title, each.year, each.cost))
    return sorted(found, key=lambda entry: entry.name)


def _row(entry: Entry) -> Row:
    cost = entry.cost
    return {
        "name": entry.name,
        "year": entry.year,
        "client_state": round(cost.client, 2),
        "server_state": round(cost.server, 2),
        "server_state_per_client": round(cost.server_per_client, 2),
        "down": round(cost.down, 2),
        "up": round(cost.up, 2),
        "gradients": round(cost.gradients, 2),
        "passes": round(cost.passes, 2),
        "stateless": cost.stateless,
        "title": entry.title,
    }


def _datasets() -> list[Row]:
    from undrift.data import available, is_local

    return [{"name": name, "here": is_local(name), "about": about} for name, about in available().items()]


def _named(topic: Topic) -> list[Row]:
    return [{"name": name, "about": about} for name, about in overview.named(topic).items()]


_ROWS: dict[Topic, Callable[[], list[Row]]] = {
    Topic.ALGORITHMS: _algorithms,
    Topic.DATASETS: _datasets,
    Topic.MODELS: partial(_named, Topic.MODELS),
    Topic.PARTITIONS: partial(_named, Topic.PARTITIONS),
    Topic.DIAGNOSTICS: partial(_named, Topic.DIAGNOSTICS),
}


def _cell(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _print_algorithms(rows: Sequence[Row]) -> None:
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
    width = console().width if sys.stdout.isatty() else _WIDTH
    if width >= _WIDE:
        columns["Grads"] = lambda row: sizes(row["gradients"])
        columns["Passes"] = lambda row: sizes(row["passes"])
        note += " Grads: gradients of a local step. Passes: further passes over all of a client's samples in a round."
    cells = [
        [row["name"], str(row["year"] or "–"), *(text(row) for text in columns.values()), row["title"]] for row in rows
    ]
    print_table(["Name", "Year", *columns, "About"], cells, numbers=range(2, 2 + len(columns)), width=width)
    print_markup(f"\n[dim]{note} More: undrift explain NAME[/]", width=width)
