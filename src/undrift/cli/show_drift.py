"""`undrift show drift`: the paths of server and clients on two quadratics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undrift.cli import complete
from undrift.cli.console import print_paths
from undrift.cli.help import examples
from undrift.cli.own_code import use_algorithms


def register(commands: typer.Typer) -> None:
    commands.command(epilog=examples('undrift show drift -a "fedavg,scaffold,fedprox(mu=0.1)" --steps 30'))(drift)


def drift(
    algorithms: Annotated[
        str,
        typer.Option(
            "--algorithms",
            "-a",
            metavar="LIST",
            help="A panel for each; options as in 'fedavg,fedprox(mu=0.1)'.",
            autocompletion=complete.algorithms,
        ),
    ] = "fedavg,scaffold,fedhbm",
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds.")] = 15,
    steps: Annotated[int, typer.Option(metavar="N", help="Local steps of a round.")] = 20,
    lr: Annotated[float, typer.Option(metavar="RATE", help="Local learning rate.")] = 0.3,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The picture, .svg.")] = Path("drift.svg"),
) -> None:
    """Draw the paths of server and clients on two quadratic losses.

    Two clients with different optima are trained by the real algorithms, every local step is drawn.
    """
    algorithms = use_algorithms(algorithms) or ""
    import undrift as ud

    print_paths(picture=ud.draw_drift(algorithms, out, rounds=rounds, steps=steps, lr=lr))
