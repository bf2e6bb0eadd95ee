"""Finished runs as one self-contained HTML page: what came out, the curves, and how it was made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift.reporting.charts import COLOURS, chart_data
from undrift.reporting.figures import Outcome, by_label, outcomes_of
from undrift.reporting.headline import headline, scope_of
from undrift.reporting.record import Record
from undrift.reporting.table import Column, columns_of, diverged_text
from undrift.reporting.wording import MISSING, NBSP, number_text, percent_text


def write(path: str | Path, records: Sequence[Record], title: str = "undrift", target: float | None = None) -> Path:
    """Write the report to `path`, all of it or nothing."""
    path = Path(path)
    page = render(records, title, target)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(page, encoding="utf-8", errors="backslashreplace")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def render(records: Sequence[Record], title: str = "undrift", target: float | None = None) -> str:
    """The HTML text of the report; the first label is what the others are compared with."""
    # Only a page needs these: machines that just train may lack them.
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    outcomes, common_target = outcomes_of(records, target)
    # That a single method reaches its own final accuracy says nothing.
    shown_target = target if len(outcomes) == 1 else common_target
    baseline = outcomes[0].label if target is None else None
    data = chart_data(records, shown_target)
    pages = Environment(loader=PackageLoader("undrift.reporting", "."), autoescape=True, undefined=StrictUndefined)
    pages.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return pages.get_template("report_template.html").render(
        title=title,
        headline=headline(records, target),
        scope=scope_of(records, outcomes),
        summary=_summary(outcomes, shown_target),
        methods=[_Method(outcome.label, number % COLOURS, _dash(number)) for number, outcome in enumerate(outcomes)],
        figures=[_figure(chart, outcomes, baseline) for chart in data["charts"]],
        note=_curves_note(outcomes),
        runs=_every_run(records, shown_target),
        settings={
            "Configuration": _settings(records, [record.config for record in records]),
            "Environment": _settings(records, [record.environment for record in records]),
        },
        data=data,
        plotly=get_plotlyjs(),
    )


# ---- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SummaryTable:
    layout: str  # a class of the style sheet
    caption: str
    heading: str  # of the first column
    names: list[tuple[str, str]]  # label, and what is said of its divergence
    columns: list[Column]


def _summary(outcomes: Sequence[Outcome], target: float | None) -> _SummaryTable:
    return _SummaryTable(
        layout="single" if len(outcomes) == 1 else "compared",
        caption=_caption(outcomes, target),
        heading="Method",
        names=_names(outcomes),
        columns=columns_of(outcomes, target),
    )


def _every_run(records: Sequence[Record], target: float | None) -> _SummaryTable | None:
    """The seeds one by one, where there are several."""
    if len(records) == len(by_label(records)):
        return None
    outcomes, _ = outcomes_of([run._replace(label=f"{run.label}, seed{NBSP}{run.seed}") for run in records], target)
    return _SummaryTable(
        layout="runs",
        caption="Each seed on its own.",
        heading="Run",
        names=_names(outcomes),
        columns=columns_of(outcomes, target),
    )


def _names(outcomes: Iterable[Outcome]) -> list[tuple[str, str]]:
    return [(outcome.label, diverged_text(outcome) if outcome.diverged else "") for outcome in outcomes]


def _caption(outcomes: Sequence[Outcome], target: float | None) -> str:
    notes = []
    if any(outcome.runs > 1 for outcome in outcomes):
        notes.append("Means over seeds; ± is the standard deviation.")
    elif len(outcomes) > 1:
        notes.append("One seed each: the spread between seeds is unknown.")
    else:
        notes.append("One seed: the spread between seeds is unknown.")
    if len(outcomes) > 1:
        notes.append("Bold is the best of a column.")
    if target is not None and any(0 < outcome.reached < outcome.runs for outcome in outcomes):
        notes.append("Rounds are averaged over the seeds that reached the target.")
    if any(outcome.diverged for outcome in outcomes):
        notes.append("A diverged run counts with its last finite values.")
        if len(outcomes) > 1:
            notes.append("A method with a diverged run is never the best.")
    return " ".join(notes)


@dataclass(frozen=True)
class _SettingsTable:
    caption: str
    headings: list[str]
    rows: list[list[str]]  # a key and its values


def _settings(records: Sequence[Record], settings: Sequence[Mapping[str, Any]]) -> list[_SettingsTable]:
    """The keys in which the runs differ, a column per label, and then those they share."""
    flats = [_flatten(each) for each in settings]
    groups: dict[str, list[dict[str, str]]] = {}
    for record, flat in zip(records, flats, strict=True):
        groups.setdefault(record.label, []).append(flat)
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    differing = [key for key in keys if len({flat.get(key) for flat in flats}) > 1]
    common = [[key, flats[0][key]] for key in keys if key not in differing]
    tables = []
    if differing:
        rows = [[key, *(_values_of(key, group) for group in groups.values())] for key in differing]
        tables.append(_SettingsTable("What differs between the runs", ["Key", *groups], rows))
    if common:
        caption = "What all runs share" if len(records) > 1 else "This run"
        tables.append(_SettingsTable(caption, ["Key", "Value"], common))
    return tables


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted keys with readable values."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def _values_of(key: str, flats: Iterable[Mapping[str, str]]) -> str:
    return ", ".join(dict.fromkeys(flat.get(key, MISSING) for flat in flats))


# ---- curves ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Method:
    """An entry of the legend."""

    label: str
    colour: int
    dash: str


def _dash(method: int) -> str:
    """Beyond the palette, dashes distinguish methods of one colour."""
    return "dashed" if method // COLOURS % 2 else "solid"


@dataclass(frozen=True)
class _Figure:
    """A chart without its curves, which the script draws."""

    id: str
    title: str
    description: str  # for screen readers
    log: bool
    target: str  # legend of the dotted line at the target accuracy


def _figure(chart: Mapping[str, Any], outcomes: Sequence[Outcome], baseline: str | None) -> _Figure:
    text = percent_text if chart["percent"] else number_text
    ends = "; ".join(
        f"{outcome.label} ends at {text(mean['y'][-1])}" if mean["y"] else f"{outcome.label} has no curve"
        for outcome, mean in zip(outcomes, chart["means"], strict=True)
    )
    # Named after the method that set it, if one did.
    name = f"{baseline}’s final accuracy" if baseline is not None else "target"
    return _Figure(
        id=chart["id"],
        title=chart["title"],
        description=f"{chart['title']} as a line chart: {ends}.",
        log=chart["log"],
        target="" if chart["target"] is None else f"{name}, {percent_text(chart['target'])}",
    )


def _curves_note(outcomes: Sequence[Outcome]) -> str:
    notes = []
    if any(outcome.runs > 1 for outcome in outcomes):
        notes.append("Lines are means over seeds, bands reach from the lowest to the highest seed.")
    if any(outcome.diverged for outcome in outcomes):
        notes.append("Diverged runs are dotted lines that end in a cross; means and bands leave them out.")
    return " ".join(notes)
