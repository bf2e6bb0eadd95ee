"""The curves of the report as plain JSON values: means and bands over seeds, diverged runs, axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from undrift.reporting.figures import by_label, divergence_round, traffic_of, values_of
from undrift.reporting.record import HistoryColumn, Record, shown_columns
from undrift.reporting.wording import unit_of_time, unit_of_traffic

COLOURS = 7  # --c0 … --c6 in the template's style sheet


def chart_data(records: Sequence[Record], target: float | None) -> dict[str, Any]:
    """All that the page's script needs to draw the curves."""
    groups = by_label(records)
    totals = pd.DataFrame([_cost(record).iloc[-1] for record in records])
    traffic_size, traffic_unit = unit_of_traffic(totals["traffic"])
    time_size, time_unit = unit_of_time(totals["elapsed"])
    scales = {"round": 1.0, "traffic": traffic_size, "elapsed": time_size}
    axes = [{"key": "round", "name": "Rounds", "title": "Round", "unit": ""}]
    if (totals["traffic"] > 0).any():
        title = f"Traffic, down and up ({traffic_unit})"
        axes.append({"key": "traffic", "name": "Traffic", "title": title, "unit": traffic_unit})
    if (totals["elapsed"] > 0).any():
        axes.append({"key": "elapsed", "name": "Time", "title": f"Time ({time_unit})", "unit": time_unit})
    shown = [column for column in shown_columns(record.history for record in records) if column.chart]
    charts = [_chart(column, list(groups.values()), scales) for column in shown]
    return {
        "methods": [escape(label) for label in groups],  # Plotly reads HTML in names
        "colours": COLOURS,
        "axes": axes,
        "charts": [
            {**chart, "log": _needs_log_scale(chart), "target": target if chart["id"] == "accuracy" else None}
            for chart in charts
            if _values(chart)
        ],
    }


def _chart(column: HistoryColumn, groups: Sequence[Sequence[Record]], scales: Mapping[str, float]) -> dict[str, Any]:
    """The curves of one quantity; diverged runs are kept apart, as they would distort every mean."""
    finished = [[run for run in group if divergence_round(run.history) is None] for group in groups]
    means = [_mean_curve([_progress(run, column.name) for run in group], scales) for group in finished]
    highest = max((value for mean in means for value in mean.get("high", mean["y"])), default=math.inf)
    ceiling = highest + 2 * abs(highest)  # headroom to see a curve leave without flattening the others
    diverged = [
        {"method": method, **_diverged_curve(run, column.name, scales, ceiling)}
        for method, group in enumerate(groups)
        for run in group
        if divergence_round(run.history) is not None
    ]
    return {
        "id": column.name,
        "title": column.chart,
        "percent": column.percent,
        "means": means,
        "diverged": [curve for curve in diverged if curve["y"]],
    }


def _cost(record: Record) -> pd.DataFrame:
    """What a run had spent by the end of each round."""
    history = record.history
    return pd.DataFrame(
        {
            "round": history["round"],
            "traffic": traffic_of(history).cumsum(),
            "elapsed": history["seconds"].fillna(0).cumsum(),
        }
    )


def _progress(record: Record, name: str) -> pd.DataFrame:
    """The finite values of a column, with what had been spent by then."""
    progress = _cost(record).assign(y=values_of(record.history, name))
    return progress.replace([np.inf, -np.inf], np.nan).dropna(subset=["y"])


def _curve(progress: pd.DataFrame, scales: Mapping[str, float]) -> dict[str, list[float]]:
    """A curve's values, and what they are drawn against: round, traffic and time."""
    return {
        **{name: _rounded(progress[name] / scale) for name, scale in scales.items()},
        "y": _rounded(progress["y"]),
    }


def _mean_curve(runs: Sequence[pd.DataFrame], scales: Mapping[str, float]) -> dict[str, list[float]]:
    """The mean over seeds, round by round, and the lowest and highest seed where there are several."""
    if not runs:
        return {name: [] for name in (*scales, "y")}
    by_round = pd.concat(runs).dropna().groupby("round")
    curve = _curve(by_round.mean().reset_index(), scales)
    if len(runs) > 1:
        curve |= {"low": _rounded(by_round["y"].min()), "high": _rounded(by_round["y"].max())}
    return curve


def _diverged_curve(record: Record, name: str, scales: Mapping[str, float], ceiling: float) -> dict[str, Any]:
    """The curve of a diverged run, cut off at the ceiling."""
    progress, end = _progress(record, name), divergence_round(record.history)
    return {
        **_curve(progress.assign(y=progress["y"].clip(upper=ceiling)), scales),
        "last": max(0, int((progress["round"] <= end).sum()) - 1),
        "text": escape(f"{record.label}, seed {record.seed}: diverged at round {end}"),
    }


def _rounded(values: Iterable[float]) -> list[float]:
    """Five significant digits: more than a screen shows, and a third of the page's data."""
    return [float(f"{value:.5g}") for value in values]


def _values(chart: Mapping[str, Any]) -> list[float]:
    return [value for curve in [*chart["means"], *chart["diverged"]] for value in curve["y"]]


def _needs_log_scale(chart: Mapping[str, Any]) -> bool:
    values = _values(chart)
    return not chart["percent"] and min(values) > 0 and max(values) / min(values) > 20
