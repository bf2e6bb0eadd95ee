"""`compare`: several algorithms on the same data and the same seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import nn

from undrift.core import check
from undrift.core.check import nearest
from undrift.data import FederatedData
from undrift.methods.algorithm import Algorithm
from undrift.reporting import report
from undrift.reporting.figures import summarise
from undrift.reporting.record import Record, history_frame
from undrift.simulation.arguments import Objects
from undrift.simulation.callbacks import Callback, CallbackLike, as_callbacks
from undrift.simulation.loop import train
from undrift.simulation.options import Options
from undrift.simulation.prepare import find_algorithm, prepare, with_engine
from undrift.simulation.progress import overall_bar
from undrift.simulation.round import can_train_together, capacity
from undrift.simulation.run import Run
from undrift.simulation.setup import Experiment, Setup
from undrift.simulation.simulate import reopen, start
from undrift.storage.directory import RunDirectory


class Comparison:
    """Finished runs side by side."""

    def __init__(self, records: Sequence[Record], target: float | None = None) -> None:
        self.records, self.target = list(records), target

    def table(self) -> pd.DataFrame:
        """A row per algorithm, means over seeds."""
        return summarise(self.records, self.target)

    def curves(self) -> pd.DataFrame:
        """A row per algorithm, seed and round."""
        frames = [r.history.assign(label=r.label, seed=r.seed) for r in self.records]
        joined = pd.concat(frames, ignore_index=True)
        return joined[["label", "seed", *(c for c in joined.columns if c not in ("label", "seed"))]]

    def report(self, path: str | Path, title: str = "undrift") -> Path:
        """One self-contained HTML file."""
        return report.write(path, self.records, title, self.target)

    @classmethod
    def from_directories(cls, paths: Iterable[str | Path]) -> Comparison:
        """From run directories, or directories that hold some; runs of the same label are told apart by theirs."""
        found: list[tuple[str, Record]] = []
        for path in paths:
            homes = [home.parent for home in sorted(Path(path).rglob("config.json"))]
            if not homes:
                raise ValueError(f"{str(path)!r} is not a run directory and holds none")
            found += [(str(path), read_record(RunDirectory.open(home))) for home in homes]
        records = [record for _, record in found]
        if len({(record.label, record.seed) for record in records}) < len(records):
            records = [record._replace(label=f"{record.label} ({path})") for path, record in found]
        targets = {record.config["options"]["target"] for record in records}
        return cls(records, targets.pop() if len(targets) == 1 else None)


class _Planned(NamedTuple):
    """A run of a comparison, ready to start or to be resumed."""

    label: str
    experiment: Experiment
    home: Path | None

    def open(self) -> Run:
        if self.home is None or not (self.home / "config.json").exists():
            return start(self.experiment, self.home, self.label)
        return reopen(self.experiment, RunDirectory.open(self.home))


def compare(
    algorithms: Mapping[str, str | Algorithm] | Sequence[str],
    model: str | nn.Module,
    data: str | FederatedData | Sequence[tuple[Any, Any]] | Callable[[int], FederatedData],
    test: tuple[Any, Any] | None = None,
    seeds: int | Sequence[int] = 1,
    *,
    lr: float | Sequence[float] = 0.01,
    callbacks: Iterable[CallbackLike] = (),
    out: str | Path | None = None,
    **options: Any,
) -> Comparison:
    """Run every algorithm with every seed (a count, or a list) and compare. Other arguments are those of `simulate`.

    `algorithms` maps labels to names or instances; `data` may be a function of the seed; of several learning rates
    each makes a row of its own. Runs of one algorithm train together, as one larger cohort, where that is faster.
    With `out`, every run is kept in ``out/LABEL/seed-S``; runs that are there already are not repeated. A run that
    diverges is recorded, and the others are trained all the same.
    """
    labelled, chosen, watching = _labelled(algorithms), _seeds(seeds), as_callbacks(callbacks)
    rates = list(lr) if isinstance(lr, Sequence | np.ndarray) else [lr]
    if not rates or len(set(rates)) < len(rates):
        raise ValueError(f"lr must be a number or a list of different ones, got {lr!r}")
    objects, plain = _separated(options)
    federations = {seed: data(seed) if callable(data) else data for seed in chosen}
    each = [Options(**plain | {"lr": rate, "seed": seed}) for rate in rates for seed in chosen]
    planned: dict[str, list[_Planned]] = {}
    shared: dict[int, Setup] = {}
    records: list[Record] = []
    count = len(each) * len(labelled)
    with overall_bar(f"{count} runs", count * each[0].rounds):
        for label, algorithm in labelled.items():
            planned[label] = []
            for settings in each:
                seed = settings.seed
                given = Objects(algorithm, model, federations[seed], test, **objects)
                name = label if len(rates) == 1 else f"{label}, lr {settings.lr:g}"
                home = None if out is None else Path(out) / _slug(name) / f"seed-{seed}"
                like = shared.get(seed) or next(iter(shared.values()), None)
                experiment = _prepared(label, given, _stored(home, settings), like)
                shared.setdefault(seed, experiment)
                planned[label].append(_Planned(name, experiment, home))
        for runs in planned.values():
            records += _trained(runs, watching)
    order = list(dict.fromkeys(plan.label for runs in planned.values() for plan in runs))
    return Comparison(sorted(records, key=lambda r: (order.index(r.label), r.seed)), each[0].target)


def _prepared(label: str, objects: Objects, options: Options, like: Setup | None) -> Experiment:
    """What one of the algorithms cannot do is said before the first of them has trained."""
    try:
        return with_engine(prepare(objects, options, like))
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from error


def _trained(planned: Sequence[_Planned], callbacks: Sequence[Callback]) -> list[Record]:
    """Train the runs of one algorithm, as many together as the engine has room for."""
    records: list[Record] = []
    group: list[_Planned] = []
    for plan in planned:
        first = group[0].experiment if group else plan.experiment
        if len(group) == capacity(plan.experiment) or not can_train_together(first, plan.experiment):
            records += _finished(group, callbacks)
            group = []
        group.append(plan)
    return records + _finished(group, callbacks)


def _finished(group: Sequence[_Planned], callbacks: Sequence[Callback]) -> list[Record]:
    runs = [plan.open() for plan in group]
    train(runs, callbacks, "stop")
    return [run.record for run in runs]


def _stored(home: Path | None, options: Options) -> Options:
    """The options of a run that is there already, which may be given more rounds; others must be the same."""
    if home is None or not (home / "config.json").exists():
        return options
    stored = Options(**RunDirectory.open(home).config["options"])
    given = json.loads(json.dumps(asdict(options)))  # tuples become lists, as in the file
    for key, value in asdict(stored).items():
        if key not in ("rounds", "engine", "device") and value != given[key]:
            raise ValueError(f"{home} was begun with {key}={value!r}, not {given[key]!r}; choose another directory")
    return replace(stored, rounds=options.rounds)


def read_record(directory: RunDirectory) -> Record:
    config = directory.config
    return Record(
        config["label"],
        config["options"]["seed"],
        history_frame(directory.rows()),
        config=config,
        environment=directory.environment,
    )


def _labelled(algorithms: Mapping[str, str | Algorithm] | Sequence[str]) -> dict[str, Algorithm]:
    if not isinstance(algorithms, Mapping):
        found = [find_algorithm(a) for a in algorithms]
        algorithms = {a.label: a for a in found}
        if len(algorithms) < len(found):
            raise ValueError("algorithms must differ; give a dict with a label for each")
    if not algorithms:
        raise ValueError("compare needs at least one algorithm, got none")
    return {str(label): find_algorithm(a) for label, a in algorithms.items()}


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, int):
        check.integer("seeds", seeds, 1)
        return list(range(seeds))
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be a count or a list of different numbers, got {list(seeds)}")
    return list(seeds)


def _separated(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The objects among further arguments, and the options."""
    objects = [f.name for f in fields(Objects) if f.kw_only]
    known = [*objects, *(f.name for f in fields(Options) if f.name not in ("seed", "lr"))]
    for key in given:
        if key not in known:
            raise TypeError(f"compare has no argument {key!r}{nearest(key, known)}")
    return {k: v for k, v in given.items() if k in objects}, {k: v for k, v in given.items() if k not in objects}


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-") or "run"
