"""Finished runs side by side: tables, tests, drawings and the report of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from undrift.core import check
from undrift.core.check import nearest
from undrift.reporting import (
    conformal,
    drift,
    drift_picture,
    export,
    notebook,
    rank_diagram,
    report,
    significance,
)
from undrift.reporting.facts import names_of
from undrift.reporting.figures import LAST_K, apart, summarise
from undrift.reporting.record import Record, shown_columns
from undrift.reporting.sensitivity import Sensitivity, draw, sensitivity_of
from undrift.reporting.table import Column
from undrift.reporting.table import columns as table_columns
from undrift.reporting.targets import Targets, check_targets, has_relative
from undrift.reporting.task import by_task
from undrift.simulation.stored import read_runs
from undrift.statistics.conformal import Conformal, check_levels
from undrift.statistics.samples import LEVEL
from undrift.storage import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Comparison:
    """Finished runs side by side."""

    def __init__(self, records: Sequence[Record], targets: Targets = None, last_k: int | None = None) -> None:
        self.records, self.references = apart(records)
        check_measures(targets, last_k, centralised=bool(self.references))
        self.targets, self.last_k = targets, last_k

    @property
    def everything(self) -> list[Record]:
        """The records of all runs, references last."""
        return [*self.records, *self.references]

    def table(self) -> pd.DataFrame:
        """A row per algorithm; with a column `task` first where runs are of several tasks.

        Figures are means over the seeds that did not fail (`averaged` of `runs`), with their standard deviations in
        columns that end in ``_std``; seeds that `diverged`, or whose training loss `exploded`, are counted. All columns
        are explained on the page of results. A row of a `reference` is no part of the comparison.
        """
        tasks = by_task(self.everything)
        tables = [summarise(task, self.targets, self.last_k or LAST_K) for task in tasks]
        if len(tasks) == 1:
            return tables[0]
        return _named_tables(tables, names_of(tasks))

    def to_csv(self, path: str | Path) -> Path:
        """Write `table()` to a file, with all digits."""
        path = check.path("path", path)
        files.replace(path, self.table().to_csv(index=False).encode())
        return path

    def to_markdown(self, columns: Sequence[str] | None = None) -> str:
        """The table as Markdown, rounded, the best values in bold as in the text on a terminal.

        `columns` chooses some by name: seeds, accuracy, best_accuracy, best_round, last_k, loss, rounds, speed_up,
        bytes, traffic, time, lr, server_lr, weighting, or a metric. Several tasks make several tables.
        """
        return self._exported(export.markdown, columns, "**{}**\n\n")

    def to_latex(self, columns: Sequence[str] | None = None) -> str:
        """The same in LaTeX: a `tabular` for each task, for a document that uses the package `booktabs`."""
        return self._exported(export.latex, columns, "% {}\n")

    def _exported(
        self,
        written: Callable[[Sequence[Column]], str],
        columns: Sequence[str] | None,
        title: str,
    ) -> str:
        tasks = by_task(self.everything)
        titles = [title.format(name) for name in names_of(tasks)] if len(tasks) > 1 else [""]
        tables = [written(table_columns(task, self.targets, self.last_k, columns)) for task in tasks]
        return "\n".join(title + table for title, table in zip(titles, tables, strict=True))

    def curves(self) -> pd.DataFrame:
        """A row per algorithm, seed and round; of references, per epoch."""
        frames = [r.history.assign(label=r.label, seed=r.seed) for r in self.everything]
        joined = pd.concat(frames, ignore_index=True)
        return joined[["label", "seed", *(c for c in joined.columns if c not in ("label", "seed"))]]

    def tests(self, column: str | None = None, level: float = LEVEL) -> pd.DataFrame:
        """A row per pair of labels: is the difference of their final values real? With `task` first where of several.

        By default the accuracy is tested, where there is one, else the loss; or give a column of the histories. Runs
        are paired by seed; on the same test samples, tests are about accuracy. ``better`` is the label that is clearly
        better, empty if neither is, ``p`` that of the test that decides, corrected by Holm's method for all pairs, and
        ``reason`` says which it is. What the other columns are: docs/statistics.md.
        """
        check.number("level", level, 0, 1, open_low=True, open_high=True)
        if column is not None and not any(column in record.history for record in self.records):
            known = [each.name for each in shown_columns(record.history for record in self.records) if each.heading]
            raise ValueError(f"unknown column {check.shown(column)}{nearest(column, known)}")
        tasks = by_task(self.records)
        tables = [significance.frame(significance.pairs_of(task, column, level, everything=True)) for task in tasks]
        return tables[0] if len(tasks) == 1 else _named_tables(tables, names_of(tasks))

    def ranks(self, level: float = LEVEL) -> pd.DataFrame:
        """A row per label that all tasks have: its average rank by final accuracy, and figures over all tasks.

        ``interquartile_mean`` of all runs, and ``improvement``, the probability that a run is better than one of the
        first label, each with its bootstrap interval. `attrs` holds ``tasks``, ``friedman_p`` and
        ``critical_difference``: average ranks that are further apart differ. A run that failed counts as 0.
        """
        check.number("level", level, 0, 1, open_low=True, open_high=True)
        found = significance.ranks_of(by_task(self.records), level)
        found.table.attrs |= {
            "tasks": found.tasks,
            "friedman_p": found.friedman_p,
            "critical_difference": found.critical_difference,
        }
        return found.table

    def plot_ranks(self, axes: Axes | None = None) -> Axes:
        """Draw the average ranks over tasks; a bar joins labels that do not differ (critical-difference diagram).

        Returns matplotlib's axes, new ones unless some are given.
        """
        return rank_diagram.draw(significance.ranks_of(by_task(self.records)), axes)

    def conformal(
        self,
        levels: float | Sequence[float] | None = None,
        method: str = "threshold",
        *,
        per_class: bool = False,
        **options: Any,
    ) -> pd.DataFrame:
        """A row per algorithm and level: coverage and mean size of conformal prediction sets of the final models.

        A level is the share of sets that should hold the true class; without `levels`, from 0.5 to 0.99. `method` is
        "threshold", "adaptive" or "regularised". Half of the test samples calibrate, the other half is tested. Figures
        are means over seeds; `per_class` gives a row to every true class. `options`: ``randomised`` (False),
        ``penalty`` (0.01) and ``free_ranks`` (5) of "regularised", ``seed`` (0) of the split.
        """
        chosen, sets = None if levels is None else check_levels(levels), _conformal(method, options)
        tasks = by_task(self.everything)
        tables = [conformal.frame(task, chosen, sets, per_class) for task in tasks]
        return tables[0] if len(tasks) == 1 else _named_tables(tables, names_of(tasks))

    def plot_conformal(
        self,
        levels: float | Sequence[float] | None = None,
        method: str = "threshold",
        *,
        axes: Axes | None = None,
        **options: Any,
    ) -> Axes:
        """Draw the mean size of prediction sets against their coverage, a curve per algorithm; see `conformal`.

        Returns matplotlib's axes, new ones unless some are given.
        """
        chosen, sets = None if levels is None else check_levels(levels), _conformal(method, options)
        return conformal.draw(self.everything, chosen, sets, axes)

    def plot(self, column: str | None = None, axes: Axes | None = None, against: str = "rounds") -> Axes:
        """Draw a column of the histories over rounds, bytes or seconds: mean and band from lowest to highest seed.

        By default the accuracy. Returns matplotlib's axes, new ones unless some are given.
        """
        return notebook.draw(self.everything, column, axes, against)

    def figures(
        self, folder: str | Path, column: str | None = None, formats: Sequence[str] = notebook.FORMATS
    ) -> list[Path]:
        """Save such drawings over rounds, bytes and seconds, each as SVG, PDF and PNG; returns the paths.

        Of runs that differ in one setting, also the accuracy against it.
        """
        return notebook.write_figures(self.everything, folder, column, formats)

    def sensitivity(self) -> pd.DataFrame:
        """Of runs that differ in one setting, the final accuracy with each of its values.

        A row per algorithm and value: mean, standard deviation, lowest and highest over the seeds that did not fail.
        """
        return self._varied().table()

    def plot_sensitivity(self, axes: Axes | None = None) -> Axes:
        """Draw the final accuracy against the one setting in which the runs differ: mean, and band over seeds."""
        return draw(self._varied(), axes)

    def _varied(self) -> Sensitivity:
        found = sensitivity_of(self.records)
        if found is None:
            raise ValueError("the runs do not differ in one setting alone; compare with vary={...} makes such runs")
        return found

    def diagnostics(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The drift diagnostics at the end of training, a column per label: means over the last tenth of the rounds.

        Of the whole model, and averaged over its layers. `columns` chooses some: ``["gradient_norm/mean"]``.
        """
        return drift.final_figures(notebook.with_tasks(self.records), columns)

    def draw_diagnostics(self, path: str | Path, columns: Sequence[str] | None = None) -> Path:
        """Draw the drift diagnostics over rounds and by layer, to a file .svg, .png or .pdf; returns its path.

        `columns` chooses some, by default the first statistic of each. Labels name the task where there are several.
        """
        path = check.path("path", path)
        content = drift_picture.rendered(notebook.with_tasks(self.records), path.suffix, columns)
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, content)
        return path

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return notebook.html_table(self.everything, self.targets, self.last_k)

    def report(self, path: str | Path, title: str = "") -> Path:
        """One self-contained HTML file; runs of different tasks are shown apart."""
        return report.write(path, self.everything, title, self.targets, self.last_k)

    @classmethod
    def from_directories(
        cls, paths: Iterable[str | Path], targets: Targets = None, last_k: int | None = None
    ) -> Comparison:
        """From run directories, or directories that hold some, in the order in which they were compared.

        Runs of one label and task are told apart by their directories. `targets` and `last_k` are those of `compare`,
        by default as they were given to it.
        """
        stored = read_runs(paths)
        records = stored.records
        last_k = stored.last_k if last_k is None else last_k
        if targets is None and (not has_relative(stored.targets) or any(record.reference for record in records)):
            targets = stored.targets
        if targets is None:  # that runs were stopped at, if all were at the same
            stops = {record.config["options"].get("target") for record in records if not record.reference}
            targets = stops.pop() if len(stops) == 1 else None
        return cls(records, targets, last_k)


def _conformal(method: str, options: Mapping[str, Any]) -> Conformal:
    known = [each.name for each in fields(Conformal) if each.name != "method"]
    for name in options:
        if name not in known:
            raise TypeError(f"conformal has no argument {name!r}{nearest(name, known)}")
    return Conformal(method, **options)


def check_measures(targets: Any, last_k: Any, *, centralised: bool) -> None:
    """Refuses what a comparison cannot be measured by."""
    check_targets(targets)
    if has_relative(targets) and not centralised:
        raise ValueError(
            f"targets={check.shown(targets)} has a share of the centralised accuracy, which is not there; "
            "compare with centralised=True (--centralised), or give accuracies between 0 and 1"
        )
    if last_k is not None:
        check.integer("last_k", last_k, 1)


def _named_tables(tables: Sequence[pd.DataFrame], names: Sequence[str]) -> pd.DataFrame:
    """One table of several tasks, their names first."""
    named = [table.assign(task=name) for table, name in zip(tables, names, strict=True)]
    return pd.concat(named, ignore_index=True).set_index("task").reset_index()
