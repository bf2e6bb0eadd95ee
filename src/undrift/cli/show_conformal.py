"""`undrift show conformal`: how large prediction sets are for which coverage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undrift.cli.console import print_paths
from undrift.cli.help import examples


def register(commands: typer.Typer) -> None:
    commands.command(epilog=examples("undrift show conformal runs/mine --method adaptive --out sets.svg"))(conformal)


def conformal(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", hidden=True)],
    method: Annotated[str, typer.Option(metavar="NAME", help="threshold, adaptive or regularised.")] = "threshold",
    levels: Annotated[
        str, typer.Option(metavar="LIST", help="Coverages to aim at, as in 0.8,0.9 [dim](0.5 to 0.99)[/].")
    ] = "",
    out: Annotated[Path, typer.Option(metavar="FILE", help="A picture: .svg, .png or .pdf.")] = Path("conformal.svg"),
) -> None:
    """Draw mean size against coverage of conformal prediction sets.

    Every DIR is a run directory or contains some. Half of the test samples calibrate the sets, the others test them.

    Smaller sets at the same coverage are better.
    """
    from undrift import Comparison
    from undrift.core import check
    from undrift.reporting.conformal import SUFFIXES, picture
    from undrift.statistics.conformal import Conformal, check_levels
    from undrift.storage.files import replace

    target, sets = check.path("out", out), Conformal(method)
    if target.suffix not in SUFFIXES:
        raise ValueError(f"the picture is one of {', '.join(SUFFIXES)}, got {check.shown(str(out))}")
    chosen = check_levels(_numbers(levels)) if levels else None
    content = picture(Comparison.from_directories(directories).everything, chosen, sets, target.suffix[1:])
    target.parent.mkdir(parents=True, exist_ok=True)
    replace(target, content)
    print_paths(picture=target)


def _numbers(levels: str) -> list[float]:
    try:
        return [float(part) for part in levels.split(",")]
    except ValueError:
        raise ValueError(f"levels are numbers such as 0.8,0.9, got {levels!r}") from None
