"""`compare`: several algorithms on the same data and the same seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
from torch import nn
from torch.utils.data import Dataset

from undrift.algorithms import Centralised
from undrift.algorithms.text import Written
from undrift.core import check
from undrift.core.check import nearest
from undrift.core.log import notice, warning
from undrift.data import FederatedData
from undrift.data.federated import Clients
from undrift.methods.algorithm import Algorithm
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
from undrift.reporting.record import Record, history_frame, shown_columns
from undrift.reporting.sensitivity import Sensitivity, draw, sensitivity_of
from undrift.reporting.table import Column
from undrift.reporting.table import columns as table_columns
from undrift.reporting.targets import Targets, check_targets, has_relative
from undrift.reporting.task import by_task
from undrift.simulation.arguments import Objects
from undrift.simulation.callbacks import CallbackLike, as_callbacks
from undrift.simulation.defaults import Resolved, resolve_defaults
from undrift.simulation.describe import read_options
from undrift.simulation.options import AUTO, SEEDS, Auto, Options, plain
from undrift.simulation.prepare import find_algorithm, find_data
from undrift.simulation.progress import overall_bar
from undrift.simulation.together import Entry, named, train_all
from undrift.simulation.vary import variants
from undrift.statistics.conformal import Conformal, check_levels
from undrift.statistics.samples import LEVEL
from undrift.storage import files, predictions
from undrift.storage.comparison import folders_of, read_order, write_order
from undrift.storage.directory import RunDirectory
from undrift.storage.files import DamageError

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

        Runs of one label and task are told apart by their directories. `targets` and `last_k` are those of `compare`.
        """
        found: list[_Stored] = []
        for path in map(Path, paths):
            homes = [home.parent for home in sorted(path.rglob("config.json"))]
            if not homes:
                raise ValueError(f"{str(path)!r} is not a run directory and holds none")
            stored = [_Stored(path, home, read_record(RunDirectory.open(home))) for home in homes]
            orders = {folder: read_order(folder) for folder in dict.fromkeys(each.folder for each in stored)}
            found += sorted(_with_predictions(stored), key=lambda each: each.position(orders))
        records = _told_apart(found)
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


class _Stored(NamedTuple):
    """A run that was read from its directory."""

    given: Path
    home: Path
    record: Record

    @property
    def folder(self) -> Path:
        """The folder of the comparison, if the run is of one: it is then in FOLDER/LABEL/seed-S."""
        return self.home.parent.parent

    @property
    def place(self) -> Path:
        """What tells it apart from a run of the same label and seed."""
        return self.folder if self.home.name == f"seed-{self.record.seed}" else self.home

    def position(self, orders: Mapping[Path, Sequence[str]]) -> tuple[str, int, str, int]:
        """By comparison, label and seed; runs of no comparison, or of one without an order, by their directories."""
        order = orders[self.folder]
        if not order:
            return str(self.folder), 0, str(self.home), 0
        label = self.record.label
        return str(self.folder), order.index(label) if label in order else len(order), "", self.record.seed


def _told_apart(found: Sequence[_Stored]) -> list[Record]:
    """The records, with a directory in their labels where runs of one task would have the same label and seed."""
    records = [each.record for each in found]
    for directories in ([each.given for each in found], [each.place for each in found]):
        if all(len({(r.label, r.seed) for r in task}) == len(task) for task in by_task(records)):
            break
        pairs = zip(found, directories, strict=True)
        records = [each.record._replace(label=f"{each.record.label} ({path})") for each, path in pairs]
    return records


