"""Drift diagnostics of runs as curves: over rounds, and by layer at the end of training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from undrift.core import check
from undrift.diagnostics.columns import is_diagnostic, is_of_layer
from undrift.reporting.charts import MOST_POINTS
from undrift.reporting.figures import by_label
from undrift.reporting.record import Record

_END = 0.1  # of the rounds: the last tenth, at least one, is the end of training


class Curve(NamedTuple):
    label: str
    x: list[float]
    y: list[float]  # finite


class Panel(NamedTuple):
    """One figure of all methods; means over seeds, without runs that failed where there are others."""

    column: str
    over_rounds: list[Curve]
    layers: list[str]
    by_layer: list[Curve]  # x counts the layers from 1

    @property
    def title(self) -> str:
        name, _, statistic = self.column.partition("/")
        words = name.replace("_", " ").capitalize()
        return words if statistic == "value" else f"{words}: {statistic}"


def columns_of(records: Sequence[Record]) -> list[str]:
    """The figures of the whole model that some run has: ``client_distance/mean``."""
    names = dict.fromkeys(str(name) for record in records for name in record.history.columns)
    return [name for name in names if is_diagnostic(name) and not is_of_layer(name)]


def first_columns(records: Sequence[Record]) -> list[str]:
    """The first statistic of every diagnostic."""
    firsts = {name.partition("/")[0]: name for name in reversed(columns_of(records))}
    return list(reversed(firsts.values()))


def panels(records: Sequence[Record], columns: Sequence[str] | None = None) -> list[Panel]:
    """A panel for each of these columns, by default the first statistic of every diagnostic."""
    known = columns_of(records)
    if not known:
        raise ValueError(
            "none of these runs has diagnostics; train with --set run.diagnostics=client_distance,update_cosine "
            "(all of them: undrift list diagnostics)"
        )
    for name in columns or ():
        if name not in known:
            raise ValueError(f"no run has the diagnostic {check.shown(name)}{check.nearest(name, known)}")
    return [_panel(records, name) for name in columns or first_columns(records)]


def _panel(records: Sequence[Record], column: str) -> Panel:
    histories = {label: _histories(runs) for label, runs in by_label(records).items()}
    prefix = f"{column}/"
    layers = dict.fromkeys(
        str(name).removeprefix(prefix)
        for each in histories.values()
        for history in each
        for name in history.columns
        if str(name).startswith(prefix)
    )
    return Panel(
        column,
        over_rounds=[curve for label, each in histories.items() if (curve := _over_rounds(label, each, column)).y],
        layers=list(layers),
        by_layer=[
            curve for label, each in histories.items() if (curve := _by_layer(label, each, prefix, list(layers))).y
        ],
    )


def _histories(runs: Sequence[Record]) -> list[pd.DataFrame]:
    finished = [run for run in runs if not run.failed]
    return [run.history for run in finished or runs]


def _over_rounds(label: str, histories: Sequence[pd.DataFrame], column: str) -> Curve:
    seeds = [history.set_index("round")[column] for history in histories if column in history]
    means = pd.concat(seeds, axis=1).mean(axis=1).dropna() if seeds else pd.Series(dtype="float64")
    means = means.iloc[:: -max(1, math.ceil(len(means) / MOST_POINTS))].iloc[::-1]
    return Curve(label, [float(round) for round in means.index], means.tolist())


def _by_layer(label: str, histories: Sequence[pd.DataFrame], prefix: str, layers: Sequence[str]) -> Curve:
    values = [end_of_training(histories, prefix + layer) for layer in layers]
    known = [(float(number), value) for number, value in enumerate(values, 1) if math.isfinite(value)]
    return Curve(label, [x for x, _ in known], [y for _, y in known])


def end_of_training(histories: Sequence[pd.DataFrame], column: str) -> float:
    """The mean over the last tenth of the rounds, and over seeds."""
    ends = [
        history[column].iloc[-max(1, round(_END * len(history))) :].mean() for history in histories if column in history
    ]
    return float(pd.Series(ends, dtype="float64").mean())


def final_figures(records: Sequence[Record], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """All statistics at the end of training, a column per label: of the whole model, and averaged over its layers."""
    chosen = panels(records, columns or columns_of(records))
    rows = []
    for panel in chosen:
        for scope in ("whole model", "mean over layers"):
            row: dict[str, str | float] = {"figure": panel.column, "of": scope}
            for label, runs in by_label(records).items():
                histories = _histories(runs)
                layers = [end_of_training(histories, f"{panel.column}/{layer}") for layer in panel.layers]
                mean = float(pd.Series(layers, dtype="float64").mean())
                row[label] = end_of_training(histories, panel.column) if scope == "whole model" else mean
            rows.append(row)
    return pd.DataFrame(rows)
