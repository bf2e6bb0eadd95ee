"""Finished runs as one self-contained HTML page: what came out, the curves, and how it was made."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from undrift.reporting.summary import (
    MISSING,
    NBSP,
    Column,
    Outcome,
    Record,
    by_label,
    columns_of,
    diverged_share,
    divergence_round,
    headline,
    number_text,
    outcome_of,
    outcomes_of,
    percent_text,
    scope_of,
    traffic_of,
    unit_of_time,
    unit_of_traffic,
)

_COLOURS = 7  # --c0 … --c6 in the template's style sheet


class _Metric(NamedTuple):
    """A curve the page draws, and how it is written."""

    key: str
    title: str
    percent: bool


_METRICS = (
    _Metric("accuracy", "Test accuracy", percent=True),
    _Metric("loss", "Test loss", percent=False),
    _Metric("train_loss", "Training loss", percent=False),
)


# ---- from runs to numbers -------------------------------------------------------------------------


def _summary_table(outcomes: Sequence[Outcome], target: float | None, caption: str, heading: str, css: str) -> str:
    columns = columns_of(outcomes, target)
    headings = [heading, *(column.heading for column in columns)]
    head = "".join(f'<th scope="col" role="columnheader">{escape(text)}</th>' for text in headings)
    body = "".join(
        f'<tr role="row"><th scope="row" role="rowheader">{_name(outcome)}</th>'
        + "".join(_summary_cell(column, row) for column in columns)
        + "</tr>"
        for row, outcome in enumerate(outcomes)
    )
    # The roles restate what the style sheet takes away when it lays the rows out as cards.
    return (
        f'<table class="summary {css}" role="table"><caption>{escape(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{body}</tbody></table>'
    )


def _summary_cell(column: Column, row: int) -> str:
    text = escape(column.cells[row])
    if row in column.best:
        text = f'<strong>{text}<span class="unseen"> (best)</span></strong>'
    return f'<td role="cell" data-heading="{escape(column.heading)}">{text}</td>'


def _name(outcome: Outcome) -> str:
    name = f"<span>{escape(outcome.label)}</span>"
    return f'{name} <span class="badge">{diverged_share(outcome)}</span>' if outcome.diverged else name


def _caption(outcomes: Sequence[Outcome], aim: float | None) -> str:
    notes = []
    if any(outcome.runs > 1 for outcome in outcomes):
        notes.append("Means over seeds; ± is the standard deviation.")
    elif len(outcomes) > 1:
        notes.append("One seed each: the spread between seeds is unknown.")
    else:
        notes.append("One seed: the spread between seeds is unknown.")
    if len(outcomes) > 1:
        notes.append("Bold is the best of a column.")
    if aim is not None and any(0 < outcome.reached < outcome.runs for outcome in outcomes):
        notes.append("Rounds are averaged over the seeds that got there.")
    if any(outcome.diverged for outcome in outcomes):
        notes.append("A diverged run counts with its last finite values.")
        if len(outcomes) > 1:
            notes.append("A method with a diverged run is never the best.")
    return " ".join(notes)


def _every_run(records: Sequence[Record], target: float | None) -> str:
    """The seeds one by one, for whoever distrusts a mean."""
    if len(records) == len(by_label(records)):
        return ""
    outcomes = [outcome_of(f"{record.label}, seed{NBSP}{record.seed}", [record], target) for record in records]
    table = _summary_table(outcomes, target, "Each seed on its own.", "Run", "runs")
    return _collapsible("Every run", table)


def _collapsible(heading: str, content: str) -> str:
    return f"<details><summary><h2>{escape(heading)}</h2></summary>{content}</details>"


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted keys with readable values."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def _settings(heading: str, records: Sequence[Record], of: Callable[[Record], Mapping[str, Any]]) -> str:
    """The keys in which the runs differ, a column per label, and then those they share."""
    groups = {label: [_flatten(of(run)) for run in runs] for label, runs in by_label(records).items()}
    flats = [flat for group in groups.values() for flat in group]
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    differing = [key for key in keys if len({flat.get(key) for flat in flats}) > 1]
    common = [key for key in keys if key not in differing]
    tables = ""
    if differing:
        rows = [[key, *(_values_of(key, group) for group in groups.values())] for key in differing]
        tables += _settings_table("What differs between the runs", ["Key", *groups], rows)
    if common:
        caption = "What all runs share" if len(records) > 1 else "This run"
        tables += _settings_table(caption, ["Key", "Value"], [[key, flats[0][key]] for key in common])
    return _collapsible(heading, tables) if tables else ""


def _values_of(key: str, flats: Iterable[Mapping[str, str]]) -> str:
    return ", ".join(dict.fromkeys(flat.get(key, MISSING) for flat in flats))


def _settings_table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        "".join((f'<tr><th scope="row">{escape(key)}</th>', *(f"<td>{escape(v)}</td>" for v in values), "</tr>"))
        for key, *values in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f'<table class="settings"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


# ---- the curves -----------------------------------------------------------------------------------


def _progress(record: Record) -> pd.DataFrame:
    """The history with what had been spent by the end of each round."""
    history = record.history
    spent = history.assign(traffic=traffic_of(history).cumsum(), elapsed=history["seconds"].fillna(0).cumsum())
    return spent.replace([np.inf, -np.inf], np.nan)


def _line(run: pd.DataFrame, metric: str, scales: Mapping[str, float]) -> dict[str, list[float]]:
    """A curve's values, and what they are drawn against: round, traffic and time."""
    known = run.dropna(subset=[metric])
    return {
        "round": _short(known["round"]),
        "traffic": _short(known["traffic"] / scales["traffic"]),
        "elapsed": _short(known["elapsed"] / scales["elapsed"]),
        "y": _short(known[metric]),
    }