def compare(
    algorithms: Mapping[str, str | Algorithm | Written] | Sequence[str | Algorithm | Written],
    model: str | nn.Module | None = None,
    data: str | FederatedData | Clients | Callable[[int], FederatedData] | None = None,
    test: tuple[Any, Any] | Dataset[Any] | None = None,
    seeds: int | Sequence[int] = 1,
    *,
    lr: float | Sequence[float] | Auto = AUTO,
    vary: Mapping[str, Sequence[Any]] | None = None,
    targets: Targets = None,
    last_k: int | None = None,
    centralised: bool | str = False,
    callbacks: Iterable[CallbackLike] = (),
    out: str | Path | None = None,
    **options: Any,
) -> Comparison:
    """Run every algorithm with every seed (a count, or a list) and compare. Other arguments are those of `simulate`.

    `algorithms` maps labels to names or instances; a name may have settings of its own, which win over those of all,
    as in ``"fedadam(server_lr=0.01, lr=0.03)"``. All weight clients by their samples, unless `weighting` says
    otherwise; ``"paper"`` gives each what its paper uses. `data` may be a function of the seed; of several learning
    rates each makes a row of its own. Runs of one algorithm train together, as one larger cohort, where that is faster.
    With `out`, every run is kept in ``out/LABEL/seed-S``; runs that are there already are not repeated. A comparison
    that was interrupted and is repeated gives the same bits as one that was not; of a module the architecture is
    checked, and its initial weights come from `out`. A run that diverges is recorded, and the others are trained all
    the same.

    `vary` names a setting and the values that it takes in turn: an argument of `simulate`, ``{"cohort": [0.1, 0.5]}``,
    of `undrift.data.load` where data are given by name, ``{"partition": ["dirichlet:0.1", "iid"]}``, or an option of an
    algorithm, ``{"feddpc.lam": [0.1, 1]}``. Values that make different tasks have folders, ``out/VALUE/LABEL/seed-S``;
    `sensitivity` has the accuracy with each.

    The table counts the rounds and bytes to each of `targets`, which end no run (`target` does): accuracies such as
    0.6, or shares of the centralised accuracy such as ``"90%"``. By default that is the final accuracy of the first
    algorithm. `last_k` is how many rounds the mean at the end is over: 100, or all of a shorter run.

    With `centralised`, the pooled samples are trained on as well, as a reference: with the settings of the others and
    as many epochs as their clients take in all, momentum kept across epochs. ``"centralised(epochs=150, lr=0.1,
    momentum=0.9, lr_decay=cosine)"`` has settings of its own.
    """
    reference = _reference(centralised)
    check_measures(targets, last_k, centralised=reference is not None)
    labelled, chosen, watching = labelled_algorithms(algorithms), list_of_seeds(seeds), as_callbacks(callbacks)
    if reference is not None:
        if (name := Centralised.__name__) in labelled:
            raise ValueError(f"centralised adds a run {name!r}, which is the label of another")
        labelled |= {name: reference}
    rates = _rates(lr)
    if out is not None:
        out = check.path("out", out)
    objects, others = separated("compare", options)
    if others.get("weighting", AUTO) == AUTO:
        others["weighting"] = "samples"
    federations: dict[int, dict[int, FederatedData]] = {}
    entries: list[Entry] = []
    orders: dict[Path, list[str]] = {}
    for variant in variants(vary or {}, labelled, data, others):
        if id(variant.data) not in federations:
            federations[id(variant.data)] = federations_of(variant.data, chosen)
        given = Given(model, federations[id(variant.data)], test, objects, variant.options)
        runs = [
            (name, given.resolved(label, written, rate, seed))
            for label, written in variant.algorithms.items()
            for rate, name in _named_rates(label, _rates_of(written, rates))
            for seed in chosen
        ]
        order = list(dict.fromkeys(name for name, _ in runs))
        home = None if out is None else out / variant.folder
        folders = None if home is None else {name: home / folder for name, folder in folders_of(order).items()}
        found = [
            Entry(name, run, None if folders is None else folders[name] / f"seed-{run.options.seed}")
            for name, run in runs
        ]
        if not entries:
            first = next(iter(variant.algorithms.items()))
            # What all have, unless their text says otherwise.
            common = given.resolved(first[0], first[1].algorithm, rates[0], chosen[0])
        entries += sorted(found, key=lambda entry: (order.index(entry.label), entry.run.options.seed))
        if home is not None:
            orders[home] = order
    tested = test is not None or all(each.test for of_seed in federations.values() for each in of_seed.values())
    if targets is not None and not tested:
        raise ValueError(f"targets={check.shown(targets)} need a test set; give test=(x, y)")
    notice(common.notice)
    with overall_bar(f"{len(entries)} runs", sum(entry.run.options.rounds for entry in entries)):
        records = train_all(entries, watching, lambda: _write_orders(orders))
    return Comparison(records, common.options.target if targets is None else targets, last_k)


def _write_orders(orders: Mapping[Path, Sequence[str]]) -> None:
    for home, order in orders.items():
        write_order(home, order)


class Given(NamedTuple):
    """What the runs of a comparison share."""

    model: Any
    federations: Mapping[int, FederatedData]  # of every seed
    test: Any
    objects: Mapping[str, Any]
    options: Mapping[str, Any]

    def resolved(self, label: str, algorithm: Algorithm | Written, rate: Any, seed: int) -> Resolved:
        data = self.federations[seed]
        with named(label):
            objects = Objects(algorithm, self.model, data, self.test, **self.objects)
            return resolve_defaults(objects, Options(**{**self.options, "lr": rate, "seed": seed}), data)


def read_record(directory: RunDirectory) -> Record:
    config, options = directory.config, read_options(directory)
    rows = history_frame(directory.rows())
    config = config | {"options": asdict(options)}
    detail = directory.detail()
    return Record(config["label"], options.seed, rows, config, directory.environment, detail=detail)


