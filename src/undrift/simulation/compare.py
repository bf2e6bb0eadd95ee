"""`compare`: several algorithms on the same data and the same seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from undrift.client.learner import SampleLoss
from undrift.client.task import Augment
from undrift.core import check
from undrift.core.check import nearest
from undrift.data import FederatedData
from undrift.methods.algorithm import Algorithm
from undrift.reporting import report, summary
from undrift.reporting.summary import Record
from undrift.simulation.prepare import Options, find_algorithm, prepare
from undrift.simulation.progress import together
from undrift.simulation.round import alike, room
from undrift.simulation.run import Run, history_frame
from undrift.simulation.simulate import Callback, go_on, reopen, start
from undrift.storage.directory import RunDirectory


class Comparison:
    """Finished runs side by side."""

    def __init__(self, records: Sequence[Record], target: float | None = None) -> None:
        self.records, self.target = list(records), target

    def table(self) -> pd.DataFrame:
        """A row per algorithm, means over seeds."""
        return summary.summarise(self.records, self.target)

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
        """From run directories, or directories that hold some; runs that would look alike are told apart by theirs."""
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


def compare(
    algorithms: Mapping[str, str | Algorithm] | Sequence[str],
    model: str | nn.Module,
    data: str | FederatedData | Sequence[tuple[Any, Any]] | Callable[[int], FederatedData],
    test: tuple[Any, Any] | None = None,
    seeds: int | Sequence[int] = 1,
    *,
    lr: float | Sequence[float] = 0.01,
    loss: SampleLoss | None = None,
    augment: str | Augment | None = None,
    callbacks: Iterable[Callback] = (),
    out: str | Path | None = None,
    **options: Any,
) -> Comparison:
    """Run every algorithm with every seed (a count, or a list) and compare. Other arguments are those of `simulate`.

    `algorithms` maps labels to names or instances; `data` may be a function of the seed; of several learning rates
    each makes a row of its own. Runs of one algorithm train together, as one larger cohort, where that is faster.
    With `out`, every run is kept in ``out/LABEL/seed-S``; runs that are there already are not repeated. A run that
    diverges is recorded, and the others go on.
    """
    labelled = _labelled(algorithms)
    chosen = _seeds(seeds)
    rates = list(lr) if isinstance(lr, Sequence | np.ndarray) else [lr]
    if not rates or len(set(rates)) < len(rates):
        raise ValueError(f"lr must be a number or a list of different ones, got {lr!r}")
    plain = [_options(options | {"lr": rate}) for rate in rates]
    records: list[Record] = []
    count = len(chosen) * len(labelled) * len(rates)
    _refuse_early(labelled, model, data(chosen[0]) if callable(data) else data, test, loss, augment, plain[0])
    federations = {seed: data(seed) if callable(data) else data for seed in chosen}
    order = []
    with together(f"{count} runs", count * plain[0].rounds):
        for label, algorithm in labelled.items():
            begun: list[Run] = []
            for each in plain:
                name = label if len(plain) == 1 else f"{label}, lr {each.lr:g}"
                order.append(name)
                for seed in chosen:
                    home = None if out is None else Path(out) / _slug(name) / f"seed-{seed}"
                    beside = begun[0] if begun else None
                    given = (algorithm, model, federations[seed], test, loss, augment, replace(each, seed=seed))
                    run = _start_or_reopen(*given, home, name, beside)
                    if begun and not (len(begun) < room(run.experiment) and alike(begun[0].experiment, run.experiment)):
                        records += _finished(begun, callbacks)
                        begun = []
                    begun.append(run)
            records += _finished(begun, callbacks)
    return Comparison(sorted(records, key=lambda r: (order.index(r.label), r.seed)), plain[0].target)


def _finished(runs: Sequence[Run], callbacks: Iterable[Callback]) -> list[Record]:
    go_on(runs, callbacks, "stop")
    return [Record(run.label, run.options.seed, run.history, run.config, run.environment) for run in runs]


def _refuse_early(
    labelled: Mapping[str, Algorithm],
    model: str | nn.Module,
    data: Any,
    test: Any,
    loss: SampleLoss | None,
    augment: str | Augment | None,
    options: Options,
) -> None:
    """What one of the algorithms cannot do is said before the first of them has trained."""
    for label, algorithm in labelled.items():
        try:
            prepare(algorithm, model, data, test, loss, augment, options)
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from error


def _start_or_reopen(
    algorithm: Algorithm,
    model: str | nn.Module,
    data: Any,
    test: Any,
    loss: SampleLoss | None,
    augment: str | Augment | None,
    options: Options,
    home: Path | None,
    label: str,
    beside: Run | None,
) -> Run:
    if home is None or not (home / "config.json").exists():
        return start(algorithm, model, data, test, loss, augment, options, home, label, beside)
    _refuse_other_options(home, options)
    return reopen(home, options.rounds, algorithm, model, data, test, loss, augment, beside)


def _refuse_other_options(home: Path, options: Options) -> None:
    """A run goes on with the options it was begun with; those that change no number may differ."""
    stored = asdict(Options(**RunDirectory.open(home).config["options"]))
    given = json.loads(json.dumps(asdict(options)))  # tuples become lists, as in the file
    for key, value in stored.items():
        if key not in ("rounds", "engine", "device") and value != given[key]:
            raise ValueError(f"{home} was begun with {key}={value!r}, not {given[key]!r}; choose another directory")


def read_record(directory: RunDirectory) -> Record:
    config = directory.config
    return Record(
        config["label"],
        config["options"]["seed"],
        history_frame(directory.rows()),
        config,
        directory.environment,
    )


def _labelled(algorithms: Mapping[str, str | Algorithm] | Sequence[str]) -> dict[str, Algorithm]:
    if not isinstance(algorithms, Mapping):
        found = [find_algorithm(a) for a in algorithms]
        algorithms = {type(a).__name__: a for a in found}
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


def _options(given: dict[str, Any]) -> Options:
    known = [f.name for f in fields(Options) if f.name != "seed"]
    for key in given:
        if key not in known:
            raise TypeError(f"compare has no argument {key!r}{nearest(key, known)}")
    for key, kind in (("device", torch.device), ("dtype", torch.dtype)):
        if isinstance(given.get(key), kind):
            given[key] = str(given[key]).removeprefix("torch.")
    return Options(**given)


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-") or "run"
