"""Finished runs as one self-contained HTML page: what came out, the curves, and how it was made."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undrift.core.files import StorageError
from undrift.data import picture_svg
from undrift.reporting.charts import MOST_POINTS, chart_data, thinned
from undrift.reporting.colours import Colour, colours_of
from undrift.reporting.facts import Fact, data_name, facts_of, names_of, split_of
from undrift.reporting.figures import LAST_K, Outcome, apart, by_label, outcomes_of, summarise
from undrift.reporting.headline import headline, scope_of
from undrift.reporting.record import Record
from undrift.reporting.sections import overall_sections, sections_of
from undrift.reporting.sections.section import Section
from undrift.reporting.table import SETTINGS, Column, caption, columns_of, failure_text
from undrift.reporting.targets import Target, Targets
from undrift.reporting.task import by_task
from undrift.reporting.wording import MISSING, NBSP, count_text, number_text, percent_text

if TYPE_CHECKING:
    from markupsafe import Markup


def write(
    path: str | Path,
    records: Sequence[Record],
    title: str = "",
    targets: Targets = None,
    last_k: int | None = None,
) -> Path:
    """Write the report to `path`, all of it or nothing."""
    path = Path(path)
    page = render(records, title, targets, last_k)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(page, encoding="utf-8", errors="backslashreplace")
        os.replace(draft, path)
    except OSError as error:
        raise StorageError(f"the report cannot be written to {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return path


def render(records: Sequence[Record], title: str = "", targets: Targets = None, last_k: int | None = None) -> str:
    """The HTML text of the report. Tasks are shown apart; of each, the first label is what others are compared with."""
    # Only a page needs it: machines that just train may lack it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    tasks = by_task(records)
    methods = {
        label: _Method(number, label, colour)
        for number, (label, colour) in enumerate(colours_of(apart(records)[0]).items())
    }
    shown = [_task(task, name, targets, last_k, methods) for task, name in zip(tasks, names_of(tasks), strict=True)]
    pages = Environment(loader=PackageLoader("undrift.reporting", "."), autoescape=True, undefined=StrictUndefined)
    pages.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return pages.get_template("report_template.html").render(
        title=title or default_title(records),
        methods=methods,
        tasks=shown,
        overall=overall_sections(tasks) if len(tasks) > 1 else [],
        data={
            "methods": [{"label": each.label, "dashed": each.colour.dashed} for each in methods.values()],
            "tasks": [task.data for task in shown],
        },
    )


def default_title(records: Sequence[Record]) -> str:
    """Such as "digits: FedAvg, FedHBM"; the same whoever makes the report."""
    data = dict.fromkeys(name for task in by_task(records) if (name := data_name(task[0].config)))
    labels = list(by_label(apart(records)[0]))
    shown = ", ".join(labels) if len(labels) <= 4 else count_text(len(labels), "method")
    return f"{', '.join(data)}: {shown}" if data else shown


@dataclass(frozen=True)
class _Method:
    """A label, which has one colour in the whole report."""

    number: int
    label: str
    colour: Colour

    @property
    def style(self) -> str:
        return f"--c:var(--m{self.number});--dash:{'dashed' if self.colour.dashed else 'solid'}"


@dataclass(frozen=True)
class _Task:
    """What the page shows of the runs of one task."""

    name: str
    headline: str
    scope: str
    facts: list[Fact]
    picture: Markup | None
    picture_caption: str
    summary: _SummaryTable
    labels: list[str]
    axes: list[dict[str, str]]
    figures: list[_Figure]
    note: str
    sections: list[Section]
    runs: _SummaryTable | None
    settings: dict[str, list[_SettingsTable]]
    data: dict[str, Any]  # for the script


def _task(
    records: Sequence[Record], name: str, targets: Targets, last_k: int | None, methods: Mapping[str, _Method]
) -> _Task:
    from markupsafe import Markup

    outcomes, found = outcomes_of(records, targets, last_k or LAST_K)
    compared, _ = apart(records)
    measured = [outcome for outcome in outcomes if not outcome.reference]
    # That a single method reaches its own final accuracy says nothing.
    found = [target for target in found if target.given or len(measured) > 1]
    charts = chart_data(records, found)
    split = split_of(compared[0])
    drawing = None if split is None else picture_svg.svg(split, picture_svg.SMALL, hover=False)
    return _Task(
        name=name,
        headline=headline(records, targets),
        scope=scope_of(compared, measured),
        facts=facts_of(compared, split),
        picture=None if drawing is None else Markup(drawing),  # escaped by its own template
        picture_caption=_picture_caption(compared),
        summary=_summary(outcomes, found, last_k),
        labels=charts["methods"],
        axes=charts["axes"],
        figures=[_figure(chart, measured, found) for chart in charts["charts"]],
        note=_curves_note(compared, measured, charts["charts"]),
        sections=sections_of(compared),
        runs=_every_run(records, found, last_k),
        settings={
            "Configuration": _settings(records, [_without_split(record.config) for record in records]),
            "Environment": _settings(records, [record.environment for record in records]),
        },
        data=charts
        | {
            "methods": [methods[label].number for label in charts["methods"]],
            "summary": _summary_rows(records, targets, last_k),
        },
    )


def _picture_caption(records: Sequence[Record]) -> str:
    """Where every seed splits the data anew, the picture is of the first."""
    seeds = {json.dumps(record.config.get("data"), default=str) for record in records}
    return "Clients and their classes" + (f", seed{NBSP}{records[0].seed}" if len(seeds) > 1 else "")


def _summary_rows(records: Sequence[Record], targets: Targets, last_k: int | None) -> list[list[str | float | None]]:
    """The summary with all digits, its columns' names first."""
    table = summarise(records, targets, last_k or LAST_K)
    rows = [
        [None if isinstance(value, float) and not math.isfinite(value) else value for value in row]
        for row in table.astype(object).itertuples(index=False)
    ]
    return [list(table.columns), *rows]


