"""What came out, beside what the paper prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from undrift.reporting.record import Record
from undrift.reproduce.experiment import Experiment, Figure
from undrift.reproduce.measures import Measure, measure_named
from undrift.statistics.predictions import Array


class Seeds(NamedTuple):
    """Values of the runs of an algorithm, by seed; a run that failed, or never reached a target, has none."""

    values: Mapping[int, float]
    runs: int
    failed: int
    at_least: Mapping[int, float] = MappingProxyType({})  # of those that never reached a target

    @property
    def mean(self) -> float:
        return float(np.mean([*self.values.values()])) if self.values else np.nan

    @property
    def spread(self) -> float:
        """Standard deviation of a sample."""
        return float(np.std([*self.values.values()], ddof=1)) if len(self.values) > 1 else np.nan


class Row(NamedTuple):
    """A line of the table."""

    case: str
    label: str
    paper: Figure | None
    here: Seeds

    @property
    def difference(self) -> float:
        return self.here.mean - self.paper.value if self.paper is not None else np.nan

    @property
    def within(self) -> bool:
        """Whether the mean is as near to the paper's as its spread."""
        return self.paper is not None and self.paper.spread is not None and abs(self.difference) <= self.paper.spread


class Tried(NamedTuple):
    """A configuration of a tuning."""

    label: str
    text: str
    accuracy: float | None  # on held-out training samples; None where it failed


class Chosen(NamedTuple):
    """The algorithms of a case, by label, with the rates that they were run with, and out of what these were chosen."""

    algorithms: Mapping[str, str]
    tried: Sequence[Tried] = ()


Correct = dict[int, Array]  # by seed: which test samples the final model answers correctly, bool [n]


