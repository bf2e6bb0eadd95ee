"""`undrift resume`: continue a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undrift.cli.help import examples
from undrift.cli.options import AsJson
from undrift.cli.results import train


def register(app: typer.Typer) -> None:
    app.command(epilog=examples("undrift resume runs/fedhbm-digits-1 --rounds 200"))(resume)


def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", hidden=True)],
    rounds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Change the total number of rounds.")] = None,
    as_json: AsJson = False,
) -> None:
    """Resume a run that was stopped, or add rounds to it.

    DIR is its directory. The results are those of a run that was never stopped.
    """
    import undrift as ud

    train(lambda: ud.resume(directory, rounds), as_json)