def _short(values: Iterable[float]) -> list[float]:
    """Five significant digits: more than a screen shows, and a third of the page's data."""
    return [float(f"{value:.5g}") for value in values]


def _mean_line(runs: Sequence[pd.DataFrame], metric: str, scales: Mapping[str, float]) -> dict[str, list[float]]:
    """The mean over seeds, round by round, and the lowest and highest seed where there are several."""
    if not runs:
        return {"round": [], "traffic": [], "elapsed": [], "y": []}
    known = pd.concat(runs)[["round", "traffic", "elapsed", metric]].dropna()
    by_round = known.groupby("round")
    line = _line(by_round.mean().reset_index(), metric, scales)
    if len(runs) > 1:
        line |= {"low": _short(by_round[metric].min()), "high": _short(by_round[metric].max())}
    return line


def _lost_line(
    record: Record, metric: str, scales: Mapping[str, float], ceiling: float
) -> dict[str, list[float] | float | str]:
    """The curve of a diverged run: where it goes through the roof, the roof is drawn."""
    run = _progress(record)
    lost = divergence_round(record.history)
    return {
        **_line(run.assign(**{metric: run[metric].clip(upper=ceiling)}), metric, scales),
        "last": max(0, int((run.dropna(subset=[metric])["round"] <= lost).sum()) - 1),
        "text": escape(f"{record.label}, seed {record.seed}: diverged at round {lost}"),
    }


def _chart(metric: _Metric, groups: Sequence[Sequence[Record]], scales: Mapping[str, float]) -> dict[str, Any]:
    """The curves of one quantity; diverged runs are kept apart, for they would spoil every mean."""
    sound = [[run for run in group if divergence_round(run.history) is None] for group in groups]
    means = [_mean_line([_progress(run) for run in group], metric.key, scales) for group in sound]
    highest = max((value for mean in means for value in mean.get("high", mean["y"])), default=math.inf)
    ceiling = highest + 2 * abs(highest)  # room to see a curve leave, without dwarfing the others
    lost = [
        {"method": method, **_lost_line(run, metric.key, scales, ceiling)}
        for method, group in enumerate(groups)
        for run in group
        if divergence_round(run.history) is not None
    ]
    return {
        "id": metric.key,
        "title": metric.title,
        "percent": metric.percent,
        "means": means,
        "lost": [line for line in lost if line["y"]],
    }


def _needs_log_scale(chart: Mapping[str, Any]) -> bool:
    values = [value for line in [*chart["means"], *chart["lost"]] for value in line["y"]]
    return not chart["percent"] and min(values) > 0 and max(values) / min(values) > 20


def _charts(records: Sequence[Record], aim: float | None) -> dict[str, Any]:
    """All that the page's script needs to draw the curves, as plain JSON values."""
    groups = by_label(records)
    totals = [_progress(record)[["traffic", "elapsed"]].iloc[-1] for record in records]
    traffic_size, traffic_unit = unit_of_traffic(total["traffic"] for total in totals)
    time_size, time_unit = unit_of_time(total["elapsed"] for total in totals)
    scales = {"traffic": traffic_size, "elapsed": time_size}
    axes = [{"key": "round", "name": "Rounds", "title": "Round", "unit": ""}]
    if any(total["traffic"] > 0 for total in totals):
        title = f"Traffic, down and up ({traffic_unit})"
        axes.append({"key": "traffic", "name": "Traffic", "title": title, "unit": traffic_unit})
    if any(total["elapsed"] > 0 for total in totals):
        axes.append({"key": "elapsed", "name": "Time", "title": f"Time ({time_unit})", "unit": time_unit})
    charts = [_chart(metric, list(groups.values()), scales) for metric in _METRICS]
    drawable = [chart for chart in charts if any(line["y"] for line in [*chart["means"], *chart["lost"]])]
    return {
        "methods": [escape(label) for label in groups],  # Plotly reads HTML in names
        "colours": _COLOURS,
        "axes": axes,
        "charts": [
            {
                **chart,
                "log": _needs_log_scale(chart),
                "level": aim if chart["id"] == "accuracy" else None,
            }
            for chart in drawable
        ],
    }


