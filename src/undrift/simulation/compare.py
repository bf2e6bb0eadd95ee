"""`compare`: several algorithms on the same data and the same seeds."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields, replace
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
from undrift.reporting import conformal, export, notebook, rank_diagram, report, significance
from undrift.reporting.facts import names_of
from undrift.reporting.figures import LAST_K, apart, summarise
from undrift.reporting.record import Record, history_frame, shown_columns
from undrift.reporting.table import Column
from undrift.reporting.table import columns as table_columns
from undrift.reporting.targets import Targets, check_targets, has_relative
from undrift.reporting.task import by_task
from undrift.simulation.arguments import Objects
from undrift.simulation.callbacks import Callback, CallbackLike, as_callbacks
from undrift.simulation.cohort import choices, instabilities
from undrift.simulation.defaults import Resolved, resolve_defaults
from undrift.simulation.describe import as_begun, read_options, same_options
from undrift.simulation.loop import train
from undrift.simulation.options import AUTO, SEEDS, Auto, Options, plain
from undrift.simulation.prepare import find_algorithm, find_data, prepare, with_engine
from undrift.simulation.progress import overall_bar
from undrift.simulation.round import can_train_together, capacity
from undrift.simulation.run import Run
from undrift.simulation.setup import Experiment, Setup
from undrift.simulation.simulate import reopen, start
from undrift.statistics.conformal import Conformal, check_levels
from undrift.statistics.samples import LEVEL
from undrift.storage import files, predictions
from undrift.storage.comparison import read_order, write_order
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
        """Save such drawings over rounds, bytes and seconds, each as SVG, PDF and PNG; returns the paths."""
        return notebook.write_figures(self.everything, folder, column, formats)

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


class _Key(NamedTuple):
    """What tells the runs of one algorithm apart."""

    lr: float
    seed: int


class _Place(NamedTuple):
    """A run of a comparison before it is prepared."""

    label: str
    home: Path | None
    options: Options
    stored: RunDirectory | None  # of a run that is there already
    group: tuple[_Key, ...]  # with which runs it trains; empty if that is not decided yet

    @property
    def key(self) -> _Key:
        return _Key(self.options.lr, self.options.seed)


class _Planned(NamedTuple):
    """A run of a comparison, ready to start or to be resumed."""

    place: _Place
    experiment: Experiment


def compare(
    algorithms: Mapping[str, str | Algorithm | Written] | Sequence[str | Algorithm | Written],
    model: str | nn.Module | None = None,
    data: str | FederatedData | Clients | Callable[[int], FederatedData] | None = None,
    test: tuple[Any, Any] | Dataset[Any] | None = None,
    seeds: int | Sequence[int] = 1,
    *,
    lr: float | Sequence[float] | Auto = AUTO,
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

    The table counts the rounds and bytes to each of `targets`, which end no run (`target` does): accuracies such as
    0.6, or shares of the centralised accuracy such as ``"90%"``. By default that is the final accuracy of the first
    algorithm. `last_k` is how many rounds the mean at the end is over: 100, or all of a shorter run.

    With `centralised`, the pooled samples are trained on as well, as a reference: with the settings of the others and
    as many epochs as their clients take in all, momentum kept across epochs. ``"centralised(epochs=150, lr=0.1,
    momentum=0.9, lr_decay=cosine)"`` has settings of its own.
    """
    reference = _reference(centralised)
    check_measures(targets, last_k, centralised=reference is not None)
    labelled, chosen, watching = _labelled(algorithms), _seeds(seeds), as_callbacks(callbacks)
    if reference is not None:
        if (name := Centralised.__name__) in labelled:
            raise ValueError(f"centralised adds a run {name!r}, which is the label of another")
        labelled |= {name: reference}
    rates = _rates(lr)
    if out is not None:
        out = check.path("out", out)
    objects, others = _separated(options)
    federations = _federations(data, chosen)
    if others.get("weighting", AUTO) == AUTO:
        others["weighting"] = "samples"

    def resolved(label: str, algorithm: Algorithm | Written, rate: Any, seed: int) -> Resolved:
        given = Objects(algorithm, model, federations[seed], test, **objects)
        with _named(label):
            return resolve_defaults(given, Options(**others | {"lr": rate, "seed": seed}), federations[seed])

    each = {
        label: [resolved(label, written, rate, seed) for rate in _rates_of(written, rates) for seed in chosen]
        for label, written in labelled.items()
    }
    names = {
        label: _names(label, [rate for rate in _rates_of(written, rates) for _ in chosen])
        for label, written in labelled.items()
    }
    unique = list(dict.fromkeys(name for of_label in names.values() for name in of_label))
    folders = None if out is None else {name: out / folder for name, folder in _folders(unique).items()}
    places = {label: _places(names[label], [run.options for run in runs], folders) for label, runs in each.items()}
    begun = _modules_begun_with(model, [place for of_label in places.values() for place in of_label])
    planned: dict[str, list[_Planned]] = {}
    shared: dict[int, Setup] = {}
    records: list[Record] = []
    count, first = sum(map(len, each.values())), next(iter(labelled.items()))
    # What all have, unless their text says otherwise.
    common = resolved(first[0], first[1].algorithm, rates[0], chosen[0])
    notice(common.notice)
    with overall_bar(f"{count} runs", sum(run.options.rounds for runs in each.values() for run in runs)):
        for label, runs_of_label in each.items():
            planned[label] = []
            for place, run in zip(places[label], runs_of_label, strict=True):
                seed = place.options.seed
                like = shared.get(seed) or next(iter(shared.values()), None)
                with _named(label):
                    experiment = with_engine(prepare(_begun(run.objects, begun, place.home), place.options, like))
                if place.group and place.stored is None:
                    experiment = replace(experiment, engine_reason="as the runs it was to train with")
                if not experiment.algorithm.pooled:
                    shared.setdefault(seed, experiment)
                planned[label].append(_Planned(place, experiment))
                if targets is not None and experiment.test is None:
                    raise ValueError(f"targets={check.shown(targets)} need a test set; give test=(x, y)")
        order = list(dict.fromkeys(plan.place.label for runs in planned.values() for plan in runs))
        new = [plan for runs in planned.values() for plan in runs if plan.place.stored is None]
        said = dict.fromkeys(f"{p.place.label}: {text}" for p in new for text in instabilities(p.experiment))
        for text in dict.fromkeys(f"{p.place.label}: {text}" for p in new for text in choices(p.experiment)):
            notice(text)
        for text in said:
            warning(text)
        for runs in planned.values():
            for group in _groups(runs):
                records += _finished(group, watching, None if records else order, out)
    ordered = sorted(records, key=lambda r: (order.index(r.label), r.seed))
    return Comparison(ordered, common.options.target if targets is None else targets, last_k)


