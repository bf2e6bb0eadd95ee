"""A progress bar with an estimate, on a terminal only."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Tick = Callable[[int, dict[str, Any] | None], None]


@contextmanager
def meter(label: str, rounds: int) -> Iterator[Tick]:
    """Yields ``tick(rounds done, row of the last round)``."""
    if not sys.stderr.isatty():
        yield lambda done, row: None
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(label, total=rounds, figures="")

        def tick(done: int, row: dict[str, Any] | None) -> None:
            progress.update(bar, completed=done)
            if row is not None and not math.isnan(row["accuracy"]):
                progress.update(bar, figures=f"accuracy {row['accuracy']:.1%}")
            elif row is not None and not math.isnan(row["train_loss"]):
                progress.update(bar, figures=f"training loss {row['train_loss']:.4g}")

        yield tick
