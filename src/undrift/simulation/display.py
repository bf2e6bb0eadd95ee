"""Where progress is shown: bars on a terminal, one bar in a notebook, now and then a line elsewhere (log files, CI)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from importlib import import_module
from time import monotonic
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.progress import Task as Bar
from rich.table import Column, Table
from rich.text import Text

from undrift.core.log import Pace, logger, printable, progress

_BAR, _NAME = 8, 12  # characters of a bar that can be read, and of a name
_ECHO = 3  # characters that stay free for the ^C of a terminal: on a line of its own it would shift the bars
_REDRAWN = 0.25  # seconds between changes of a bar in a notebook


@dataclass
class Task:
    """Rounds of a run, of several that train together, or of all runs of a comparison."""

    label: str
    total: int
    done: int = 0
    figures: tuple[str, ...] = ()
    _computed: int = 0  # of those that are done; others were there before, or were left out
    _began: float | None = None  # when the first round did
    _changed: float = 0.0

    def advance(self, rounds: int, *, computed: bool) -> None:
        """Further rounds, which have just been computed, or need not be."""
        self._changed = monotonic()
        self._began = self._changed if self._began is None else self._began
        self.done += rounds
        self._computed += rounds if computed else 0

    @property
    def left(self) -> float | None:
        """Seconds until it is done, if it goes on as it did; None if that is not known yet."""
        if self._computed <= 0 or self._began is None:
            return None
        expected = (self._changed - self._began) / self._computed * (self.total - self.done)
        return max(0.0, expected - (monotonic() - self._changed))


class Display(ExitStack):
    """Shows tasks, the first of which may comprise the others."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[Task] = []
        self._started = monotonic()

    def add(self, label: str, total: int) -> Task:
        self.tasks.append(Task(printable(label), total))
        return self.tasks[-1]

    def show(self, task: Task) -> None:
        """Called after every change of a task."""

    def remove(self, task: Task) -> None:
        self.tasks.remove(task)

    @property
    def elapsed(self) -> float:
        return monotonic() - self._started

    def text(self) -> str:
        """A line on the task that comprises the others, and on the newest."""
        whole, newest = self.tasks[0], self.tasks[-1]
        share = "" if whole is newest else f"{whole.label}, {whole.done / whole.total:.0%} done; "
        figures = [f"{share}{newest.label}: round {newest.done} of {newest.total}", *newest.figures]
        return ", ".join([*figures, times(self.elapsed, whole.left)])


def times(elapsed: float, left: float | None) -> str:
    return f"elapsed {_clock(elapsed)}" + ("" if not left else f", left {_clock(left)}")


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class Lines(Display):
    """Lines for a file."""

    def __init__(self) -> None:
        super().__init__()
        self._pace, self._last = Pace(), ""

    def show(self, task: Task) -> None:
        if self._pace.due(self.elapsed):
            self._last = self.text()
            progress(self._last)

    def __exit__(self, *error: Any) -> bool | None:
        if self._last and error[0] is None and (text := self.text()) != self._last:
            progress(text)
        return super().__exit__(*error)


class Notebook(Display):
    """A bar in the output of a cell."""

    def __enter__(self) -> Self:
        self._ipython = import_module("IPython.display")
        self._output = self._ipython.display(self._ipython.HTML(""), display_id=True)
        self._drawn = 0.0
        return super().__enter__()

    def show(self, task: Task) -> None:
        if self.elapsed - self._drawn >= _REDRAWN or task.done == task.total:
            self._draw()

    def _draw(self) -> None:
        self._drawn = self.elapsed
        whole = self.tasks[0]
        bar = f'<progress value="{whole.done}" max="{whole.total}"></progress>'
        self._output.update(self._ipython.HTML(f"{bar} {escape(self.text())}"))

    def __exit__(self, *error: Any) -> bool | None:
        self._draw()
        return super().__exit__(*error)


class Bars(Display):
    """A bar a task, on a terminal."""

    def __enter__(self) -> Self:
        self._progress = self.enter_context(_FittingBars(Console(stderr=True)))
        self._bars: dict[int, TaskID] = {}
        return super().__enter__()

    def add(self, label: str, total: int) -> Task:
        task = super().add(label, total)
        self._bars[id(task)] = self._progress.add_task(task.label, total=total, figures="", task=task)
        return task

    def show(self, task: Task) -> None:
        self._progress.update(self._bars[id(task)], completed=task.done, figures="".join(task.figures[-1:]))

    def remove(self, task: Task) -> None:
        self._progress.remove_task(self._bars.pop(id(task)))
        super().remove(task)


class _Times(ProgressColumn):
    max_refresh = 0.5

    def render(self, task: Bar) -> Text:
        elapsed = task.finished_time if task.finished else task.elapsed
        # Rich's own estimate takes rounds that were there before for fast ones.
        return Text(times(elapsed or 0.0, task.fields["task"].left), style="progress.remaining")


class _FittingBars(Progress):
    """Bars with as many columns as a terminal has room for: how long it takes is always shown."""

    def __init__(self, terminal: Console) -> None:
        self._terminal = terminal
        self._name = TextColumn("{task.description}", style="bold", markup=False)
        self._bar = BarColumn(bar_width=None, table_column=Column(ratio=1))
        self._count = MofNCompleteColumn(table_column=Column(no_wrap=True))
        self._figures = TextColumn("{task.fields[figures]}")
        self._times = _Times(table_column=Column(no_wrap=True))
        super().__init__(
            *(self._name, self._bar, self._count, self._figures, self._times),
            console=terminal,
            expand=True,
            # What is redirected to a file must not appear on the terminal.
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )

    def make_tasks_table(self, tasks: Iterable[Bar]) -> Table:
        bars = [task for task in tasks if task.visible]
        columns: list[ProgressColumn] = [self._name, self._bar, self._count, self._figures, self._times]
        for spare in (self._figures, self._bar, self._count):
            if min(self._width([self._name], bars), _NAME) + self._width(columns[1:], bars) >= self._terminal.width:
                columns.remove(spare)
        grid = Table.grid(*(column.get_table_column().copy() for column in columns), padding=(0, 1))
        if self._bar in columns:
            grid.width = self._terminal.width - _ECHO
        room = self._terminal.width - 1 - self._width(columns[1:], bars)
        grid.columns[0].max_width, grid.columns[0].overflow = max(room, 1), "ellipsis"  # of a long name, the beginning
        for bar in bars:
            grid.add_row(*(column(bar) for column in columns))
        return grid

    def _width(self, columns: Sequence[ProgressColumn], bars: Sequence[Bar]) -> int:
        """What columns take at least, with a space between each two."""
        least = {id(self._bar): _BAR, id(self._times): len(times(0, 1))}  # times that are not known yet come soon
        widths = (max([least.get(id(column), 0), *(_cells(column(bar)) for bar in bars)]) for column in columns)
        return sum(widths) + len(columns) - 1


def _cells(shown: RenderableType) -> int:
    """The width of a text; a bar has none of its own."""
    return shown.cell_len if isinstance(shown, Text) else 0


def choose() -> Display | None:
    """The display for where we are; none if notices are switched off: ``getLogger("undrift").setLevel("WARNING")``."""
    if not logger.isEnabledFor(logging.INFO):
        return None
    if Console().is_jupyter:
        return Notebook()
    return Bars() if sys.stderr is not None and sys.stderr.isatty() else Lines()