def _with_predictions(stored: Sequence[_Stored]) -> list[_Stored]:
    """With what their directories hold of predictions; files that should be there and are not are named."""
    found, problems = [], []
    for each in stored:
        record = each.record
        try:
            if len(record.history) and not record.diverged:
                kept = predictions.read(each.home, int(record.history["round"].iloc[-1]))
                record = record._replace(predictions=kept)
        except DamageError as problem:
            if _is_complete(record) or (each.home / predictions.FILE).exists():
                problems.append(str(problem))
        found.append(each._replace(record=record))
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        warning(f"{problems[0]}{more}; tests on the test samples leave such runs out, resuming one writes it again")
    return found


def _is_complete(record: Record) -> bool:
    """Whether a run of class numbers has all its rounds; others have no predictions by right."""
    last, options = record.history.iloc[-1], record.config["options"]
    return bool(last["round"] == options["rounds"]) and math.isfinite(last["accuracy"])


MOST_SEEDS = 10_000


def labelled_algorithms(algorithms: Any) -> dict[str, Written]:
    given = check.plain(algorithms)
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise TypeError(
            f"algorithms must be a list of names or a dict of labels and algorithms, got {check.shown(given)}"
        )
    if not given:
        raise ValueError("compare needs at least one algorithm, got none")
    if not isinstance(given, Mapping):
        found = [find_algorithm(a) for a in given]
        labelled = {a.label: a for a in found}
        if len(labelled) < len(found):
            raise ValueError("algorithms must differ; give a dict with a label for each")
        return labelled
    for label in given:
        if not isinstance(label, str) or not label.strip():
            raise TypeError(f"the label of an algorithm must be a text, got {check.shown(label)}")
        if any("\ud800" <= letter <= "\udfff" for letter in label):  # bytes of a command line that are no UTF-8
            raise ValueError(f"the label of an algorithm must be a text in UTF-8, got {check.shown(label)}")
    return {label: find_algorithm(a) for label, a in given.items()}


def _reference(centralised: Any) -> Written | None:
    """The run on the pooled data that was asked for: by True, or written with its settings."""
    if centralised is False or centralised is None:
        return None
    if centralised is not True and not isinstance(centralised, str):
        raise TypeError(
            "centralised must be True or written as 'centralised(epochs=150, momentum=0.9)', "
            f"got {check.shown(centralised)}"
        )
    with named("centralised"):
        found = find_algorithm(Centralised() if centralised is True else centralised)
    if not found.algorithm.pooled:
        raise ValueError(f"centralised is written 'centralised(epochs=150, ...)', got {check.shown(centralised)}")
    return found


def list_of_seeds(seeds: Any) -> list[int]:
    seeds = plain(seeds)
    if not isinstance(seeds, list):
        check.integer("seeds", seeds, 1, MOST_SEEDS)
        return list(range(seeds))
    for seed in seeds:
        check.integer("seeds: a seed", seed, 0, SEEDS - 1)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be a count or a list of different numbers, got {check.shown(seeds)}")
    return seeds


def federations_of(data: Any, seeds: Sequence[int]) -> dict[int, FederatedData]:
    """The data of every seed."""
    if callable(data):
        check.function("data", data, "seed")
    return {seed: find_data(data(seed) if callable(data) else data, seed) for seed in seeds}


def _rates(lr: Any) -> list[Any]:
    lr = plain(lr)
    if isinstance(lr, str) and lr == AUTO:
        return [AUTO]
    rates = lr if isinstance(lr, list) else [lr]
    for rate in rates:
        check.number("lr", rate, 0, open_low=True)
    if not rates or len(set(rates)) < len(rates):
        raise ValueError(f"lr must be a number or a list of different ones, got {check.shown(lr)}")
    return rates


def _rates_of(written: Written, rates: Sequence[Any]) -> Sequence[Any]:
    """One rate for an algorithm that has its own."""
    return [written.settings["lr"]] if "lr" in written.settings else rates


def _named_rates(label: str, rates: Sequence[Any]) -> list[tuple[Any, str]]:
    """Rates as they were given, with the names of runs that have them; where there are several, these tell them."""
    if len(rates) == 1:
        return [(rates[0], label)]
    short = [(rate, f"{rate:g}") for rate in rates]
    return [(rate, f"{label}, lr {text if float(text) == rate else rate}") for rate, text in short]


def separated(function: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The objects among further arguments, and the options."""
    objects = [f.name for f in fields(Objects) if f.kw_only]
    known = [*objects, *(f.name for f in fields(Options) if f.name not in ("seed", "lr"))]
    for key in given:
        if key not in known:
            raise TypeError(f"{function} has no argument {key!r}{nearest(key, known)}")
    return {k: v for k, v in given.items() if k in objects}, {k: v for k, v in given.items() if k not in objects}
