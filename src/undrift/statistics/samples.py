"""Two classifiers on the same test samples: does one answer more of them correctly than chance explains?

These tests know of test samples only. Trained again with another seed, either classifier would answer others; that is
what `seeds` is about.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from undrift.core.extras import needs
from undrift.statistics.predictions import Array

RESAMPLES = 5_000
LEVEL = 0.05  # of error, wherever none is given


class Answers(NamedTuple):
    """How many samples two classifiers answer correctly: the table that tests of the two start from."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @classmethod
    def of(cls, first: Array, second: Array) -> Answers:
        """From which samples each answers correctly, bool [n]."""
        if first.shape != second.shape or first.ndim != 1:
            raise ValueError(f"both must answer the same samples, got {first.shape} and {second.shape} answers")
        first, second = first.astype(bool), second.astype(bool)
        parts = first & second, first & ~second, ~first & second, ~first & ~second
        return cls(*(int(part.sum()) for part in parts))

    @property
    def square(self) -> list[list[int]]:
        """First classifier down, second across: right, wrong."""
        return [[self.both, self.only_first], [self.only_second, self.neither]]


class McNemar(NamedTuple):
    """p of McNemar's test that the samples which only one of two classifiers has right are split by chance."""

    exact: float  # by the binomial distribution, for any number of samples
    corrected: float  # by χ² with continuity correction, as most papers have it; for 25 such samples or more


def mcnemar(answers: Answers) -> McNemar:
    """McNemar (1947): only samples count that exactly one has right; both p are 1 where there are none."""
    if not answers.only_first + answers.only_second:
        return McNemar(1.0, 1.0)
    with needs("stats"):
        from statsmodels.stats.contingency_tables import mcnemar as test
    exact = float(test(answers.square, exact=True).pvalue)
    if answers.only_first == answers.only_second:  # the correction would make a difference of 0 one of 1
        return McNemar(exact, 1.0)
    return McNemar(exact, float(test(answers.square, exact=False, correction=True).pvalue))


def independence(answers: Answers) -> float:
    """p of a χ² test that being right is independent between the two (`scipy.stats.chi2_contingency`).

    This is no test of which is better, and not McNemar's: two classifiers that agree everywhere have p near 0. Some
    published code calls it McNemar; it is here so that such figures can be compared. NaN where one of the two is always
    right or always wrong.
    """
    square = np.array(answers.square)
    if not square.sum(0).all() or not square.sum(1).all():
        return math.nan
    with needs("stats"):
        from scipy.stats import chi2_contingency
    return float(chi2_contingency(square).pvalue)


class Interval(NamedTuple):
    low: float
    high: float


def bootstrap_difference(differences: Array, seed: int = 0, level: float = LEVEL) -> Interval:
    """Bootstrap interval (percentiles) of a mean difference over samples, which are drawn again with replacement [n].

    Of one pair of runs the differences are −1, 0 and 1, of several seeds their mean per sample. Few values occur, so a
    multinomial draw of how often each does is the same as drawing samples, and does not depend on how many there are.
    """
    if not len(differences):
        return Interval(math.nan, math.nan)
    values, counts = np.unique(differences, return_counts=True)
    total = int(counts.sum())
    drawn = np.random.default_rng(seed).multinomial(total, counts / total, RESAMPLES)  # [resamples, values]
    low, high = np.quantile(drawn @ values / total, [level / 2, 1 - level / 2])
    return Interval(float(low), float(high))
