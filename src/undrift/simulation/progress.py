"""How far runs are, as a display shows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

from undrift.simulation.display import Display, Task, choose

Tick = Callable[[int, dict[str, Any] | None], None]


class _Overall(NamedTuple):
    """The task of all runs of a comparison, and the display it is in."""

    display: Display
    task: Task

    def advance(self, rounds: int, *, computed: bool) -> None:
        self.task.advance(rounds, computed=computed)
        self.display.show(self.task)


_overall: ContextVar[_Overall | None] = ContextVar("_overall", default=None)


_hidden: ContextVar[bool] = ContextVar("_hidden", default=False)
_counted: ContextVar[int] = ContextVar("_counted", default=0)  # rounds of every run that the overall bar has already


@contextmanager
def hidden() -> Iterator[None]:
    """Meanwhile nothing is shown: for runs that are not the user's own."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


@contextmanager
def overall_bar(label: str, rounds: int) -> Iterator[None]:
    """One bar for the rounds of several runs; the run that is training has its own below it."""
    if _hidden.get() or (display := choose()) is None:
        yield
        return
    with display:
        token = _overall.set(_Overall(display, display.add(label, rounds)))
        try:
            yield
        finally:
            _overall.reset(token)


@contextmanager
def counted(rounds: int) -> Iterator[None]:
    """Meanwhile runs are continued whose first rounds the overall bar has counted."""
    token = _counted.set(rounds)
    try:
        yield
    finally:
        _counted.reset(token)


def skipped(rounds: int) -> None:
    """Rounds of the overall bar that need not be computed."""
    if (overall := _overall.get()) is not None:
        overall.advance(rounds, computed=False)


@contextmanager
def progress_bar(label: str, rounds: int, runs: int = 1) -> Iterator[Tick]:
    """Yields ``tick(rounds done, row of the last round)``, for `runs` runs that train together.

    Its first call tells how many rounds there are already.
    """
    overall = _overall.get()
    display = None if _hidden.get() else choose() if overall is None else overall.display
    if display is None:
        yield lambda done, row: None
        return
    with display if overall is None else nullcontext():
        task, begun = display.add(label, rounds), False

        def tick(done: int, row: dict[str, Any] | None) -> None:
            nonlocal begun
            new = max(0, done - max(task.done, _counted.get()))
            task.advance(done - task.done, computed=begun)
            task.figures = task.figures if row is None else _figures(row, task.figures)
            if overall is not None:
                overall.advance(new * runs, computed=begun)
            display.show(task)
            begun = True

        yield tick
        if overall is not None:  # a run may end early; its remaining rounds count as done
            overall.advance((rounds - task.done) * runs, computed=False)
            display.remove(task)


def _figures(row: dict[str, Any], before: tuple[str, ...]) -> tuple[str, ...]:
    """Training loss and accuracy; the last known one where a round was not evaluated."""
    accuracy = "" if math.isnan(row["accuracy"]) else f"accuracy {row['accuracy']:.1%}"
    known = [accuracy] if accuracy else [figure for figure in before if figure.startswith("accuracy")]
    loss = [] if math.isnan(row["train_loss"]) else [f"training loss {row['train_loss']:.4g}"]
    return (*loss, *known)