# ---- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Name:
    """The first cell of a row."""

    label: str
    divergence: str  # what is said of it


@dataclass(frozen=True)
class _SummaryTable:
    name: str
    layout: str  # a class of the style sheet
    caption: str
    heading: str  # of the first column
    names: list[_Name]
    columns: list[Column]

    @property
    def room_for_names(self) -> int:
        """Characters; longer names are wrapped."""
        return min(max(len(f"{name.label} {name.divergence}") for name in self.names), _LONGEST_NAME)

    @property
    def parts(self) -> list[list[Column]]:
        """The columns, one below the other where they have no room side by side; those that belong together, together.

        There are as few parts as possible, of about the same width. A row of tiles wraps by itself.
        """
        if self.layout == "single":
            return [self.columns]
        parts = self._packed(_ROOM)
        narrower = (self._packed(room) for room in range(_ROOM, 0, -1))
        return list(takewhile(lambda found: len(found) == len(parts), narrower))[-1]

    def _packed(self, room: int) -> list[list[Column]]:
        parts: list[list[Column]] = [[]]
        for group in _groups(self.columns):
            for columns in (group,) if self._width(group) <= _ROOM else ([column] for column in group):
                if parts[-1] and self._width([*parts[-1], *columns]) > room:
                    parts.append([])
                parts[-1] += columns
        return parts

    def _width(self, columns: Sequence[Column]) -> int:
        widths = (max(len(text) for text in (*column.cells, *column.heading.split(" "))) + 2 for column in columns)
        return max(self.room_for_names + 4, _LEAST_ROOM) + sum(widths)


_ROOM = 124  # characters of a line of the page, where it is not narrower
_LEAST_ROOM, _LONGEST_NAME = 16, 28


