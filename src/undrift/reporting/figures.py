"""From the records of runs to figures: what the runs of a label came to, on average over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from undrift.core import check
from undrift.reporting.record import COLUMNS, HistoryColumn, Record, is_of_clients, shown_columns
from undrift.reporting.targets import Target, Targets, find_targets

SETTINGS = ("lr", "server_lr", "weighting")
LAST_K = 100  # rounds that papers average over at the end of a run


class Figure(NamedTuple):
    """A figure over seeds."""

    mean: float
    std: float  # of a sample; NaN for a single seed


class Goal(NamedTuple):
    """When the runs of a label reached a target, over those of its seeds that did."""

    target: Target
    rounds: Figure
    traffic: Figure  # bytes, down and up, of these rounds
    reached: int  # seeds
    speed_up: float  # over the first label; NaN unless all seeds of both reached it


@dataclass(frozen=True)
class Outcome:
    """What the runs of one label came to: means over its seeds that did not fail, or over all where all did."""

    label: str
    runs: int
    averaged: int  # of these, how many the means are over
    reference: bool  # not one of the methods that are compared
    finals: Mapping[str, Figure]  # the last finite value of the columns that have a heading in the summary table
    best_accuracy: Figure
    best_round: Figure  # the first with that accuracy
    late_accuracy: Figure  # the mean over the last rounds,
    late_rounds: int  # and how many these are: fewer than asked for where a run is shorter
    goals: tuple[Goal, ...]  # one for each target
    traffic: Figure
    seconds: float
    training_seconds: float  # without evaluation; NaN where that was not recorded
    diverged: int
    exploded: int  # others, whose training loss exploded, though it stayed finite
    settings: Mapping[str, Any]  # those that may differ between algorithms: "lr", "server_lr", "weighting"
    last_round: int

    @property
    def accuracy(self) -> float:
        return self.finals["accuracy"].mean

    @property
    def loss(self) -> float:
        return self.finals["loss"].mean

    @property
    def rounds_to_target(self) -> float:
        """To the first target."""
        return self.goals[0].rounds.mean if self.goals else math.nan

    @property
    def reached(self) -> int:
        """Seeds that reached the first target."""
        return self.goals[0].reached if self.goals else 0

    @property
    def failed(self) -> int:
        return self.diverged + self.exploded

    @property
    def all_diverged(self) -> bool:
        return self.diverged == self.runs


def summarise(records: Sequence[Record], targets: Targets = None, last_k: int = LAST_K) -> pd.DataFrame:
    """A row per label, in order of first appearance, further columns last.

    `attrs["targets"]` holds the accuracies of the targets by their names, `attrs["target"]` the first of them, or None.
    """
    outcomes, found = outcomes_of(records, targets, last_k)
    summary = pd.DataFrame([_summary_row(outcome) for outcome in outcomes])
    summary.attrs["target"] = found[0].accuracy if found else None
    summary.attrs["targets"] = {target.name: target.accuracy for target in found}
    return summary


def _summary_row(outcome: Outcome) -> dict[str, str | float]:
    row: dict[str, str | float] = {
        "label": outcome.label,
        "reference": outcome.reference,
        "runs": outcome.runs,
        "averaged": outcome.averaged,
        "accuracy": outcome.accuracy,
        "accuracy_std": outcome.finals["accuracy"].std,
        **_with_std("best_accuracy", outcome.best_accuracy),
        **_with_std("best_round", outcome.best_round),
        **_with_std("last_k_accuracy", outcome.late_accuracy),
        "last_k": outcome.late_rounds,
        "loss": outcome.loss,
    }
    for goal in outcome.goals:
        name = goal.target.name
        row |= _with_std(f"rounds_to_{name}", goal.rounds) | _with_std(f"bytes_to_{name}", goal.traffic)
        row |= {f"speed_up_to_{name}": goal.speed_up, f"reached_{name}": goal.reached}
    row |= {
        "traffic": outcome.traffic.mean,
        "seconds": outcome.seconds,
        "training_seconds": outcome.training_seconds,
        "diverged": outcome.diverged,
        "exploded": outcome.exploded,
        **outcome.settings,
    }
    for name, final in outcome.finals.items():
        if name not in row:
            row |= _with_std(name, final)
    return row


def _with_std(name: str, figure: Figure) -> dict[str, float]:
    return {name: figure.mean, f"{name}_std": figure.std}


def outcomes_of(
    records: Sequence[Record], targets: Targets = None, last_k: int = LAST_K
) -> tuple[list[Outcome], list[Target]]:
    """An outcome per label, references last, and the targets they are measured against.

    The default target is the mean final accuracy of the first label: how soon do the others get where the first one
    ended? There is none where no run has an accuracy.
    """
    _check(records)
    check.integer("last_k", last_k, 1)
    methods, references = apart(records)
    first = next(iter(by_label(methods).values()))
    ends = _finite(_final_accuracy(runs) for runs in by_label(references).values())
    found = find_targets(targets, max(ends, default=math.nan), default=_final_accuracy(first))
    shown = [column for column in shown_columns(record.history for record in records) if column.heading]
    outcomes = [_outcome(label, runs, shown, found, last_k) for label, runs in by_label(methods).items()]
    measured = [_with_speed_up(outcome, outcomes[0]) for outcome in outcomes]
    others = [_outcome(label, runs, shown, found, last_k) for label, runs in by_label(references).items()]
    return measured + [_as_reference(outcome) for outcome in others], found


def apart(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """The runs that are compared, and those that are there for reference; a reference alone is looked at as a run."""
    references = [record for record in records if record.reference]
    return [record for record in records if not record.reference] or references, (
        references if len(references) < len(records) else []
    )


def _final_accuracy(runs: Sequence[Record]) -> float:
    return _mean(_last_finite(run.history["accuracy"]) for run in _averaged(runs))


def _check(records: Sequence[Record]) -> None:
    if not records:
        raise ValueError("a report needs at least one record, got none")
    seen: set[tuple[str, int]] = set()
    for record in records:
        name = f"{record.label!r} (seed {record.seed})"
        if missing := [column.name for column in COLUMNS if column.name not in record.history]:
            raise ValueError(f"the history of {name} lacks the columns {', '.join(missing)}")
        if record.history.empty:
            raise ValueError(f"the history of {name} is empty")
        if (record.label, record.seed) in seen:
            raise ValueError(f"two records are both {name}")
        seen.add((record.label, record.seed))


def by_label(records: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.label, []).append(record)
    return groups


def _averaged(runs: Sequence[Record]) -> Sequence[Record]:
    """The runs that means are taken over: one that failed says nothing of what the others came to."""
    return [run for run in runs if not run.failed] or runs


def _outcome(
    label: str, runs: Sequence[Record], columns: Sequence[HistoryColumn], targets: Sequence[Target], last_k: int
) -> Outcome:
    histories = [run.history for run in _averaged(runs)]
    diverged = [run for run in runs if run.diverged]
    training = [float((history["seconds"] - history["evaluation_seconds"]).sum(skipna=False)) for history in histories]
    return Outcome(
        label=label,
        runs=len(runs),
        averaged=len(histories),
        reference=False,
        finals={
            column.name: _figure(_last_finite(values_of(history, column.name)) for history in histories)
            for column in columns
        },
        best_accuracy=_figure(max(_finite(history["accuracy"]), default=math.nan) for history in histories),
        best_round=_figure(_best_round(history) for history in histories),
        late_accuracy=_figure(_mean(history["accuracy"].tail(last_k)) for history in histories),
        late_rounds=min(last_k, *(len(history) for history in histories)),
        goals=tuple(_goal(histories, target) for target in targets),
        traffic=_figure(float(traffic_of(history).sum()) for history in histories),
        seconds=_mean(float(history["seconds"].sum()) for history in histories),
        training_seconds=_mean(training) if np.isfinite(training).all() else math.nan,
        diverged=len(diverged),
        exploded=sum(run.failed for run in runs) - len(diverged),
        settings={name: runs[0].config.get("options", {}).get(name) for name in SETTINGS},
        last_round=max(int(run.history["round"].max()) for run in runs),
    )


def _goal(histories: Sequence[pd.DataFrame], target: Target) -> Goal:
    rounds = [_first_round_at(history, target.accuracy) for history in histories]
    traffic = [
        math.nan if math.isnan(end) else float(traffic_of(history[history["round"] <= end]).sum())
        for history, end in zip(histories, rounds, strict=True)
    ]
    return Goal(target, _figure(rounds), _figure(traffic), reached=len(_finite(rounds)), speed_up=math.nan)


def _with_speed_up(outcome: Outcome, first: Outcome) -> Outcome:
    """The rounds of the first label per round of this one, to every target that all seeds of both reached."""
    goals = [
        goal._replace(speed_up=base.rounds.mean / goal.rounds.mean)
        if goal.reached == outcome.runs and base.reached == first.runs
        else goal
        for goal, base in zip(outcome.goals, first.goals, strict=True)
    ]
    return replace(outcome, goals=tuple(goals))


def _as_reference(outcome: Outcome) -> Outcome:
    """It trains in one place, so that rounds to a target, traffic and figures of clients have no meaning."""
    unknown = Figure(math.nan, math.nan)
    goals = tuple(Goal(goal.target, unknown, unknown, reached=0, speed_up=math.nan) for goal in outcome.goals)
    finals = {name: unknown if is_of_clients(name) else final for name, final in outcome.finals.items()}
    return replace(outcome, reference=True, goals=goals, traffic=unknown, finals=finals)


def final_of(runs: Sequence[Record], name: str) -> Figure:
    """The last finite value of a column, over the seeds that did not fail."""
    return _figure([_last_finite(values_of(run.history, name)) for run in _averaged(runs)])


def values_of(history: pd.DataFrame, name: str) -> pd.Series:
    """A column of a history; NaN throughout where the run did not compute that metric."""
    return history[name] if name in history else pd.Series(math.nan, index=history.index)


def _finite(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)]


def _last_finite(values: Iterable[float]) -> float:
    return next(reversed(_finite(values)), math.nan)


def _figure(values: Iterable[float]) -> Figure:
    known = _finite(values)
    return Figure(_mean(known), float(np.std(known, ddof=1)) if len(known) > 1 else math.nan)


def _mean(values: Iterable[float]) -> float:
    finite = _finite(values)
    return math.fsum(finite) / len(finite) if finite else math.nan


def _best_round(history: pd.DataFrame) -> float:
    """The first round with the highest accuracy, NaN if none was evaluated."""
    known = history[np.isfinite(history["accuracy"])]
    return float(known.loc[known["accuracy"].idxmax(), "round"]) if len(known) else math.nan


def _first_round_at(history: pd.DataFrame, target: float) -> float:
    """The first round with the target accuracy, NaN if there is none."""
    # The tolerance covers the rounding of a target that is itself a mean of accuracies.
    reached = history.loc[history["accuracy"] >= target - 1e-9, "round"]
    return float(reached.iloc[0]) if len(reached) else math.nan


def traffic_of(history: pd.DataFrame) -> pd.Series:
    """Bytes of every round, down and up."""
    return history["bytes_down"].fillna(0) + history["bytes_up"].fillna(0)


def divergence_round(history: pd.DataFrame) -> int | None:
    rounds = history.loc[history["diverged"].astype(bool), "round"]
    return int(rounds.iloc[0]) if len(rounds) else None
