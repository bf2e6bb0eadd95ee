"""What trials say of one of the values: how the accuracy depends on it, and whether more of them are worth it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from undrift.core import check
from undrift.reporting.sensitivity import Line, Point, Sensitivity
from undrift.simulation.vary import changed_by
from undrift.tuning.trial import Trial


def notes(best: Trial, trials: Sequence[Trial]) -> list[str]:
    """In sentences: which of the best values are the smallest or largest tried, where others are possible."""
    label, texts = best.configuration.label, []
    if best.failed:
        texts.append(f"{label}: every configuration failed; consider smaller rates, or clip")
    for key, value in best.configuration.values.items():
        tried = sorted(
            {trial.configuration.values[key] for trial in trials if _is_number(trial.configuration.values[key])}
        )
        if not _is_number(value) or len(tried) < 2 or value not in (tried[0], tried[-1]):
            continue
        neighbour, end = (tried[1], "smallest") if value == tried[0] else (tried[-2], "largest")
        further = _next(value, neighbour)
        if _possible(best, key, further):
            texts.append(f"{label}: {key} {value:g} is the {end} tried; consider more, such as {further:g}")
    return texts


def _next(value: float, neighbour: float) -> float:
    """As far beyond the end as its neighbour is before it, as a ratio where that makes sense."""
    ratio = value * neighbour > 0
    return float(f"{value * value / neighbour if ratio else 2 * value - neighbour:.2g}")


def _possible(best: Trial, key: str, value: float) -> bool:
    try:
        changed_by(best.configuration.written, {key: value})
    except (ValueError, TypeError):
        return False
    return True


def sensitivity_to(key: str, trials: Sequence[Trial]) -> Sensitivity:
    """The accuracy at every value of a setting; of trials that have the same one, the best."""
    known = dict.fromkeys(key for trial in trials for key in trial.configuration.values)
    check.choice("key", key, known)
    lines: dict[str, dict[Any, Trial]] = {}
    for trial in trials:
        if key in trial.configuration.values:
            best = lines.setdefault(trial.configuration.label, {})
            value = trial.configuration.values[key]
            best[value] = min(best.get(value, trial), trial, key=lambda each: each.rank)
    labels = list(dict.fromkeys(trial.configuration.label for trial in trials))
    found = [
        Line(label, tuple(Point(value, tuple(trial.accuracies)) for value, trial in best.items()), labels.index(label))
        for label, best in lines.items()
    ]
    return Sensitivity(key, "Accuracy on held-out samples", tuple(found))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
