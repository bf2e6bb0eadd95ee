"""Progress bars with an estimate, on a terminal only."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from undrift.core.log import printable

Tick = Callable[[int, dict[str, Any] | None], None]


class _Overall(NamedTuple):
    """The bar of all runs of a comparison, and the display it is in."""

    progress: Progress
    bar: TaskID


_overall: ContextVar[_Overall | None] = ContextVar("_overall", default=None)


_hidden: ContextVar[bool] = ContextVar("_hidden", default=False)


@contextmanager
def hidden() -> Iterator[None]:
    """Meanwhile no bars are shown: for runs that are not the user's own."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


def _shows_bars() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and not _hidden.get()


@contextmanager
def overall_bar(label: str, rounds: int) -> Iterator[None]:
    """One bar for the rounds of several runs; the run that is training has its own below it."""
    if not _shows_bars():
        yield
        return
    with _display() as progress:
        token = _overall.set(_Overall(progress, progress.add_task(printable(label), total=rounds, figures="")))
        try:
            yield
        finally:
            _overall.reset(token)


@contextmanager
def progress_bar(label: str, rounds: int, runs: int = 1) -> Iterator[Tick]:
    """Yields ``tick(rounds done, row of the last round)``, for `runs` runs that train together."""
    overall = _overall.get()
    if _hidden.get() or (overall is None and not _shows_bars()):
        yield lambda done, row: None
        return
    with _display() if overall is None else nullcontext(overall.progress) as progress:
        bar, before = progress.add_task(printable(label), total=rounds, figures=""), 0

        def tick(done: int, row: dict[str, Any] | None) -> None:
            nonlocal before
            progress.update(bar, completed=done)
            if overall is not None:
                progress.advance(overall.bar, (done - before) * runs)
            before = done
            if row is not None and not math.isnan(row["accuracy"]):
                progress.update(bar, figures=f"accuracy {row['accuracy']:.1%}")
            elif row is not None and not math.isnan(row["train_loss"]):
                progress.update(bar, figures=f"training loss {row['train_loss']:.4g}")

        yield tick
        if overall is not None:  # a run may end early; its remaining rounds count as done
            progress.advance(overall.bar, (rounds - before) * runs)
            progress.remove_task(bar)


def _display() -> Progress:
    return Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TextColumn("elapsed"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        expand=True,
        # What is redirected to a file must not appear on the terminal.
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
    )