def _places(names: Sequence[str], each: Sequence[Options], folders: Mapping[str, Path] | None) -> list[_Place]:
    """The runs of one algorithm, with the options that those in the folders were begun with."""
    places = []
    for name, options in zip(names, each, strict=True):
        home = None if folders is None else folders[name] / f"seed-{options.seed}"
        stored = None
        group: tuple[_Key, ...] = ()
        if home is not None and (home / "config.json").exists():
            stored = RunDirectory.open(home)
            if (label := stored.config["label"]) != name:
                raise ValueError(f"{home} holds the run {label!r}, not {name!r}; choose another directory or label")
            options = same_options(stored, options)
            key = _Key(options.lr, options.seed)
            group = found if key in (found := _stored_group(stored)) else (key,)
        places.append(_Place(name, home, options, stored, group))
    return [place if place.group else _joined(place, places) for place in places]


def _joined(place: _Place, others: Sequence[_Place]) -> _Place:
    """A run that is not there yet, as a member of the group that others were begun in, and computed as they are."""
    for other in others:
        if place.key in other.group:
            options = replace(place.options, engine=other.options.engine, device=other.options.device)
            return place._replace(group=other.group, options=options)
    return place


def _modules_begun_with(model: Any, places: Iterable[_Place]) -> dict[Path | None, nn.Module]:
    """For runs that are there already, the given module with their initial weights: one object where these are equal.

    The module of a repeated comparison may be initialised otherwise, as `resume` allows.
    """
    found: dict[Path | None, nn.Module] = {}
    known: dict[str, nn.Module] = {}
    for place in places:
        if not isinstance(model, nn.Module) or place.stored is None:
            continue
        key = str(place.stored.config.get("model"))
        if key not in known:
            with _named(place.label):
                known[key] = as_begun(place.stored, model)
        found[place.home] = known[key]
    if any(module is not model for module in known.values()):
        notice("the initial weights are those that the comparison in this directory was begun with")
    return found


def _begun(objects: Objects, begun: Mapping[Path | None, nn.Module], home: Path | None) -> Objects:
    """With the module of the run in `home`; a new one begins where the others of its comparison did."""
    return replace(objects, model=begun.get(home, next(iter(begun.values())))) if begun else objects