def _groups(columns: Sequence[Column]) -> list[list[Column]]:
    """Results, those of each target, and cost with settings."""
    groups: list[list[Column]] = [[]]
    for column in columns:
        if groups[-1] and column.name in ("rounds", "traffic"):
            groups.append([])
        groups[-1].append(column)
    return groups


def _summary(outcomes: Sequence[Outcome], targets: Sequence[Target], last_k: int | None) -> _SummaryTable:
    return _SummaryTable(
        name="Summary",
        layout="single" if len(outcomes) == 1 else "compared",
        caption=caption(outcomes, targets, last_k),
        heading="Method",
        names=_names(outcomes),
        columns=_without_facts(columns_of(outcomes, targets, last_k)),
    )


def _every_run(records: Sequence[Record], targets: Sequence[Target], last_k: int | None) -> _SummaryTable | None:
    """The seeds one by one, where there are several."""
    if len(records) == len(by_label(records)):
        return None
    named = [run._replace(label=f"{run.label}, seed{NBSP}{run.seed}") for run in records]
    levels = dict.fromkeys(target.accuracy for target in targets if math.isfinite(target.accuracy))
    outcomes, found = outcomes_of(named, list(levels), last_k or LAST_K)
    table = columns_of(outcomes, found if levels else [], last_k)
    return _SummaryTable(
        name="Every run",
        layout="runs",
        caption="Each seed on its own.",
        heading="Run",
        names=_names(outcomes),
        columns=[column for column in _without_facts(table) if column.name != "speed_up"],  # which is over a method
    )


def _without_facts(table: Sequence[Column]) -> list[Column]:
    """Without settings that are the same everywhere: the facts above the table have them."""
    return [column for column in table if column.name not in SETTINGS or len({*column.cells} - {MISSING}) > 1]


def _names(outcomes: Iterable[Outcome]) -> list[_Name]:
    return [_Name(outcome.label, failure_text(outcome)) for outcome in outcomes]


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


def _without_split(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without the many numbers that pictures show."""
    return {key: value for key, value in config.items() if key not in ("split", "tuning")}


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
class _Figure:
    """A chart without its curves, which the script draws."""

    id: str
    title: str
    description: str  # for screen readers
    log: bool
    lines: list[_Line]


@dataclass(frozen=True)
class _Line:
    """The legend of a level in a chart: a target, or where a reference ended."""

    text: str
    reference: bool


def _figure(chart: Mapping[str, Any], outcomes: Sequence[Outcome], targets: Sequence[Target]) -> _Figure:
    text = percent_text if chart["percent"] else number_text
    ends = "; ".join(
        f"{outcome.label} ends at {text(mean['y'][-1])}" if mean["y"] else f"{outcome.label} has no curve"
        for outcome, mean in zip(outcomes, chart["means"], strict=True)
    )
    # Named after the method that set it, if one did.
    own = any(not target.given for target in targets)
    name = f"{outcomes[0].label}’s final accuracy" if own else "target"
    return _Figure(
        id=chart["id"],
        title=chart["title"],
        description=f"{chart['title']} as a line chart: {ends}.",
        log=chart["log"],
        lines=[_Line(f"{line['label'] or name}, {text(line['y'])}", bool(line["label"])) for line in chart["lines"]],
    )


def _curves_note(records: Sequence[Record], outcomes: Sequence[Outcome], charts: Sequence[Mapping[str, Any]]) -> str:
    notes = []
    if any(outcome.runs > 1 for outcome in outcomes):
        notes.append("Lines are means over seeds, bands reach from the lowest to the highest seed.")
    if any(outcome.diverged or outcome.exploded for outcome in outcomes):
        failed = "Runs that diverged, or whose loss exploded, are dotted lines that end in a cross"
        notes.append(f"{failed}; means, bands and axes leave them out.")
    if any(chart["far"] for chart in charts):
        notes.append("Curves that rise far above the others leave their chart.")
    if thinned(records):
        notes.append(f"Long curves are drawn with at most {MOST_POINTS} of their rounds.")
    return " ".join(notes)