def _level(aim: float, baseline: str | None) -> str:
    """The legend of the dotted line at the target, named after the method that set it, if one did."""
    name = f"{baseline}’s final accuracy" if baseline is not None else "target"
    return f'<span class="level">{escape(f"{name}, {percent_text(aim)}")}</span>'


def _figure(chart: Mapping[str, Any], outcomes: Sequence[Outcome], baseline: str | None) -> str:
    written = percent_text if chart["percent"] else number_text
    ends = "; ".join(
        f"{outcome.label} ends at {written(mean['y'][-1])}" if mean["y"] else f"{outcome.label} has no curve"
        for outcome, mean in zip(outcomes, chart["means"], strict=True)
    )
    notes = '<span class="scale">log scale</span>' if chart["log"] else ""
    if chart["level"] is not None:
        notes += _level(chart["level"], baseline)
    return (
        f"<figure><figcaption><h3>{escape(chart['title'])}</h3>{notes}</figcaption>"
        f'<div class="chart" id="chart-{chart["id"]}" role="img" '
        f'aria-label="{escape(chart["title"])} as a line chart: {escape(ends)}."></div></figure>'
    )


def _curves_note(outcomes: Sequence[Outcome]) -> str:
    notes = []
    if any(outcome.runs > 1 for outcome in outcomes):
        notes.append("Lines are means over seeds, bands reach from the lowest to the highest seed.")
    if any(outcome.diverged for outcome in outcomes):
        notes.append("Diverged runs are dotted lines that end in a cross, and no part of means or bands.")
    return f'<p class="note">{" ".join(notes)}</p>' if notes else ""


def _legend(outcomes: Sequence[Outcome]) -> str:
    if len(outcomes) == 1:
        return ""
    chips = "".join(
        f'<button type="button" class="chip" aria-pressed="true" data-method="{method}" '
        f'style="--c:var(--c{method % _COLOURS});--dash:{_dash(method)}">{escape(outcome.label)}</button>'
        for method, outcome in enumerate(outcomes)
    )
    return f'<div class="legend" role="group" aria-label="Methods shown in the charts">{chips}</div>'


def _dash(method: int) -> str:
    """Beyond the palette the dashes tell methods of one colour apart."""
    return "dashed" if method // _COLOURS % 2 else "solid"


def _axis_switch(axes: Sequence[Mapping[str, str]]) -> str:
    choices = "".join(
        f'<label><input type="radio" name="axis" value="{axis["key"]}"{" checked" if place == 0 else ""}>'
        f"<span>{escape(axis['name'])}</span></label>"
        for place, axis in enumerate(axes)
    )
    return f'<fieldset class="axes"><legend class="unseen">Horizontal axis</legend>{choices}</fieldset>'


# ---- the page -------------------------------------------------------------------------------------


def render(records: Sequence[Record], title: str = "undrift", target: float | None = None) -> str:
    """The HTML text of the report; the first label is what the others are compared with."""
    from plotly.offline import get_plotlyjs

    outcomes, aim = outcomes_of(records, target)
    if len(outcomes) == 1:
        aim = target  # that a method reaches its own end is no news
    baseline = outcomes[0].label if target is None else None
    data = _charts(records, aim)
    shape = "single" if len(outcomes) == 1 else "compared"
    parts = {
        "title": escape(title),
        "headline": escape(headline(records, target)),
        "scope": escape(scope_of(records, outcomes)),
        "summary": _summary_table(outcomes, aim, _caption(outcomes, aim), "Method", shape),
        "legend": _legend(outcomes),
        "axes": _axis_switch(data["axes"]),
        "figures": "".join(_figure(chart, outcomes, baseline) for chart in data["charts"]),
        "note": _curves_note(outcomes),
        "runs": _every_run(records, aim),
        "config": _settings("Configuration", records, lambda record: record.config),
        "environment": _settings("Environment", records, lambda record: record.environment),
        "data": _script_json(data),
        "plotly": get_plotlyjs(),
    }
    template = resources.files("undrift.reporting").joinpath("report_template.html").read_text("utf-8")
    # One pass: a label that reads like a placeholder stays a label.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write(path: str | Path, records: Sequence[Record], title: str = "undrift", target: float | None = None) -> Path:
    """Write the report to `path`, all of it or nothing."""
    path = Path(path)
    page = render(records, title, target)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(page, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path
