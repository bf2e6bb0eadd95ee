"""Conformal prediction: sets of classes that hold the true one with a chosen probability, and how large they are.

Split conformal prediction (Vovk et al., 2005): a score says how badly a class fits a sample; of n calibration samples
the ⌈(n+1)·level⌉-th smallest score of their true classes is the threshold, and a sample's set holds every class with a
score up to it. Where samples are exchangeable, the true class is in the set with a probability of at least `level`.

    threshold    1 − p                                               (Sadinle et al., 2019; THR, LAC)
    adaptive     p of all classes at least as likely                 (Romano et al., 2020; APS)
    regularised  the same + penalty · max(0, rank − free_ranks)      (Angelopoulos et al., 2021; RAPS)

The adaptive scores are `randomised` by taking a uniform share of the class's own p off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from undrift.core import check

Array = np.ndarray[Any, Any]

LEVELS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99)
METHODS = ("threshold", "adaptive", "regularised")


@dataclass(frozen=True)
class Conformal:
    """How sets are made: which score, and which half of the samples calibrates it."""

    method: str = "threshold"
    randomised: bool = False
    penalty: float = 0.01  # for every rank after the free ones, if regularised; the paper's values for ImageNet
    free_ranks: int = 5
    seed: int = 0  # of the split, and of what is randomised

    def __post_init__(self) -> None:
        check.choice("method", self.method, METHODS)
        if not isinstance(self.randomised, bool):
            raise TypeError(f"randomised must be True or False, got {check.shown(self.randomised)}")
        if self.randomised and self.method == "threshold":
            raise ValueError("randomised=True is for the methods 'adaptive' and 'regularised'")
        check.number("penalty", self.penalty, 0)
        check.integer("free_ranks", self.free_ranks, 0)
        check.integer("seed", self.seed, 0)

    def scores(self, probabilities: Array, shares: Array) -> Array:
        """How badly every class fits every sample [n, classes]; `shares` [n] are 0 unless randomised."""
        p = probabilities.astype(np.float64)
        if self.method == "threshold":
            return 1 - p
        order = np.argsort(-p, axis=1, kind="stable")
        ordered = np.take_along_axis(p, order, 1)
        found = ordered.cumsum(1) - shares[:, None] * ordered
        if self.method == "regularised":
            ranks = np.arange(1, p.shape[1] + 1)
            found = found + self.penalty * np.maximum(0, ranks - self.free_ranks)
        scores = np.empty_like(found)
        np.put_along_axis(scores, order, found, 1)
        return scores

    def evaluate(self, probabilities: Array, targets: Array, levels: Sequence[float]) -> list[Coverage]:
        """What sets reach on one half of the samples, calibrated on the other."""
        generator = np.random.default_rng(self.seed)
        rows = generator.permutation(len(targets))
        shares = generator.random(len(targets)) if self.randomised else np.zeros(len(targets))
        scores = self.scores(probabilities, shares)
        calibration, rest = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        of_truth = np.sort(scores[calibration, targets[calibration]])
        thresholds = [threshold(of_truth, level) for level in levels]
        return [
            _coverage(level, scores[rest] <= limit, targets[rest])
            for level, limit in zip(levels, thresholds, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Coverage:
    """What the sets of a level reach: the share that holds the true class, and the mean number of classes."""

    level: float
    coverage: float
    size: float
    class_coverage: Array  # [classes], over the samples of each class; NaN without samples
    class_size: Array


def threshold(scores: Array, level: float) -> float:
    """The ⌈(n+1)·level⌉-th smallest of n scores, which are sorted; refuses too few of them."""
    rank = math.ceil((len(scores) + 1) * Fraction(repr(float(level))))  # exactly: 100 × 0.55 is 55, not a bit more
    if rank > len(scores):
        raise ValueError(
            f"level {level:g} needs at least {fewest(level)} samples for calibration, half of the test samples, got "
            f"{len(scores)}"
        )
    return float(scores[rank - 1])


def fewest(level: float) -> int:
    """The fewest calibration samples that a level can be reached with: level / (1 − level)."""
    exact = Fraction(repr(float(level)))
    return math.ceil(exact / (1 - exact))


def check_levels(levels: Any) -> tuple[float, ...]:
    given = check.plain(levels)
    values = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    if not values:
        raise ValueError("levels must be at least one number between 0 and 1, got none")
    for value in values:
        check.number("levels: a level", value, 0, 1, open_low=True, open_high=True)
    return tuple(float(check.plain(value)) for value in values)


def _coverage(level: float, sets: Array, targets: Array) -> Coverage:
    covered, sizes = sets[np.arange(len(targets)), targets], sets.sum(1)
    count = np.bincount(targets, minlength=sets.shape[1])

    def by_class(values: Array) -> Array:
        total = np.bincount(targets, values, minlength=sets.shape[1])
        found: Array = np.divide(total, count, out=np.full(len(count), math.nan), where=count > 0)
        return found

    return Coverage(level, float(covered.mean()), float(sizes.mean()), by_class(covered), by_class(sizes))
