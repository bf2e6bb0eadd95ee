"""Runs in a notebook: a table, and curves drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from undrift.core import check
from undrift.core.extras import needs
from undrift.diagnostics.columns import is_diagnostic
from undrift.reporting.colours import colours_of
from undrift.reporting.facts import names_of
from undrift.reporting.figures import by_label, values_of
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


def draw(records: Sequence[Record], column: str | None = None, axes: Axes | None = None) -> Axes:
    """Curves over rounds of a column of the histories, by default the accuracy, else a loss.

    Of several seeds, the line is their mean and the band reaches from the lowest to the highest. Runs that failed are
    no part of a mean: each has a dotted line of its own. Colours are those of the report; of several tasks, labels name
    theirs.
    """
    with needs("plot"):
        import matplotlib.pyplot as plt  # slow to import

    records = _with_tasks(records)
    colours = colours_of(records)
    shown = _shown(records, column)
    axes = plt.subplots(layout="constrained")[1] if axes is None else axes
    scale = 100 if shown.percent else 1
    for label, runs in by_label(records).items():
        finished = [run for run in runs if not run.failed]
        curve = _curve(finished, shown.name) * scale
        colour, dashes = colours[label].light, "--" if colours[label].dashed else "-"
        axes.plot(curve.index, curve["mean"], dashes, color=colour, label=label)
        if len(finished) > 1:
            axes.fill_between(curve.index, curve["min"], curve["max"], color=colour, alpha=0.2, linewidth=0)
        for run in runs:
            if run not in finished:
                alone = _curve([run], shown.name) * scale
                axes.plot(alone.index, alone["mean"], ":", color=colour)
    axes.set(xlabel="Round", ylabel=f"{shown.chart} (%)" if shown.percent else shown.chart or shown.name)
    axes.legend()
    return axes


def _with_tasks(records: Sequence[Record]) -> Sequence[Record]:
    tasks = by_task(records)
    if len(tasks) == 1:
        return records
    named = zip(tasks, names_of(tasks), strict=True)
    return [record._replace(label=f"{record.label} · {name}") for task, name in named for record in task]


def _curve(runs: Sequence[Record], name: str) -> pd.DataFrame:
    """Mean, lowest and highest finite value of every round that was evaluated."""
    values = [pd.Series(values_of(run.history, name).to_numpy(), run.history["round"]) for run in runs]
    joined = pd.concat(values, axis=1) if values else pd.DataFrame(dtype="float64")
    finite = joined.replace([np.inf, -np.inf], np.nan).dropna(how="all")
    return pd.DataFrame({"mean": finite.mean(axis=1), "min": finite.min(axis=1), "max": finite.max(axis=1)})


def _can_be_drawn(column: HistoryColumn) -> bool:
    return column.chart is not None or is_diagnostic(column.name)


def _shown(records: Sequence[Record], column: str | None) -> HistoryColumn:
    drawn = {each.name: each for each in shown_columns(record.history for record in records) if _can_be_drawn(each)}
    if column is not None:
        check.choice("column", column, tuple(drawn))
        return drawn[column]
    known = [name for name in ("accuracy", "loss") if any(values_of(r.history, name).notna().any() for r in records)]
    return drawn[known[0] if known else "train_loss"]
