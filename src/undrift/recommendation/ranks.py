"""How algorithms compare in several settings: ranks, and differences of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from undrift.recommendation.measured import Outcomes
from undrift.reporting.record import Record
from undrift.reporting.significance import Ranks, ranks_of
from undrift.statistics.samples import LEVEL
from undrift.statistics.seeds import Paired, holm, paired


def complete(found: Outcomes) -> tuple[list[str], list[str]]:
    """Settings, and the algorithms that all of them have: of all such choices the one with most results."""
    best: tuple[list[str], list[str]] = [], []
    for few in sorted({len(each) for each in found.values()}):
        tasks = [task for task, each in found.items() if len(each) >= few]
        names = [name for name in found[tasks[0]] if all(name in found[task] for task in tasks)]
        if len(tasks) * len(names) >= len(best[0]) * len(best[1]):
            best = tasks, names
    return best


def ranks(found: Outcomes, tasks: Sequence[str], names: Sequence[str]) -> Ranks:
    """By mean accuracy, where a run that failed counts 0; improvements are over the first name."""
    return ranks_of([[record for name in names for record in _records(found, task, name)] for task in tasks])


def _records(found: Outcomes, task: str, name: str) -> list[Record]:
    outcome = found[task][name]
    values = [(value, False) for value in outcome.accuracies.values()] + [(0.0, True)] * outcome.failed
    return [
        Record(name, seed, pd.DataFrame({"accuracy": [value], "train_loss": [0.0], "diverged": [failed]}), {}, {})
        for seed, (value, failed) in enumerate(values)
    ]


def average_ranks(found: Outcomes, tasks: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Mean ranks by mean accuracy, 1 for the best, among these algorithms, the best first; equal ones share ranks."""
    scores = pd.DataFrame({task: {name: found[task][name].score for name in names} for task in tasks})
    means = scores.round(12).rank(ascending=False).mean(axis=1)
    return {str(name): float(rank) for name, rank in means.sort_values(kind="stable").items()}


def difference(found: Outcomes, tasks: Iterable[str], first: str, second: str) -> Paired:
    """Of accuracies, first minus second, paired by setting and seed; a run that failed counts 0, as in ranks."""
    ours, theirs = [], []
    for task in tasks:
        a, b = found[task][first].scores, found[task][second].scores
        for seed in sorted(a.keys() & b.keys()):
            ours.append(a[seed])
            theirs.append(b[seed])
    return paired(ours, theirs)


def not_significantly_worse(
    found: Outcomes, tasks: Sequence[str], first: str, names: Iterable[str], *, corrected: bool
) -> list[str]:
    """Those that a paired t test over settings and seeds, corrected for all by Holm's method or not, leaves in a tie.

    The first must be ahead of the others. One that lost a run is in no tie.
    """
    sound = [name for name in names if name != first and not any(found[task][name].lost for task in tasks)]
    against = [difference(found, tasks, first, name) for name in sound]
    p = [each.t for each in against]
    shown = holm(p).tolist() if corrected else p
    return [
        name
        for name, each, value in zip(sound, against, shown, strict=True)
        if not (each.difference > 0 and value < LEVEL)
    ]
