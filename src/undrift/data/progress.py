"""How far a download, or the reading of a data set, is: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from undrift.core.log import Pace, progress

Advance = Callable[[int], None]


@contextmanager
def download(name: str, size: int) -> Iterator[Advance]:
    """Of so many bytes; in a file, a line at the beginning says how many."""
    what = f"downloading {name}"
    if not _on_terminal():
        progress(f"{what}: {decimal(size)}")
        yield _lines(what, size, decimal)
        return
    with _bar(what, size, DownloadColumn(), TransferSpeedColumn()) as advance:
        yield advance


@contextmanager
def reading(what: str, rows: int) -> Iterator[Advance]:
    """Of so many rows."""
    if not _on_terminal():
        yield _lines(f"reading {what}", rows, lambda count: f"{count:,}")
        return
    with _bar(f"reading {what}", rows, MofNCompleteColumn()) as advance:
        yield advance


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def _bar(what: str, total: int, *columns: ProgressColumn) -> Iterator[Advance]:
    shown = (TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn())
    with Progress(*shown, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda count: bars.advance(task, count)


def _lines(what: str, total: int, text: Callable[[int], str]) -> Advance:
    started, pace, done = monotonic(), Pace(), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if pace.due(monotonic() - started):
            progress(f"{what}: {text(done)} of {text(total)}, {done / total:.0%}")

    return advance