@contextmanager
def _named(label: str) -> Iterator[None]:
    """What one of the algorithms cannot do is said before the first of them has trained."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from error


def _groups(planned: Sequence[_Planned]) -> list[list[_Planned]]:
    """What trains together: those begun together, in their order; of the others as many as the engine has room for."""
    begun: dict[tuple[_Key, ...], list[_Planned]] = {}
    new: list[list[_Planned]] = []
    for plan in planned:
        if plan.place.group:
            begun.setdefault(plan.place.group, []).append(plan)
        elif (
            new
            and len(new[-1]) < capacity(plan.experiment)
            and can_train_together(new[-1][0].experiment, plan.experiment)
        ):
            new[-1].append(plan)
        else:
            new.append([plan])
    for keys, members in begun.items():
        members.sort(key=lambda plan, keys=keys: keys.index(plan.place.key))  # type: ignore[misc]
    return [*(part for group in begun.values() for part in _compatible(group)), *new]


def _compatible(group: list[_Planned]) -> list[list[_Planned]]:
    """The group, or each of its runs alone if their samples are no longer shared."""
    if all(can_train_together(group[0].experiment, plan.experiment) for plan in group):
        return [group]
    return [[plan] for plan in group]


def _finished(
    group: Sequence[_Planned], callbacks: Sequence[Callback], order: Sequence[str] | None, out: Path | None
) -> list[Record]:
    """Train runs together; all of them are opened and checked before the first one changes its directory.

    `order` is that of all labels, to be kept in `out` by the first group of a comparison.
    """
    begun = group[0].place.group
    keys = begun or tuple(plan.place.key for plan in group)
    runs: dict[_Key, Run] = {}
    with ExitStack() as stack:
        for place, experiment in sorted(group, key=lambda plan: plan.place.stored is None):
            if place.stored is None:
                members = [key._asdict() for key in keys]
                runs[place.key] = stack.enter_context(start(experiment, place.home, place.label, members))
            else:
                stack.enter_context(place.stored.writing())
                runs[place.key] = reopen(experiment, place.stored)
        ordered = [runs[plan.place.key] for plan in group]
        if len(group) < len(begun) and any(run.rounds < run.options.rounds and not run.ended for run in ordered):
            warning(
                f"{ordered[0].label}: {len(begun)} runs were begun together and {len(group)} are continued; "
                "their results are the same to rounding"
            )
        if order is not None and out is not None:
            write_order(out, order)
        train(ordered, callbacks, "stop")
    return [run.record for run in ordered]


def _stored_group(directory: RunDirectory) -> tuple[_Key, ...]:
    """The runs that a stored one was begun with; none if it was begun alone."""
    try:
        return tuple(_Key(float(member["lr"]), int(member["seed"])) for member in directory.config.get("group", ()))
    except (TypeError, KeyError, ValueError):
        raise ValueError(f"{directory.path} has a configuration whose group cannot be read") from None


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


def _labelled(algorithms: Any) -> dict[str, Written]:
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
    found = find_algorithm(Centralised() if centralised is True else centralised)
    if not found.algorithm.pooled:
        raise ValueError(f"centralised is written 'centralised(epochs=150, ...)', got {check.shown(centralised)}")
    return found


def _seeds(seeds: Any) -> list[int]:
    seeds = plain(seeds)
    if not isinstance(seeds, list):
        check.integer("seeds", seeds, 1, MOST_SEEDS)
        return list(range(seeds))
    for seed in seeds:
        check.integer("seeds: a seed", seed, 0, SEEDS - 1)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be a count or a list of different numbers, got {check.shown(seeds)}")
    return seeds


def _federations(data: Any, seeds: Sequence[int]) -> dict[int, FederatedData]:
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


def _names(label: str, rates: Sequence[Any]) -> list[str]:
    """The names of runs with these rates, as they were given, which they have if they differ."""
    if len(set(rates)) == 1:
        return [label] * len(rates)
    short = [f"{rate:g}" for rate in rates]
    return [f"{label}, lr {text if float(text) == rate else rate}" for text, rate in zip(short, rates, strict=True)]


def _separated(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The objects among further arguments, and the options."""
    objects = [f.name for f in fields(Objects) if f.kw_only]
    known = [*objects, *(f.name for f in fields(Options) if f.name not in ("seed", "lr"))]
    for key in given:
        if key not in known:
            raise TypeError(f"compare has no argument {key!r}{nearest(key, known)}")
    return {k: v for k, v in given.items() if k in objects}, {k: v for k, v in given.items() if k not in objects}


_LONGEST = 100  # characters of a folder's name
_DEVICES = re.compile(r"^(con|prn|aux|nul|com[0-9]|lpt[0-9])(?=\.|$)")  # names that Windows gives to no folder


def _folders(names: Sequence[str]) -> dict[str, str]:
    """A folder for every run: its name in plain characters, with a checksum where these are too many or not enough."""
    short = {name: _DEVICES.sub(r"run-\g<0>", _plain_characters(name) or "run") for name in names}
    count = Counter(short.values())
    return {
        name: folder if count[folder] == 1 and len(folder) <= _LONGEST else f"{folder[:_LONGEST]}-{_checksum(name)}"
        for name, folder in short.items()
    }


def _plain_characters(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


def _checksum(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
