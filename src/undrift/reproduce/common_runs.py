"""Runs that experiments have in common: what one has stored, others need not run again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from undrift.algorithms.text import parse
from undrift.reproduce import stored
from undrift.reproduce.experiment import Experiment, find, names
from undrift.reproduce.results import Chosen
from undrift.reproduce.stored import Pair, Stored

_FREE = ("run.rounds",)  # settings in which such runs may differ


class Runs(NamedTuple):
    """Of an algorithm in a case, all seeds."""

    experiment: Experiment
    case: str
    label: str

    @property
    def pair(self) -> Pair:
        return self.case, self.label

    @property
    def written(self) -> str:
        return next(each.run for each in self.experiment.entries if each.label == self.label)

    @property
    def makes(self) -> tuple[Any, ...]:
        """What is the same of runs that are the same."""
        settings = self.experiment.settings_of(self.case).items()
        return {key: value for key, value in settings if key not in _FREE}, *parse(self.written)

    def among(self, found: Stored) -> Stored:
        rows = (found.runs["case"] == self.case) & (found.runs["algorithm"] == self.label)
        return found._replace(runs=found.runs[rows])


def take_over(experiment: Experiment, home: Path) -> list[tuple[str, str]]:
    """Add what is missing of an experiment in ``home/NAME`` and was run for others, stored beside it.

    That is, seeds of its algorithms in its cases, up to the rounds that it asks for, all of an algorithm in a case from
    the same device, and none that ended before those that are there. Returns the cases and labels. Where rates are
    tuned, runs depend on what was chosen, and none are taken.
    """
    there = [find(name) for name in names() if stored.exists(home / name)]
    others = [runs for other in there if other != experiment for runs in _runs(other)]
    return [
        (mine.case, mine.label)
        for mine in _runs(experiment)
        for theirs in others
        if theirs.makes == mine.makes and _take(mine, theirs, home)
    ]


def _runs(experiment: Experiment) -> Iterator[Runs]:
    if experiment.tuning is None and not experiment.runs_of:
        yield from (Runs(experiment, case, each.label) for case in experiment.cases for each in experiment.entries)


def _take(mine: Runs, theirs: Runs, home: Path) -> bool:
    """Whether there was something to take."""
    own, source = home / mine.experiment.name, theirs.among(stored.read_files(home / theirs.experiment.name))
    known = stored.read_files(own) if stored.exists(own) else None
    before = source._replace(runs=source.runs[:0], answers={}, environments={}) if known is None else mine.among(known)
    wanted = mine.experiment.rounds(mine.case)
    new = ~source.runs["seed"].isin(before.runs["seed"]) & _as_long(source.runs, before.runs, wanted)
    found = source.runs[new].dropna(axis="columns", how="all")
    if found.empty:
        return False
    environment = source.environments[theirs.pair]
    if not before.runs.empty and before.environments[mine.pair].get("device") != environment.get("device"):
        return False  # its other seeds are from elsewhere
    cut = found.groupby("seed")["round"].transform("max") > wanted
    final = stored.final_measures(mine.experiment)  # not known of the round where a longer run is cut
    if final and (cut.any() or not set(final) <= set(found)):
        return False
    runs = pd.concat([before.runs, found[found["round"] <= wanted]]).assign(case=mine.case, algorithm=mine.label)
    whole = set(found["seed"][~cut])
    right = {seed: each for seed, each in source.answers.get(theirs.pair, {}).items() if seed in whole}
    answers = {mine.pair: before.answers.get(mine.pair, {}) | right}
    chosen = {mine.case: Chosen({mine.label: mine.written}, [])._asdict()}
    about = before.about | {"experiment": mine.experiment.name, "chosen": chosen}
    part = Stored(about, runs, answers, {mine.pair: environment})
    own.mkdir(exist_ok=True)
    stored.write_files(part if known is None else stored.merged(known, part), own)
    return True


def _as_long(runs: pd.DataFrame, before: pd.DataFrame, wanted: int) -> pd.Series[bool]:
    """Rows of runs with as many rounds as those that are there, as figures are after the rounds that all have.

    Runs that failed have none after that, and shorten nothing.
    """
    rounds, there = (each.groupby("seed")["round"].transform("max") for each in (runs, before))
    enough = there[~_failed(before)].min() if not _failed(before).all() else 0
    return (rounds >= min(wanted, enough)) | _failed(runs)


def _failed(runs: pd.DataFrame) -> pd.Series[bool]:
    return runs.groupby("seed")["diverged"].transform("any").astype(bool)
