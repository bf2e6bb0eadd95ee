"""Runs in a notebook: a table, and curves drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from undrift.core import check
from undrift.core.extras import needs
from undrift.diagnostics.columns import is_diagnostic
from undrift.reporting import sensitivity
from undrift.reporting.charts import axes_of, mean_progress, progress
from undrift.reporting.colours import Colour, colours_of
from undrift.reporting.facts import names_of
from undrift.reporting.figures import apart, by_label, values_of
from undrift.reporting.record import HistoryColumn, Record, shown_columns
from undrift.reporting.table import columns, note
from undrift.reporting.targets import Targets
from undrift.reporting.task import by_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def html_table(records: Sequence[Record], targets: Targets = None, last_k: int | None = None) -> str:
    """The summary table, one for each task, and what to know of it."""
    tasks = by_task(records)
    titles = [f"<p><b>{escape(name)}</b></p>" for name in names_of(tasks)] if len(tasks) > 1 else [""]
    return "".join(title + _task_table(task, targets, last_k) for title, task in zip(titles, tasks, strict=True))


def _task_table(records: Sequence[Record], targets: Targets, last_k: int | None) -> str:
    table = columns(records, targets, last_k)
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in table)
    rows = zip(
        *([_cell(text, row in column.best) for row, text in enumerate(column.cells)] for column in table), strict=True
    )
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    below = f"<p><small>{escape(note(records, targets, last_k))}</small></p>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _cell(text: str, best: bool) -> str:
    return f"<td><b>{escape(text)}</b></td>" if best else f"<td>{escape(text)}</td>"


AGAINST = {"rounds": "round", "bytes": "traffic", "seconds": "elapsed"}  # what curves are drawn against
FORMATS = ("svg", "pdf", "png")


def draw(
    records: Sequence[Record],
    column: str | None = None,
    axes: Axes | None = None,
    against: str = "rounds",
    colours: Mapping[str, Colour] | None = None,
) -> Axes:
    """Curves of a column of the histories, by default the accuracy, else a loss: over rounds, bytes or seconds.

    Of several seeds, the line is their mean and the band reaches from the lowest to the highest. Runs that failed are
    no part of a mean: each has a dotted line of its own. References are dashed lines where they ended. Colours, by
    label, are by default those of the report; of several tasks, labels name theirs.
    """
    check.choice("against", against, tuple(AGAINST))
    records, references = apart(with_tasks(records))
    colours, shown = colours or colours_of(records), _shown(records, column)
    known = {axis.key: axis for axis in axes_of(records)}
    if (axis := known.get(AGAINST[against])) is None:
        raise ValueError(f"these runs have no {against} to draw against")
    axes = new_axes() if axes is None else axes
    scale = 100 if shown.percent else 1
    for label, runs in by_label(records).items():
        finished = [progress(run, shown.name) for run in runs if not run.failed]
        curve = mean_progress(finished or [progress(runs[0], shown.name).head(0)])
        x, colour = curve[axis.key] / axis.scale, colours[label].light
        axes.plot(x, curve["y"] * scale, "--" if colours[label].dashed else "-", color=colour, label=label)
        if len(finished) > 1:
            axes.fill_between(x, curve["low"] * scale, curve["high"] * scale, color=colour, alpha=0.2, linewidth=0)
        for alone in (progress(run, shown.name) for run in runs if run.failed):
            axes.plot(alone[axis.key] / axis.scale, alone["y"] * scale, ":", color=colour)
    for label, runs in by_label(references).items():
        ends = [values.iloc[-1] for run in runs if len(values := progress(run, shown.name)["y"])]
        if ends:
            axes.axhline(float(np.mean(ends)) * scale, color="0.4", linestyle=(0, (8, 4)), linewidth=1.2, label=label)
    axes.set(xlabel=axis.title, ylabel=f"{shown.chart} (%)" if shown.percent else shown.chart or shown.name)
    axes.legend()
    return axes


def new_axes() -> Axes:
    with needs("plot"):
        import matplotlib.pyplot as plt  # slow to import

    return plt.subplots(layout="constrained")[1]


def write_figures(
    records: Sequence[Record], folder: str | Path, column: str | None, formats: Sequence[str]
) -> list[Path]:
    """The curves of `draw` against all that there is, and the accuracy against a setting that varies, as files."""
    with needs("plot"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure  # draws without a screen

    for each in formats:
        check.choice("formats: a format", each, FORMATS)
    folder = check.path("folder", folder)
    name, known = _shown(records, column).name, {axis.key for axis in axes_of(apart(records)[0])}
    folder.mkdir(parents=True, exist_ok=True)
    drawings: dict[str, Callable[[Axes], Axes]] = {
        f"{name}-{against}": partial(_draw_on, records, column, against)
        for against, key in AGAINST.items()
        if key in known
    }
    if (varied := sensitivity.sensitivity_of(apart(records)[0])) is not None:
        drawings[f"accuracy-{varied.key}"] = partial(sensitivity.draw, varied)
    written = []
    for stem, drawing in drawings.items():
        figure = Figure(figsize=(5, 3.5), layout="constrained")
        drawing(figure.subplots())
        for each in formats:
            written.append(folder / f"{stem.replace('/', '-')}.{each}")
            # The same runs make the same file: without a date, and with names that are no random numbers.
            dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(each)
            with rc_context({"svg.hashsalt": "undrift", "pdf.fonttype": 42}):
                figure.savefig(written[-1], dpi=200, metadata=dates)
    return written


def _draw_on(records: Sequence[Record], column: str | None, against: str, axes: Axes) -> Axes:
    return draw(records, column, axes, against)


def with_tasks(records: Sequence[Record]) -> Sequence[Record]:
    """The records with what tells their tasks apart in the labels, where there are several tasks."""
    tasks = by_task(records)
    if len(tasks) == 1:
        return records
    named = zip(tasks, names_of(tasks, brief=True), strict=True)
    return [record._replace(label=f"{record.label} · {name}") for task, name in named for record in task]


def _can_be_drawn(column: HistoryColumn) -> bool:
    return column.chart is not None or is_diagnostic(column.name)


def _shown(records: Sequence[Record], column: str | None) -> HistoryColumn:
    drawn = {each.name: each for each in shown_columns(record.history for record in records) if _can_be_drawn(each)}
    if column is not None:
        check.choice("column", column, tuple(drawn))
        return drawn[column]
    known = [name for name in ("accuracy", "loss") if any(values_of(r.history, name).notna().any() for r in records)]
    return drawn[known[0] if known else "train_loss"]
