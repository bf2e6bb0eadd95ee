"""`undrift report`: runs in one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from undrift.cli.console import print_markup, print_paths
from undrift.cli.help import examples


def register(app: typer.Typer) -> None:
    app.command(epilog=examples("undrift report runs/fedavg-digits-1 runs/fedhbm-digits-1 -o both.html"))(report)


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", hidden=True)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="The page [dim](DIR/report.html)[/].")
    ] = None,
) -> None:
    """Put runs into one HTML page.

    Every DIR is a run directory or contains some. Runs of a comparison keep its order, the baseline first.

    Runs that differ in data, partition, model, loss or budget are different tasks, which are shown apart.

    The page needs no other file and no network.
    """
    from undrift import Comparison
    from undrift.reporting.facts import names_of
    from undrift.reporting.headline import headline
    from undrift.reporting.task import by_task

    comparison = Comparison.from_directories(directories)
    home = directories[0] if len(directories) == 1 else Path()
    page = comparison.report(output or home / "report.html")
    tasks = by_task(comparison.records)
    for task, name in zip(tasks, names_of(tasks), strict=True):
        if len(tasks) > 1:
            print_markup(f"[bold]{escape(name)}[/]")
        print_markup(escape(headline(task, comparison.target)))
    print_paths(report=page)
