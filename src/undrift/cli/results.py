"""Printing the results of runs and comparisons, and writing their reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.markup import escape
from rich.text import Text

from undrift.cli.console import console, print_json, print_markup, print_pairs, print_paths, print_table
from undrift.cli.group import fail
from undrift.core import check
from undrift.core.extras import MissingExtraError
from undrift.core.log import notice

if TYPE_CHECKING:
    from undrift.profile import Profile
    from undrift.reporting.record import Record
    from undrift.reporting.table import Column
    from undrift.simulation.comparison import Comparison
    from undrift.simulation.run import Run


RUNS = Path("runs")  # where results go unless said otherwise


@contextmanager
def output_directory(given: Path | None, name: str) -> Iterator[Path]:
    """The directory that was given, or the first runs/NAME-N that is free, which no other process gets then.

    If nothing is written to it, because something is wrong, it goes again.
    """
    if given is not None:
        yield given
        return
    existed = RUNS.exists()
    home = _reserved(name)
    try:
        yield home
    finally:
        with suppress(OSError):  # not empty
            home.rmdir()
            if not existed:
                RUNS.rmdir()


def _reserved(name: str) -> Path:
    number = 1
    while True:
        RUNS.mkdir(exist_ok=True)
        home = RUNS / f"{name}-{number}"
        try:
            home.mkdir()
        except FileExistsError:
            number += 1
        except FileNotFoundError:  # another process has just removed the folder, which it had no use for
            continue
        else:
            return home


# Runs


def train(start: Callable[[], Run], as_json: bool, profile: Profile | None = None) -> None:
    """Train a run and show its results, which a run that diverges or is interrupted has as well."""
    from undrift import DivergenceError

    try:
        run = start()
    except DivergenceError as error:
        _show_run(error.run, as_json, profile)
        fail(error)
    except KeyboardInterrupt:
        if profile is not None and not as_json:
            _show_profile(profile)
        raise
    _show_run(run, as_json, profile)


def _show_run(run: Run, as_json: bool, profile: Profile | None) -> None:
    from undrift.reporting.facts import data_name
    from undrift.reporting.report import write
    from undrift.reporting.table import SETTINGS, columns

    assert run.out is not None
    record = run.record
    data = data_name(run.config)
    report: Path | None = None
    try:
        report = write(run.out / "report.html", [record], targets=run.options.target)
    except ModuleNotFoundError as missing:  # a machine that only computes
        print(f"undrift: no report, as {missing.name} is not installed", file=sys.stderr)
    if as_json:
        profiled = {} if profile is None else {"profile": profile.figures and asdict(profile.figures)}
        print_json(_figures(run) | {"out": str(run.out), "report": report and str(report)} | profiled)
        return
    name, *shown = (c for c in columns([record], run.options.target) if c.heading not in SETTINGS.values())
    print_markup(f"\n[bold]{escape(name.cells[0])}[/] on {data}")
    about = {"Settings": _settings(run), "Engine": run.engine, "Rounds": str(run.rounds)}
    print_pairs(about | {c.heading: c.cells[0] for c in shown})
    print()
    if profile is not None:
        _show_profile(profile)
    print_paths(run=run.out, **({} if report is None else {"report": report}))


def _settings(run: Run) -> str:
    """Those on which a result depends most."""
    from undrift.simulation.cohort import participation

    options, model = run.options, run.config["model"]
    batches = "full batches" if options.batch_size is None else f"batches of {options.batch_size}"
    parts = [f"model {model}"] if isinstance(model, str) else []
    server = [] if options.server_lr == 1 else [f"server lr {options.server_lr:g}"]
    weights = "by samples" if options.weighting == "samples" else "equally"
    clients = f"{participation(options, len(run.experiment.data))}, weighted {weights}"
    if run.experiment.algorithm.pooled:
        clients = "all samples in one place"
    return ", ".join([*parts, f"lr {options.lr:g}", *server, batches, clients])


def _figures(run: Run) -> dict[str, Any]:
    from undrift.reporting.record import shown_columns

    history = run.history

    def last(column: str) -> float | None:
        known = history[column].dropna()
        return float(known.iloc[-1]) if len(known) else None

    return {
        "label": run.label,
        "seed": run.options.seed,
        "rounds": run.rounds,
        **{column.name: last(column.name) for column in shown_columns([history]) if column.heading},
        "bytes_down": int(history["bytes_down"].sum()),
        "bytes_up": int(history["bytes_up"].sum()),
        "seconds": float(history["seconds"].sum()),
        "diverged": bool(history["diverged"].any()),
        "engine": run.environment.get("engine"),
        "engine_reason": run.environment.get("engine_reason"),
    }


def _show_profile(profile: Profile) -> None:
    from undrift.profile.table import table

    if profile.figures is None:
        print_markup(f"No profile: the run ended too early; the first {profile.skip} rounds are not profiled.\n")
        return
    console().print(table(profile.figures))
    print()
    print_paths(profile=Path(profile.figures.trace))


# Comparisons


FORMATS = ("text", "csv", "markdown", "latex")


class TableFormat(NamedTuple):
    """How a table is printed."""

    name: str | None  # of `FORMATS`, or "json"; None: as text, with all that belongs to it
    columns: list[str] | None  # None: all that there is room for

    @classmethod
    def checked(cls, name: str | None, columns: str | None, as_json: bool) -> TableFormat:
        """Refuses, before anything is trained, what there is not."""
        if name is not None:
            check.choice("--format", name, FORMATS)
        if as_json and name is not None:
            raise ValueError(f"give --json or --format {name}, not both")
        if columns is not None and (as_json or name == "csv"):
            raise ValueError("--columns is for text, markdown and latex; csv and JSON have all columns")
        return cls("json" if as_json else name, listed(columns))


def listed(text: str | None) -> list[str] | None:
    """The parts of a list with commas."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def show_comparison(comparison: Comparison, out: Path, printed: TableFormat) -> None:
    report = comparison.report(out / "report.html")
    if printed.name == "json":
        print_json(comparison_figures(comparison) | {"out": str(out), "report": str(report)})
    elif printed.name is not None:
        print_comparison(comparison, printed)
        notice(f"runs: {out}\nreport: {report}")
    else:
        print()
        print_comparison(comparison, printed)
        print()
        print_paths(runs=out, report=report)
    table = comparison.table()
    if (table["diverged"] == table["runs"]).all():
        fail("every run diverged")


