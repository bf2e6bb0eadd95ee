"""`undrift show diagnostics`: drift diagnostics of runs, as a picture and a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undrift.cli.console import print_json, print_paths, print_table
from undrift.cli.help import examples
from undrift.cli.options import AsJson


def register(commands: typer.Typer) -> None:
    commands.command(epilog=examples("undrift show diagnostics runs/iid runs/skewed -c gradient_norm/mean -o fig.pdf"))(
        diagnostics
    )


def diagnostics(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", hidden=True)],
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns", "-c", metavar="LIST", help="Such as client_distance/max [dim](the first of each)[/]."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The picture: .svg, .png or .pdf.")] = Path(
        "diagnostics.svg"
    ),
    as_json: AsJson = False,
) -> None:
    """Draw the drift diagnostics of runs, over rounds and by layer.

    Every DIR is a run directory or contains some, trained with --set run.diagnostics=NAMES.

    The table has the figures at the end of training, the mean over the last tenth of the rounds.
    """
    from undrift import Comparison
    from undrift.reporting.wording import number_text

    comparison = Comparison.from_directories(directories)
    chosen = None if columns is None else [name.strip() for name in columns.split(",")]
    picture = comparison.draw_diagnostics(out, chosen)
    table = comparison.diagnostics(chosen)
    if as_json:
        known = table.astype(object).where(table.notna(), None)  # JSON has no NaN
        print_json({"picture": str(picture), "figures": known.to_dict("records")})
        return
    labels = list(table.columns[2:])
    rows = [[row["figure"], row["of"], *(number_text(row[label]) for label in labels)] for _, row in table.iterrows()]
    print_table(["Figure", "Of", *labels], rows, numbers=range(2, 2 + len(labels)))
    print_paths(picture=picture)
