"""Several methods over several tasks: which ranks higher, and by how much it improves in general."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from undrift.core.extras import needs
from undrift.statistics.predictions import Array
from undrift.statistics.samples import LEVEL, Interval

RESAMPLES = 2000


class Ranking(NamedTuple):
    """Average ranks over tasks, 1 for the best (Demšar, 2006)."""

    average: Array  # [methods]
    friedman: float  # p of Friedman's test that all methods are alike; NaN of fewer than 3 methods or tasks
    nemenyi: Array  # p of Nemenyi's test for every pair [methods, methods]
    critical_difference: float  # average ranks further apart than this differ, by Nemenyi's test


def ranking(scores: Array, level: float = LEVEL) -> Ranking:
    """Of scores [tasks, methods], of which higher ones are better; equal ones share their ranks."""
    tasks, methods = scores.shape
    if tasks < 2 or methods < 2:
        raise ValueError(f"ranks need at least 2 tasks and 2 methods, got {tasks} and {methods}")
    with needs("stats"):
        from scikit_posthocs import posthoc_nemenyi_friedman
        from scipy import stats
    scores = np.round(scores, 12)  # rounding must not part what is equal
    average: Array = stats.rankdata(-scores, axis=1).mean(0)
    # q / √2 of the studentised range, in units of the standard error of a difference of average ranks (Nemenyi, 1963)
    unit = math.sqrt(methods * (methods + 1) / (6 * tasks))
    critical = float(stats.studentized_range.ppf(1 - level, methods, np.inf)) / math.sqrt(2) * unit
    nemenyi = np.clip(posthoc_nemenyi_friedman(scores).to_numpy(), 0.0, 1.0)
    return Ranking(average, _friedman(scores), nemenyi, critical)


def _friedman(scores: Array) -> float:
    from scipy import stats

    if scores.shape[0] < 3 or scores.shape[1] < 3:
        return math.nan
    if (scores == scores[:, :1]).all():  # ties everywhere: no method differs
        return 1.0
    return float(stats.friedmanchisquare(*scores.T).pvalue)


# Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the Statistical Precipice


class Estimate(NamedTuple):
    """A figure over all tasks, and its interval over runs that are drawn again in every task."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: Sequence[Array], seed: int = 0, level: float = LEVEL) -> Estimate:
    """The mean of the middle half of all runs of all tasks; scores of every task are [runs].

    Less noisy than the median, and less ruled by single runs than the mean.
    """

    def trimmed(runs: list[Array]) -> Array:
        joined = np.sort(np.concatenate(runs, axis=-1), axis=-1)
        cut = int(joined.shape[-1] * 0.25)
        found: Array = joined[..., cut : joined.shape[-1] - cut].mean(-1)
        return found

    return _estimate(trimmed, scores, seed, level)


def probability_of_improvement(
    first: Sequence[Array], second: Sequence[Array], seed: int = 0, level: float = LEVEL
) -> Estimate:
    """How likely a run of the first is better than one of the second, in a task drawn at random; equal ones count half.

    Scores of every task are [runs], in the same order of tasks.
    """
    if len(first) != len(second):
        raise ValueError(f"both need scores of the same tasks, got {len(first)} and {len(second)}")

    def improves(runs: list[Array]) -> Array:
        ours, theirs = runs[: len(first)], runs[len(first) :]
        each = []
        for x, y in zip(ours, theirs, strict=True):
            a, b = x[..., :, None], y[..., None, :]
            each.append((a > b).mean((-1, -2)) + 0.5 * (a == b).mean((-1, -2)))
        found: Array = np.mean(each, axis=0)
        return found

    return _estimate(improves, [*first, *second], seed, level)


def _estimate(figure: Callable[[list[Array]], Array], scores: Sequence[Array], seed: int, level: float) -> Estimate:
    """With an interval by stratified bootstrap: runs are drawn again within their task."""
    runs = [np.round(np.asarray(each, dtype=np.float64), 12) for each in scores]
    if not runs or not all(len(each) for each in runs):
        return Estimate(math.nan, math.nan, math.nan)
    random = np.random.default_rng(seed)
    again = [each[random.integers(len(each), size=(RESAMPLES, len(each)))] for each in runs]  # [resamples, runs]
    low, high = np.quantile(figure(again), [level / 2, 1 - level / 2])
    return Estimate(float(figure(runs)), *Interval(float(low), float(high)))