def comparison_figures(comparison: Comparison) -> dict[str, Any]:
    """The results of a comparison as plain values."""
    from undrift.reporting.headline import headline
    from undrift.reporting.task import by_task

    table = comparison.table()
    rows = json.loads(table.to_json(orient="records", double_precision=15))
    sentences = [headline(task, comparison.targets) for task in by_task(comparison.everything)]
    measured = {"target": table.attrs["target"], "targets": table.attrs["targets"]} if len(sentences) == 1 else {}
    return {"headline": " ".join(sentences), **measured, "table": rows, "significance": _tests(comparison)}


def print_comparison(comparison: Comparison, printed: TableFormat) -> None:
    """The table in a format; as text, with what is to be known of it, and the result in a sentence."""
    if printed.name == "csv":
        print(comparison.table().to_csv(index=False), end="")
    elif printed.name == "markdown":
        print(comparison.to_markdown(printed.columns), end="")
    elif printed.name == "latex":
        print(comparison.to_latex(printed.columns), end="")
    else:
        _print_text(comparison, printed.columns, only_table=printed.name is not None)


def _print_text(comparison: Comparison, chosen: Sequence[str] | None, only_table: bool) -> None:
    from undrift.reporting.facts import names_of
    from undrift.reporting.headline import headline
    from undrift.reporting.table import columns, note
    from undrift.reporting.task import by_task

    targets, last_k = comparison.targets, comparison.last_k
    tasks = by_task(comparison.everything)
    for task, name in zip(tasks, names_of(tasks), strict=True):
        if len(tasks) > 1:
            print_markup(f"[bold]{escape(name)}[/]")
        shown = columns(task, targets, last_k, chosen)
        _print_columns(_fitting(shown) if chosen is None else shown)
        if not only_table:
            print_markup(f"[dim]{escape(note(task, targets, last_k))}[/]\n\n{escape(headline(task, targets))}")
            print_significance(task)


def print_significance(records: Sequence[Record]) -> None:
    """A line on which differences between the runs of a task are clear, where there is anything to compare."""
    from undrift.reporting.significance import line_of

    if line := line_of(records):
        print_markup(f"[dim]Significance: {escape(line)}.[/]")


def _tests(comparison: Comparison) -> list[dict[str, Any]]:
    """A row per pair; none where the packages that test are not installed, which is said."""
    try:
        rows: list[dict[str, Any]] = json.loads(comparison.tests().to_json(orient="records", double_precision=15))
    except MissingExtraError as missing:
        print(f"undrift: no tests, as {missing}", file=sys.stderr)
        return []
    return rows


def _print_columns(shown: Sequence[Column]) -> None:
    cells = [[Text(text, style="bold" if row in c.best else "") for row, text in enumerate(c.cells)] for c in shown]
    headings = [_in_two_lines(c.heading) for c in shown]
    print_table(headings, zip(*cells, strict=True), numbers=range(1, len(shown)))


def _fitting(columns: Sequence[Column]) -> Sequence[Column]:
    """Without the columns that a narrow terminal has no room for; the report has them all.

    Settings that all rows share go first.
    """
    from undrift.reporting.table import SETTINGS, SPARE

    shared = [c.name for c in columns if c.name in SETTINGS and len(set(c.cells)) == 1]
    for spare in (*reversed(shared), *SPARE):
        widths = [
            max(len(line) for text in (_in_two_lines(c.heading), *c.cells) for line in text.split("\n"))
            for c in columns
        ]
        if sum(widths) + 2 * len(widths) - 2 <= console().width:
            break
        columns = [c for c in columns if c.name != spare]
    return columns


def _in_two_lines(heading: str) -> str:
    """Headings are wrapped, as columns of numbers are narrow."""
    return "\n".join(heading.rsplit(" ", 1))
