"""The curves of the report as plain JSON values: means and bands over seeds, failed runs, axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from undrift.reporting.figures import (
    Outcome,
    apart,
    by_label,
    divergence_round,
    outcomes_of,
    traffic_of,
    values_of,
)
from undrift.reporting.record import HistoryColumn, Record, shown_columns
from undrift.reporting.targets import Target
from undrift.reporting.wording import unit_of_time, unit_of_traffic

_FAR = 100.0  # times the peak of the usual curve: what is higher leaves the chart, as it would flatten all others
MOST_POINTS = 500  # of a curve, which is narrower than a thousand pixels


def chart_data(records: Sequence[Record], targets: Sequence[Target] = ()) -> dict[str, Any]:
    """All that the page's script needs to draw the curves of one task."""
    outcomes, _ = outcomes_of(records)
    references = [outcome for outcome in outcomes if outcome.reference]
    records, _ = apart(records)
    groups = by_label(records)
    axes = axes_of(records)
    scales = {axis.key: axis.scale for axis in axes}
    shown = [column for column in shown_columns(record.history for record in records) if column.chart]
    charts = [_chart(column, list(groups.values()), scales) for column in shown]
    return {
        "methods": list(groups),
        "axes": [{"key": each.key, "name": each.name, "title": each.title, "unit": each.unit} for each in axes],
        "charts": [
            {**chart, "log": _needs_log_scale(chart), "lines": _lines(chart, targets, references)}
            for chart in charts
            if _values(chart)
        ],
    }


class Axis(NamedTuple):
    """What curves are drawn against."""

    key: str
    name: str
    title: str
    unit: str
    scale: float  # of the unit


def axes_of(records: Sequence[Record]) -> list[Axis]:
    """Rounds, traffic and time, as far as there are any."""
    totals = pd.DataFrame([_cost(record).iloc[-1] for record in records])
    size, unit = unit_of_traffic(totals["traffic"])
    seconds, unit_of_seconds = unit_of_time(totals["elapsed"])
    axes = [
        Axis("round", "Rounds", "Round", "", 1.0),
        Axis("traffic", "Traffic", f"Traffic, down and up ({unit})", unit, size),
        Axis("elapsed", "Time", f"Training time ({unit_of_seconds})", unit_of_seconds, seconds),
    ]
    return [axis for axis in axes if (totals[axis.key] > 0).any()]


def _lines(chart: Mapping[str, Any], targets: Sequence[Target], references: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Levels that the curves are looked at against: targets, and where references ended."""
    levels = [] if chart["id"] != "accuracy" else [(target.accuracy, "", "2 4") for target in targets]
    ends = [(each.finals[chart["id"]].mean, each.label, "8 4") for each in references if chart["id"] in each.finals]
    return [{"y": y, "label": label, "dashes": dashes} for y, label, dashes in levels + ends if math.isfinite(y)]


def _chart(column: HistoryColumn, groups: Sequence[Sequence[Record]], scales: Mapping[str, float]) -> dict[str, Any]:
    """The curves of one quantity; failed runs are kept apart, as they would distort every mean and flatten the axis."""
    finished = [[run for run in group if not _failure(run)] for group in groups]
    means = [_mean_curve([progress(run, column.name) for run in group], scales) for group in finished]
    failed = [
        {"method": method, **_failed_curve(run, column.name, scales)}
        for method, group in enumerate(groups)
        for run in group
        if _failure(run)
    ]
    return {
        "id": column.name,
        "title": column.chart,
        "percent": column.percent,
        "means": means,
        "far": [] if column.percent else _far(means),
        "failed": [curve for curve in failed if curve["y"]],
    }


def _failure(record: Record) -> str:
    """What went wrong with a run; empty where nothing did."""
    if (end := divergence_round(record.history)) is not None:
        return f"diverged at round {end}"
    return "loss exploded" if record.exploded else ""


def _far(means: Sequence[Mapping[str, Sequence[float]]]) -> list[int]:
    """The methods whose curves go far beyond those of the others: the axis does not follow them."""
    peaks = {method: max(map(abs, mean.get("high", mean["y"]))) for method, mean in enumerate(means) if mean["y"]}
    if not peaks:
        return []
    usual = sorted(peaks.values())[(len(peaks) - 1) // 2]
    return [method for method, peak in peaks.items() if peak > _FAR * usual > 0]


def thinned(records: Iterable[Record]) -> bool:
    """Whether some evaluated rounds are left out of the curves."""
    return any(len(progress(record, "train_loss")) > MOST_POINTS for record in records)


def _cost(record: Record) -> pd.DataFrame:
    """What a run had spent by the end of each round: bytes, and seconds without evaluation where that is known."""
    history = record.history
    return pd.DataFrame(
        {
            "round": history["round"],
            "traffic": traffic_of(history).cumsum(),
            "elapsed": (history["seconds"].fillna(0) - history["evaluation_seconds"].fillna(0)).cumsum(),
        }
    )


def progress(record: Record, name: str) -> pd.DataFrame:
    """The finite values of a column, with what had been spent by then."""
    spent = _cost(record).assign(y=values_of(record.history, name))
    return spent.replace([np.inf, -np.inf], np.nan).dropna(subset=["y"])


def _curve(values: pd.DataFrame, scales: Mapping[str, float]) -> dict[str, list[float]]:
    """A curve's values, and what they are drawn against: round, traffic and time."""
    return {
        **{name: _rounded(values[name] / scale) for name, scale in scales.items()},
        "y": _rounded(values["y"]),
    }


def _thin(values: pd.DataFrame) -> pd.DataFrame:
    """Every so-manieth point, counted from the last one, which is the result."""
    step = math.ceil(len(values) / MOST_POINTS)
    return values.iloc[:: -max(1, step)].iloc[::-1]


def _mean_curve(runs: Sequence[pd.DataFrame], scales: Mapping[str, float]) -> dict[str, list[float]]:
    """The mean over seeds, round by round, and the lowest and highest seed where there are several."""
    if not runs:
        return {name: [] for name in (*scales, "y")}
    values = _thin(mean_progress(runs))
    curve = _curve(values, scales)
    if len(runs) > 1:
        curve |= {"low": _rounded(values["low"]), "high": _rounded(values["high"])}
    return curve


def mean_progress(runs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The means over runs, round by round, and the lowest and highest value."""
    by_round = pd.concat(runs).dropna().groupby("round")
    return by_round.mean().assign(low=by_round["y"].min(), high=by_round["y"].max()).reset_index()


def _failed_curve(record: Record, name: str, scales: Mapping[str, float]) -> dict[str, Any]:
    """The curve of a run that failed, up to its last finite value."""
    return {
        **_curve(_thin(progress(record, name)), scales),
        "text": f"{record.label}, seed {record.seed}: {_failure(record)}",
    }


def _rounded(values: Iterable[float]) -> list[float]:
    """Five significant digits: more than a screen shows, and a third of the page's data."""
    return [float(f"{value:.5g}") for value in values]


def _values(chart: Mapping[str, Any]) -> list[float]:
    return [value for curve in [*chart["means"], *chart["failed"]] for value in curve["y"]]


def _needs_log_scale(chart: Mapping[str, Any]) -> bool:
    """Judged by what the axis follows: runs that did not fail, or all where none is left."""
    near = [curve for method, curve in enumerate(chart["means"]) if method not in chart["far"]]
    values = [value for curve in near for value in curve["y"]] or _values(chart)
    return not chart["percent"] and min(values) > 0 and max(values) / min(values) > 20
