"""`undrift report`: runs that were kept, as one HTML page or as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from undrift.cli.console import print_json, print_markup, print_paths
from undrift.cli.help import examples
from undrift.cli.options import AsJson, ColumnNames, Format, Last, Targets
from undrift.cli.results import TableFormat, comparison_figures, listed, print_comparison, print_significance


def register(app: typer.Typer) -> None:
    epilog = examples(
        "undrift report runs/fedavg-digits-1 runs/fedhbm-digits-1 -o both.html",
        "undrift report runs/compare-digits-1 --figures figures",
        "undrift report runs/compare-digits-1 --targets 0.8,0.9 --format latex > table.tex",
    )
    app.command(epilog=epilog)(report)


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", hidden=True)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="The page [dim](DIR/report.html)[/].")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Save the curves there, over rounds, bytes, seconds: SVG, PDF, PNG."),
    ] = None,
    targets: Targets = None,
    last: Last = None,
    format: Format = None,
    columns: ColumnNames = None,
    as_json: AsJson = False,
) -> None:
    """Put runs into one HTML page, or print their table.

    Every DIR is a run directory or contains some. Runs of a comparison keep its order, the baseline first, and its
    targets. Of a tuning, the comparison of the winners is shown where there is one.

    Runs that differ in data, partition, model, loss or budget are different tasks, which are shown apart.

    The page needs no other file and no network. With --format or --json there is none, unless -o names it.
    """
    from undrift import Comparison
    from undrift.reporting.facts import names_of
    from undrift.reporting.headline import headline
    from undrift.reporting.task import by_task

    printed = TableFormat.checked(format or (None if columns is None else "text"), columns, as_json)
    comparison = Comparison.from_directories(directories, listed(targets), last)
    home = directories[0] if len(directories) == 1 else Path()
    page = None
    if output is not None or printed.name is None:
        page = comparison.report(output or home / "report.html")
    if figures is not None:
        comparison.figures(figures)
    if printed.name == "json":
        print_json(comparison_figures(comparison) | ({} if page is None else {"report": str(page)}))
        return
    if printed.name is not None:
        print_comparison(comparison, printed)
        return
    tasks = by_task(comparison.everything)
    for task, name in zip(tasks, names_of(tasks), strict=True):
        if len(tasks) > 1:
            print_markup(f"[bold]{escape(name)}[/]")
        print_markup(escape(headline(task, comparison.targets)))
        print_significance(task)
    assert page is not None, "a page is made where no table is asked for"
    print_paths(report=page, **({} if figures is None else {"figures": figures}))