@dataclass(frozen=True)
class Results:
    experiment: Experiment
    records: Mapping[str, Sequence[Record]]  # by case
    chosen: Mapping[str, Chosen]  # by case
    fast: bool
    correct: Mapping[tuple[str, str], Correct] = field(default_factory=dict)  # by case and label, where it was kept

    def rounds(self, case: str) -> int:
        """At most, of a run."""
        return max(int(record.history["round"].max()) for record in self.records[case])

    def rounds_of(self, case: str) -> dict[str, int]:
        """How many all runs of an algorithm have that did not fail, if there are such."""
        return dict(self._rounds.get(case, {}))

    def runs(self, case: str, label: str) -> list[Record]:
        return [record for record in self.records.get(case, ()) if record.label == label]

    def sound(self, case: str, label: str) -> list[Record]:
        """Runs that did not fail."""
        return list(self._sound.get((case, label), ()))

    @cached_property
    def _sound(self) -> dict[tuple[str, str], list[Record]]:
        found: dict[tuple[str, str], list[Record]] = {}
        for case, records in self.records.items():
            for record in records:
                if not record.failed:
                    found.setdefault((case, record.label), []).append(record)
        return found

    @cached_property
    def _rounds(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (case, label), runs in self._sound.items():
            found.setdefault(case, {})[label] = shared_rounds(runs)
        return found

    def evaluated_every(self, case: str) -> int:
        """Rounds, at most, of an algorithm."""
        return max(self.intervals_of(case).values(), default=1)

    def intervals_of(self, case: str) -> dict[str, int]:
        """Every how many rounds algorithms were evaluated whose runs did not all fail: the seed that was the least."""
        return {
            label: max(_interval(record) for record in runs) for (of, label), runs in self._sound.items() if of == case
        }

    def seeds(self, case: str) -> int:
        """At most, of an algorithm."""
        return max(self.seeds_of(case).values())

    def seeds_of(self, case: str) -> dict[str, int]:
        """How many every algorithm has."""
        return dict(Counter(record.label for record in self.records[case]))

    def values(self, case: str, label: str, measure: str, rounds: int | None = None) -> Seeds:
        """In percent where the measure is a share, as papers print it; after so many rounds, or all that were run."""
        kind = measure_named(measure)
        count, sound = len(self.runs(case, label)), self.sound(case, label)
        if rounds is not None:
            sound = [first_rounds(record, rounds) for record in sound]
        values = {record.seed: _scaled(kind, record) for record in sound}
        known = {seed: value for seed, value in values.items() if np.isfinite(value)}
        bounds = {
            record.seed: kind.at_least(record)
            for record in sound
            if kind.at_least is not None and record.seed not in known
        }
        return Seeds(known, count, count - len(sound), bounds)

    def printed(self, measure: str) -> Mapping[str, Mapping[str, Figure]]:
        """The paper's figures, by case and label."""
        return next((each.values for each in self.experiment.figures if each.measure == measure), {})

    def too_early(self, measure: str, case: str, label: str) -> bool:
        """Whether an algorithm cannot be judged yet: cut before it had half of the paper's figure, or all seeds failed.

        Who is ahead near chance level says little about who will be. Where the paper prints no figure of it, the lowest
        of the others counts, and where it prints none at all, the accuracy from which the experiment is judged.
        """
        paper, kind = self.printed(measure).get(case, {}), measure_named(measure)
        rounds = self.rounds_of(case).get(label, 0)
        cut = rounds < self.experiment.rounds(case)
        if paper and kind.percent and kind.higher_is_better:
            figure = paper[label] if label in paper else min(paper.values(), key=lambda each: each.value)
            return cut and not self.values(case, label, measure, rounds).mean >= figure.value / 2
        if self.experiment.judged_from is None or kind.at_least:
            return False
        return (
            cut
            and not self.values(case, label, "mean of last rounds", rounds).mean >= self.experiment.judged_from.value
        )

    def labels(self, case: str) -> list[str]:
        return list(dict.fromkeys(record.label for record in self.records[case]))

    @property
    def measures(self) -> list[str]:
        """Those of the experiment that the cases which were run have."""
        return [name for name in self.experiment.measures if self.table(name)]

    def table(self, measure: str) -> list[Row]:
        """A row per case and algorithm, in the order of the experiment, without those that have no such figure.

        A run that failed, or never reached a target, would have had one. Figures are those after the rounds that all
        seeds of an algorithm have, but for rounds to a target. Cases are those that the paper or a claim has it of.
        """
        printed = self.printed(measure)
        asked = {case for case, values in printed.items() if values}
        for claim in self.experiment.claims:
            asked |= {*claim.cases, claim.than_case} if claim.measure == measure else set()
        rounds = {
            case: {} if measure_named(measure).at_least else self.rounds_of(case)
            for case in self.records
            if case in asked
        }
        rows = [
            Row(case, label, printed.get(case, {}).get(label), self.values(case, label, measure, own.get(label)))
            for case, own in rounds.items()
            for label in self.labels(case)
        ]
        return [row for row in rows if row.paper is not None or row.here.values or row.here.at_least or row.here.failed]


def shared_rounds(runs: Sequence[Record]) -> int:
    return min(int(record.history["round"].max()) for record in runs)


def first_rounds(record: Record, count: int) -> Record:
    """The same run, which did not fail, ended earlier."""
    kept = record.history["round"] <= count
    return record if kept.all() else record._replace(history=record.history[kept])


def _interval(record: Record) -> int:
    evaluated = _evaluated(record)
    return round(evaluated.diff().median()) if len(evaluated) > 1 else 1


def _evaluated(record: Record) -> pd.Series[int]:
    rounds: pd.Series[int] = record.history["round"][record.history.accuracy.notna()]
    return rounds


def seen_together(records: Sequence[Record]) -> list[Record]:
    """The same runs without accuracies of rounds, as long as all of them last, in which some were not evaluated.

    The best of few evaluations is less than that of many, and a target is seen later.
    """
    end = shared_rounds(records)
    evaluated = [{*_evaluated(record)} for record in records]
    common = set.intersection(*evaluated)
    if all(each <= common for each in ({at for at in rounds if at <= end} for rounds in evaluated)):
        return list(records)
    kept = [record.history["round"].isin(common) | (record.history["round"] > end) for record in records]
    return [
        record._replace(history=record.history.assign(accuracy=record.history.accuracy.where(rows)))
        for record, rows in zip(records, kept, strict=True)
    ]


def correct_answers(records: Mapping[str, Sequence[Record]]) -> dict[tuple[str, str], Correct]:
    """Of runs that kept their predictions and did not fail."""
    found: dict[tuple[str, str], Correct] = {}
    for case, runs in records.items():
        for record in runs:
            if record.predictions is not None and not record.failed:
                found.setdefault((case, record.label), {})[record.seed] = record.predictions.correct
    return found


def _scaled(measure: Measure, record: Record) -> float:
    return measure.of(record) * (100 if measure.percent else 1)
