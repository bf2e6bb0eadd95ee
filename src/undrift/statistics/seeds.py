"""Two methods over the same seeds: would the difference show up again with another seed?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from undrift.core.extras import needs
from undrift.statistics.predictions import Array
from undrift.statistics.samples import LEVEL, Interval

FEWEST = 3  # seeds from which on a verdict rests on them
_EQUAL = 1e-12  # differences of figures between 0 and 1 that are nothing but rounding


class Paired(NamedTuple):
    """Tests and effect sizes of differences, one a seed. NaN where there are too few; `reason` says so."""

    seeds: int
    difference: float  # mean
    t: float  # p of the paired t test
    wilcoxon: float  # p of Wilcoxon's signed-rank test
    cohens_d: float  # of paired samples: mean over standard deviation of the differences
    rank_biserial: float  # of matched pairs: share of ranks in favour of the first, minus that of the second
    reason: str = ""
    interval: Interval = Interval(math.nan, math.nan)  # of the mean difference, by Student's t: 95 %


def paired(first: Sequence[float] | Array, second: Sequence[float] | Array) -> Paired:
    """Figures of two methods, paired by seed [seeds]. All p are two-sided."""
    given = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if given[0].shape != given[1].shape or given[0].ndim != 1:
        raise ValueError(f"figures must be paired by seed, got {given[0].shape} and {given[1].shape}")
    known = np.isfinite(given[0]) & np.isfinite(given[1])
    differences = (given[0] - given[1])[known]
    differences[np.abs(differences) <= _EQUAL] = 0.0
    count = len(differences)
    if not count:
        return Paired(0, math.nan, math.nan, math.nan, math.nan, math.nan, "no seed in common")
    mean = float(differences.mean())
    if count == 1:
        return Paired(1, mean, math.nan, math.nan, math.nan, math.nan, "one seed: the spread over seeds is unknown")
    if not differences.any():
        return Paired(count, 0.0, 1.0, 1.0, 0.0, 0.0, "no difference in any seed", Interval(0.0, 0.0))
    with needs("stats"):
        from scipy.special import stdtr, stdtrit  # Student's t distribution, and its quantiles
    wilcoxon, rank_biserial = _signed_ranks(differences)
    spread = float(differences.std(ddof=1))
    if spread <= _EQUAL:
        reason = "the same difference in every seed: their spread says nothing"
        return Paired(count, mean, math.nan, wilcoxon, math.nan, rank_biserial, reason)
    error = spread / math.sqrt(count)
    t = float(2 * stdtr(count - 1, -abs(mean) / error))
    reach = float(stdtrit(count - 1, 1 - LEVEL / 2)) * error
    return Paired(count, mean, t, wilcoxon, mean / spread, rank_biserial, interval=Interval(mean - reach, mean + reach))


def _signed_ranks(differences: Array) -> tuple[float, float]:
    """p of Wilcoxon's test, and the rank-biserial correlation; seeds without a difference are left out."""
    from scipy import stats

    nonzero = differences[differences != 0]
    ranks = stats.rankdata(np.round(np.abs(nonzero), 12))
    balance = float(ranks[nonzero > 0].sum() - ranks[nonzero < 0].sum()) / float(ranks.sum())
    # Exact, with ties as well, as all signs are equally likely; of more seeds than that by scipy.
    if len(nonzero) <= 15:
        signs = 1 - 2 * (np.arange(2 ** len(nonzero))[:, None] >> np.arange(len(nonzero)) & 1)  # [2^n, n]
        return float((np.abs(signs @ ranks) >= abs(balance) * ranks.sum() - 1e-9).mean()), balance
    return float(stats.wilcoxon(nonzero).pvalue), balance


def holm(p: Sequence[float] | Array) -> Array:
    """Corrected for testing so many pairs at once (Holm, 1979): those below α are right all together with 1 − α.

    Of p that are NaN no test was made; they stay NaN and do not count. (statsmodels has it as well, in a function that
    collects all garbage of the process in every call.)
    """
    given = np.asarray(p, dtype=np.float64)
    corrected = given.copy()
    order = np.argsort(given)[: int(np.isfinite(given).sum())]  # NaN come last
    steps = given[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected
