"""Runs that experiments have in common: what one has stored, others need not run again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from undrift.algorithms.text import parse
from undrift.reproduce import stored
from undrift.reproduce.experiment import Experiment, find, names
from undrift.reproduce.results import Chosen
from undrift.reproduce.stored import Stored

_FREE = ("run.rounds", "run.eval_every")  # settings in which such runs may differ


def take_over(experiment: Experiment, home: Path) -> list[tuple[str, str]]:
    """Add what is missing of an experiment in ``home/NAME`` and was run for others, stored beside it.

    That is, seeds of its algorithms in its cases, from the same device, up to the rounds that it asks for. Returns the
    cases and labels. Where rates are tuned, runs depend on what was chosen, and none are taken.
    """
    if experiment.tuning is not None:
        return []
    pairs = [(case, each.label) for case in experiment.cases for each in experiment.entries]
    return [
        (case, label)
        for case, label in pairs
        for other in _equal(experiment, case, label, home)
        if _take(experiment, case, label, other, home)
    ]


def _equal(experiment: Experiment, case: str, label: str, home: Path) -> Iterator[tuple[Experiment, str, str]]:
    """Experiments with stored results, cases and labels that make the same runs."""
    mine = _what(experiment, case, label)
    for name in names():
        other = find(name)
        if other.runs_of or other.tuning is not None or other == experiment or not (home / name).exists():
            continue
        for there in other.cases:
            for entry in other.entries:
                if _what(other, there, entry.label) == mine:
                    yield other, there, entry.label


def _what(experiment: Experiment, case: str, label: str) -> tuple[Any, ...]:
    settings = {key: value for key, value in experiment.settings_of(case).items() if key not in _FREE}
    return (settings, *parse(_text(experiment, label)))


def _take(experiment: Experiment, case: str, label: str, where: tuple[Experiment, str, str], home: Path) -> bool:
    """Whether there was something to take."""
    other, there, name = where
    own, source = home / experiment.name, _rows(stored.read_files(home / other.name), there, name)
    known = stored.read_files(own) if own.exists() else None
    mine = source._replace(runs=source.runs[:0], answers={}) if known is None else _rows(known, case, label)
    if mine.about["environment"].get("device") != source.about["environment"].get("device"):
        return False
    found = source.runs[~source.runs["seed"].isin(mine.runs["seed"])]
    if found.empty:
        return False
    wanted = int(experiment.settings_of(case)["run.rounds"])
    cut = found.groupby("seed")["round"].transform("max") > wanted
    needed = stored.final_measures(experiment)  # which of longer runs are not those of the round where they are cut
    if needed and (cut.any() or not set(needed) <= set(found.dropna(axis="columns", how="all"))):
        return False
    right = {
        seed: each for seed, each in source.answers.get((there, name), {}).items() if seed in set(found[~cut].seed)
    }
    answers = mine.answers.get((case, label), {}) | right
    runs = pd.concat([mine.runs, found[found["round"] <= wanted].dropna(axis="columns", how="all")]).assign(
        case=case, algorithm=label
    )
    chosen = {case: Chosen({label: _text(experiment, label)}, [])._asdict()}
    about = mine.about | {"experiment": experiment.name, "chosen": chosen}
    part = Stored(about, runs, {(case, label): answers} if answers else {})
    own.mkdir(exist_ok=True)
    stored.write_files(part if known is None else stored.merged(known, part), own)
    return True


def _rows(of: Stored, case: str, label: str) -> Stored:
    return of._replace(runs=of.runs[(of.runs["case"] == case) & (of.runs["algorithm"] == label)])


def _text(experiment: Experiment, label: str) -> str:
    return next(each.run for each in experiment.entries if each.label == label)
