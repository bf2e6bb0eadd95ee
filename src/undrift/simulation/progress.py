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

Tick = Callable[[int, dict[str, Any] | None], None]


class _Whole(NamedTuple):
    """The bar of several runs together, and the display it is in."""

    progress: Progress
    bar: TaskID


_whole: ContextVar[_Whole | None] = ContextVar("_whole", default=None)


@contextmanager
def together(label: str, rounds: int) -> Iterator[None]:
    """One bar for several runs, with the rounds of all of them; the run that goes on has its own below it."""
    if not sys.stderr.isatty():
        yield
        return
    with _display() as progress:
        token = _whole.set(_Whole(progress, progress.add_task(label, total=rounds, figures="")))
        try:
            yield
        finally:
            _whole.reset(token)


@contextmanager
def meter(label: str, rounds: int, runs: int = 1) -> Iterator[Tick]:
    """Yields ``tick(rounds done, row of the last round)``, for so many runs that go on side by side."""
    whole = _whole.get()
    if whole is None and not sys.stderr.isatty():
        yield lambda done, row: None
        return
    with _display() if whole is None else nullcontext(whole.progress) as progress:
        bar, before = progress.add_task(label, total=rounds, figures=""), 0

        def tick(done: int, row: dict[str, Any] | None) -> None:
            nonlocal before
            progress.update(bar, completed=done)
            if whole is not None:
                progress.advance(whole.bar, (done - before) * runs)
            before = done
            if row is not None and not math.isnan(row["accuracy"]):
                progress.update(bar, figures=f"accuracy {row['accuracy']:.1%}")
            elif row is not None and not math.isnan(row["train_loss"]):
                progress.update(bar, figures=f"training loss {row['train_loss']:.4g}")

        yield tick
        if whole is not None:  # a run may end early; the whole goes on without it
            progress.advance(whole.bar, (rounds - before) * runs)
            progress.remove_task(bar)


def _display() -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        expand=True,
        redirect_stdout=sys.stdout.isatty(),  # what goes to a file must not come out on the terminal
    )
