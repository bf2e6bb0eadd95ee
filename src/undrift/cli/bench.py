"""`undrift bench`: time per round with undrift, a plain loop and other libraries on this machine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from typer.core import TyperCommand

from undrift.cli.console import console
from undrift.cli.help import examples

if TYPE_CHECKING:
    from undrift.bench.session import Display

PRECISIONS = ("tf32", "fp32", "bf16")
_FAILED = 1


class BenchCommand(TyperCommand):
    """``--peers`` alone means all of them; Typer has no options whose value may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        alone = ["--peers=all" if a == "--peers" and b.startswith("-") else a for a, b in pairwise([*args, "--"])]
        return super().parse_args(ctx, alone)


def register(app: typer.Typer) -> None:
    app.command(cls=BenchCommand, epilog=examples("undrift bench --work W3 --peers fluke,pfl"))(bench)


def bench(
    work: Annotated[str, typer.Option("--work", "-w", metavar="LIST", help="Workloads, of W1 to W5.")] = "W1,W2,W3",
    peers: Annotated[
        str | None,
        typer.Option(metavar="[LIST]", help="Also other libraries: all, or some, as in fluke,pfl."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Timed rounds [dim](the workload's)[/].")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="How often every system is measured.")] = 2,
    device: Annotated[
        str | None, typer.Option(metavar="cpu|cuda", help="Where to train [dim](a GPU if there is one)[/].")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="|".join(PRECISIONS), help="Of products on a GPU [dim](each system's own)[/].")
    ] = None,
    results: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Add the results to this file.")
    ] = None,
    chart: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw a bar chart.")] = None,
) -> None:
    """Time undrift against a plain loop and other libraries.

    W1: MNIST, LeNet-5. W2: CIFAR-10, FedHBM's LeNet. W3: many tiny clients. W4: as pfl-research. W5: SCAFFOLD on W2.

    Systems take turns, each in its own process.

    Peers are fluke, flower, pfl and fedjax, on a GPU jax. They are installed once, each in its own environment.
    """
    from undrift.bench import workloads
    from undrift.bench.chart import check_name, draw
    from undrift.bench.session import Session
    from undrift.bench.systems import OURS
    from undrift.bench.systems import select as select_systems
    from undrift.bench.table import notes, table
    from undrift.core import check
    from undrift.simulation.prepare import find_device

    place = find_device(device).type
    check.choice("--device", place, ("cpu", "cuda"))
    if precision is not None:
        check.choice("--precision", precision, PRECISIONS)
        if place != "cuda":
            raise ValueError(f"--precision={precision} is for a GPU; on a CPU everything is computed in fp32")
    if chart is not None:
        check_name(chart)
    select_systems(peers, place, 1, compiled=False)  # refuses unknown names before anything is measured
    session = Session(
        workloads=workloads.select(work),
        peers=peers,
        rounds=rounds,
        repeats=repeats,
        device=place,
        precision=precision,
    )
    found = session.open_results(results)
    try:
        with _exit_on_sigterm(), _display(session.expected()) as display:
            session.run(found, results, display)
    except KeyboardInterrupt:
        kept = f"; results so far are in {results}" if results is not None and results.exists() else ""
        raise KeyboardInterrupt(f"interrupted{kept}") from None
    finally:
        if found.measurements:
            output = console()
            output.print(table(found, output.width))
            output.print()
            for note in notes(found):
                output.print(f"[dim]{escape(note)}[/]")
    if results is not None:
        print(f"results: {results}")
    if chart is not None:
        print(f"chart: {draw(found, chart)}")
    if any(row.why and row.system in (*OURS, "plain") for row in found.rows()):
        raise typer.Exit(_FAILED)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """On SIGTERM, exit cleanly, so that the process that is being measured ends, too."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _display(expected: float) -> Iterator[Display]:
    """A progress bar with a time estimate on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=3600,  # a process may take minutes
    ) as progress:
        yield _Bar(progress, expected)


class _Lines:
    def doing(self, text: str) -> None:
        pass

    def did(self, text: str, seconds: float) -> None:
        print(text, file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class _Bar:
    def __init__(self, progress: Progress, expected: float) -> None:
        self._progress = progress
        self._bar = progress.add_task("", total=expected)

    def doing(self, text: str) -> None:
        self._progress.update(self._bar, description=escape(text))

    def did(self, text: str, seconds: float) -> None:
        self._progress.console.print(escape(text), highlight=False)
        self._progress.advance(self._bar, seconds)

    def note(self, text: str) -> None:
        self._progress.console.print(escape(text), highlight=False, soft_wrap=True)
