"""Runs in a notebook: a table, and curves drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from undrift.core import check
from undrift.reporting.figures import by_label, divergence_round, values_of
from undrift.reporting.record import HistoryColumn, Record, shown_columns
from undrift.reporting.table import columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def html_table(records: Sequence[Record], target: float | None = None) -> str:
    """The summary table; best values are bold."""
    table = columns(records, target)
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in table)
    rows = zip(
        *([_cell(text, row in column.best) for row, text in enumerate(column.cells)] for column in table), strict=True
    )
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(text: str, best: bool) -> str:
    return f"<td><b>{escape(text)}</b></td>" if best else f"<td>{escape(text)}</td>"


def draw(records: Sequence[Record], column: str | None = None, axes: Axes | None = None) -> Axes:
    """Curves over rounds of a column of the histories, by default the accuracy, else a loss.

    Of several seeds, the line is their mean and the band reaches from the lowest to the highest. Runs that diverged are
    no part of a mean: each has a dotted line of its own.
    """
    import matplotlib.pyplot as plt  # slow to import

    shown = _shown(records, column)
    axes = plt.subplots(layout="constrained")[1] if axes is None else axes
    scale = 100 if shown.percent else 1
    for label, runs in by_label(records).items():
        finished = [run for run in runs if divergence_round(run.history) is None]
        curve = _curve(finished, shown.name) * scale
        (line,) = axes.plot(curve.index, curve["mean"], label=label)
        if len(finished) > 1:
            axes.fill_between(curve.index, curve["min"], curve["max"], color=line.get_color(), alpha=0.2, linewidth=0)
        for run in runs:
            if run not in finished:
                alone = _curve([run], shown.name) * scale
                axes.plot(alone.index, alone["mean"], ":", color=line.get_color())
    axes.set(xlabel="Round", ylabel=f"{shown.chart} (%)" if shown.percent else shown.chart)
    axes.legend()
    return axes


def _curve(runs: Sequence[Record], name: str) -> pd.DataFrame:
    """Mean, lowest and highest finite value of every round that was evaluated."""
    values = [pd.Series(values_of(run.history, name).to_numpy(), run.history["round"]) for run in runs]
    joined = pd.concat(values, axis=1) if values else pd.DataFrame(dtype="float64")
    finite = joined.replace([np.inf, -np.inf], np.nan).dropna(how="all")
    return pd.DataFrame({"mean": finite.mean(axis=1), "min": finite.min(axis=1), "max": finite.max(axis=1)})


def _shown(records: Sequence[Record], column: str | None) -> HistoryColumn:
    drawn = {each.name: each for each in shown_columns(record.history for record in records) if each.chart}
    if column is not None:
        check.choice("column", column, tuple(drawn))
        return drawn[column]
    known = [name for name in ("accuracy", "loss") if any(values_of(r.history, name).notna().any() for r in records)]
    return drawn[known[0] if known else "train_loss"]
