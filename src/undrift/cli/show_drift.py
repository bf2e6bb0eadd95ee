"""`undrift show drift`: the paths of server and clients on two quadratics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undrift.cli.console import print_pairs, print_paths
from undrift.cli.help import examples
from undrift.cli.options import AlgorithmList
from undrift.cli.own_code import use_algorithms


def register(commands: typer.Typer) -> None:
    commands.command(epilog=examples('undrift show drift -a "fedavg,scaffold,fedprox(mu=0.1)" --steps 30'))(drift)


def drift(
    algorithms: AlgorithmList = "fedavg,scaffold,fedhbm",
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds.")] = 15,
    steps: Annotated[int, typer.Option(metavar="N", help="Local steps of a round.")] = 10,
    lr: Annotated[float, typer.Option(metavar="RATE", help="Local learning rate.")] = 0.3,
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", help="A page where time can be moved, .html, or a picture: .svg, .png, .pdf."),
    ] = Path("drift.html"),
) -> None:
    """Draw the paths of server and clients on two quadratic losses.

    Two clients with different optima are trained by the algorithms themselves; every local step is drawn.

    FedAvg ends where the clients' walks cancel out, away from the optimum of both.
    """
    algorithms = use_algorithms(algorithms) or ""
    from undrift.two_clients.drawing import Panel
    from undrift.two_clients.picture import check_target, trace, write

    target = check_target(out)
    paths = trace(algorithms, rounds=rounds, steps=steps, lr=lr)
    print_pairs({panel.title: panel.caption for panel in map(Panel, paths)})
    print_paths(picture=write(paths, target))
