"""From the records of runs to figures: what the runs of a label came to, on average over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from undrift.reporting.record import COLUMNS, HistoryColumn, Record, shown_columns

SETTINGS = ("lr", "server_lr", "weighting")


@dataclass(frozen=True)
class Final:
    """The last finite value of a column, over seeds."""

    mean: float
    std: float  # NaN for a single seed


@dataclass(frozen=True)
class Outcome:
    """What the runs of one label came to: means over its seeds that did not fail, or over all where all did."""

    label: str
    runs: int
    averaged: int  # of these, how many the means are over
    finals: Mapping[str, Final]  # of the history's columns that have a heading in the summary table
    best_accuracy: float
    rounds_to_target: float
    traffic: float
    seconds: float
    diverged: int
    exploded: int  # others, whose training loss exploded, though it stayed finite
    settings: Mapping[str, Any]  # those that may differ between algorithms: "lr", "server_lr", "weighting"
    reached: int  # seeds that reached the target
    last_round: int
    spreads: Mapping[str, float]  # standard deviations over seeds of the means of the same name; NaN for a single seed

    @property
    def accuracy(self) -> float:
        return self.finals["accuracy"].mean

    @property
    def loss(self) -> float:
        return self.finals["loss"].mean

    @property
    def failed(self) -> int:
        return self.diverged + self.exploded

    @property
    def all_diverged(self) -> bool:
        return self.diverged == self.runs


def summarise(records: Sequence[Record], target: float | None = None) -> pd.DataFrame:
    """A row per label, in order of first appearance, further columns last; `attrs["target"]` is the target accuracy.

    The default target is the mean final accuracy of the first label: how soon do the others get where the first one
    ended? It stays None where no run has an accuracy.
    """
    outcomes, target = outcomes_of(records, target)
    summary = pd.DataFrame([_summary_row(outcome) for outcome in outcomes])
    summary.attrs["target"] = target
    return summary


def _summary_row(outcome: Outcome) -> dict[str, str | float]:
    row: dict[str, str | float] = {
        "label": outcome.label,
        "runs": outcome.runs,
        "averaged": outcome.averaged,
        "accuracy": outcome.accuracy,
        "accuracy_std": outcome.finals["accuracy"].std,
        "best_accuracy": outcome.best_accuracy,
        "loss": outcome.loss,
        "rounds_to_target": outcome.rounds_to_target,
        "traffic": outcome.traffic,
        "seconds": outcome.seconds,
        "diverged": outcome.diverged,
        "exploded": outcome.exploded,
        **outcome.settings,
    }
    for name, final in outcome.finals.items():
        if name not in row:
            row |= {name: final.mean, f"{name}_std": final.std}
    return row


def outcomes_of(records: Sequence[Record], target: float | None) -> tuple[list[Outcome], float | None]:
    """An outcome per label, and the target they are measured against: the given one, or the first label's accuracy."""
    _check(records, target)
    groups = by_label(records)
    if target is None:
        first = _mean(_last_finite(run.history["accuracy"]) for run in _averaged(next(iter(groups.values()))))
        target = first if math.isfinite(first) else None
    shown = [column for column in shown_columns(record.history for record in records) if column.heading]
    return [_outcome(label, runs, shown, target) for label, runs in groups.items()], target


def _check(records: Sequence[Record], target: float | None) -> None:
    if not records:
        raise ValueError("a report needs at least one record, got none")
    if target is not None and not 0 <= target <= 1:
        raise ValueError(f"target is an accuracy between 0 and 1, got {target!r}")
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


def _outcome(label: str, runs: Sequence[Record], columns: Sequence[HistoryColumn], target: float | None) -> Outcome:
    histories = [run.history for run in _averaged(runs)]
    diverged = [run for run in runs if run.diverged]
    seeds = {
        "best_accuracy": [max(_finite(history["accuracy"]), default=math.nan) for history in histories],
        "rounds_to_target": [_first_round_at(history, target) for history in histories],
        "traffic": [float(traffic_of(history).sum()) for history in histories],
    }
    return Outcome(
        label=label,
        runs=len(runs),
        averaged=len(histories),
        finals={column.name: _final(histories, column.name) for column in columns},
        best_accuracy=_mean(seeds["best_accuracy"]),
        rounds_to_target=_mean(seeds["rounds_to_target"]),
        traffic=_mean(seeds["traffic"]),
        seconds=_mean(float(history["seconds"].sum()) for history in histories),
        diverged=len(diverged),
        exploded=sum(run.failed for run in runs) - len(diverged),
        settings={name: runs[0].config.get("options", {}).get(name) for name in SETTINGS},
        reached=len(_finite(seeds["rounds_to_target"])),
        last_round=max(int(run.history["round"].max()) for run in runs),
        spreads={name: _std(values) for name, values in seeds.items()},
    )


def _final(histories: Sequence[pd.DataFrame], name: str) -> Final:
    values = [_last_finite(values_of(history, name)) for history in histories]
    return Final(_mean(values), _std(values))


def values_of(history: pd.DataFrame, name: str) -> pd.Series:
    """A column of a history; NaN throughout where the run did not compute that metric."""
    return history[name] if name in history else pd.Series(math.nan, index=history.index)


def _finite(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)]


def _last_finite(values: Iterable[float]) -> float:
    return next(reversed(_finite(values)), math.nan)


def _mean(values: Iterable[float]) -> float:
    finite = _finite(values)
    return math.fsum(finite) / len(finite) if finite else math.nan


def _std(values: Iterable[float]) -> float:
    finite = _finite(values)
    return float(np.std(finite, ddof=1)) if len(finite) > 1 else math.nan


def _first_round_at(history: pd.DataFrame, target: float | None) -> float:
    """The first round with the target accuracy, NaN if there is none."""
    if target is None:
        return math.nan
    # The tolerance covers the rounding of a target that is itself a mean of accuracies.
    reached = history.loc[history["accuracy"] >= target - 1e-9, "round"]
    return float(reached.iloc[0]) if len(reached) else math.nan


def traffic_of(history: pd.DataFrame) -> pd.Series:
    """Bytes of every round, down and up."""
    return history["bytes_down"].fillna(0) + history["bytes_up"].fillna(0)


def divergence_round(history: pd.DataFrame) -> int | None:
    rounds = history.loc[history["diverged"].astype(bool), "round"]
    return int(rounds.iloc[0]) if len(rounds) else None
