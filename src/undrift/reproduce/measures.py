"""What papers report of a run, as a number for every seed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from undrift.core import check
from undrift.reporting.record import Record
from undrift.statistics.conformal import Conformal, Coverage

LAST = 100  # rounds, of the mean at the end
LAST_ROUNDS = f"the last {LAST} rounds, or the second half of fewer than {2 * LAST}"


class Measure(NamedTuple):
    """Its text begins with a capital; a value is NaN where a run has none."""

    text: str
    of: Callable[[Record], float]  # of a run
    higher_is_better: bool = True
    percent: bool = True
    digits: int = 2  # that are shown
    needs_predictions: bool = False  # of the final model; what is stored without them has a column of its name
    at_least: Callable[[Record], float] | None = None  # what a run without a value would have at least
    of_every_look: bool = False  # better for a run that was evaluated more often


def _best(run: Record) -> float:
    return float(run.history.accuracy.max())


def _best_round(run: Record) -> float:
    history = run.history[run.history.accuracy.notna()]
    return float(history["round"].iloc[int(history.accuracy.argmax())]) if len(history) else np.nan


def _last(run: Record) -> float:
    known = run.history.accuracy.dropna()
    return float(known.iloc[-1]) if len(known) else np.nan


def _last_rounds(run: Record) -> pd.Series[float]:
    """Accuracy in the evaluated ones among them; of a short run not in its first half, where the accuracy rises."""
    rounds = int(run.history["round"].max())
    late = run.history[run.history["round"] > rounds - min(LAST, max(rounds // 2, 1))]
    found: pd.Series[float] = late["accuracy"].dropna()
    return found


def _mean_last(run: Record) -> float:
    return float(_last_rounds(run).mean())


def _deviation_last(run: Record) -> float:
    return float(_last_rounds(run).std())


def _of_history(column: str) -> Callable[[Record], float]:
    """Its last value; of a run without the column, none."""

    def last(run: Record) -> float:
        known = run.history[column].dropna().tolist() if column in run.history else []
        return float(known[-1]) if known else np.nan

    return last


def _over_layers(diagnostic: str, last: int = 0) -> Callable[[Record], float]:
    """A diagnostic such as ``gradient_norm/mean``, averaged over all or the last layers at the end of training."""

    def mean(run: Record) -> float:
        layers = [name for name in run.history if str(name).startswith(f"{diagnostic}/")][-last:]
        late = run.history["round"] > 0.9 * run.history["round"].max()  # the last tenth
        return float(run.history.loc[late, layers].mean().mean()) if layers else np.nan

    return mean


def _conformal(name: str, level: float, of: Callable[[Coverage], float]) -> Callable[[Record], float]:
    def found(run: Record) -> float:
        known = run.predictions
        if known is None or known.probabilities is None:
            return _of_history(name)(run)
        return of(Conformal().evaluate(known.probabilities, known.targets, [level])[0])

    return found


def _rounds_to(target: float) -> Callable[[Record], float]:
    def reached(run: Record) -> float:
        there = run.history["round"][run.history.accuracy >= target]
        return float(there.iloc[0]) if len(there) else np.nan

    return reached


def _one_more_round(run: Record) -> float:
    return float(run.history["round"].max()) + 1


MEASURES = {
    "best": Measure("Best accuracy", _best, of_every_look=True),
    "best round": Measure("Round of the best accuracy", _best_round, higher_is_better=False, percent=False, digits=0),
    "last": Measure("Final accuracy", _last),
    "mean of last rounds": Measure(f"Mean accuracy of {LAST_ROUNDS}", _mean_last),
    "deviation of last rounds": Measure(
        f"Standard deviation of the accuracy over {LAST_ROUNDS}",
        _deviation_last,
        higher_is_better=False,
    ),
    # of algorithms that keep several models; "last" is that of the model which most clients prefer
    "last, best model": Measure("Final accuracy of the best model", _of_history("accuracy_best")),
    "last, mean of models": Measure("Final accuracy, mean of the models", _of_history("accuracy_mean")),
    # of runs with such a metric
    "last, personal": Measure(
        "Final accuracy of the model that each client would use", _of_history("personal_accuracy")
    ),
    "last macro F1": Measure("Final F1 (macro)", _of_history("f1")),
    "last macro precision": Measure("Final precision (macro)", _of_history("precision")),
    "last macro recall": Measure("Final recall (macro)", _of_history("recall")),
    "last micro F1": Measure("Final F1 (micro)", _of_history("f1_micro")),
    "last micro precision": Measure("Final precision (micro)", _of_history("precision_micro")),
    "last micro recall": Measure("Final recall (micro)", _of_history("recall_micro")),
    # of runs with the diagnostic gradient_norm
    **{
        name: Measure(
            f"{name.capitalize()}, averaged over layers",
            _over_layers(f"gradient_norm/{statistic}"),
            higher_is_better=False,
            percent=False,
            digits=3,
        )
        for name, statistic in (
            ("mean gradient norm", "mean"),
            ("variance of gradient norm", "variance"),
            ("maximum gradient norm", "max"),
        )
    },
    "mean gradient norm of last layers": Measure(
        "Mean gradient norm of the last two layers",
        _over_layers("gradient_norm/mean", last=2),
        higher_is_better=False,
        percent=False,
        digits=3,
    ),
}


def measure_named(name: str) -> Measure:
    """One of `MEASURES`, ``rounds to 60.5 %``, ``set size at 90 %`` or ``coverage at 90 %`` (of conformal sets)."""
    if name in MEASURES:
        return MEASURES[name]
    if target := re.fullmatch(r"rounds to ([\d.]+) %", name):
        percent = float(target[1])
        reached = _rounds_to(percent / 100)
        return Measure(
            f"Rounds to {percent:g} %", reached, False, False, 0, at_least=_one_more_round, of_every_look=True
        )
    if sets := re.fullmatch(r"(set size|coverage) at (\d+) %", name):
        level, at = int(sets[2]) / 100, f"at level {int(sets[2])} %"
        if sets[1] == "coverage":
            coverage = _conformal(name, level, lambda each: each.coverage)
            return Measure(f"Coverage of conformal sets {at}", coverage, needs_predictions=True)
        size = _conformal(name, level, lambda each: each.size)
        return Measure(f"Mean size of conformal sets {at}", size, False, False, needs_predictions=True)
    known = [*MEASURES, "rounds to 60.5 %", "set size at 90 %", "coverage at 90 %"]
    raise ValueError(f"unknown measure {check.shown(name)}{check.nearest(name, known)}")
