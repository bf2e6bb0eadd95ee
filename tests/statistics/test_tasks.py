"""Ranks and figures over several tasks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from undrift.statistics.tasks import interquartile_mean, probability_of_improvement, ranking

# Five tasks, four methods
SCORES = np.array(
    [[0.9, 0.8, 0.7, 0.7], [0.8, 0.75, 0.6, 0.5], [0.7, 0.6, 0.65, 0.5], [0.9, 0.85, 0.5, 0.4], [0.6, 0.7, 0.5, 0.4]]
)


def test_average_ranks_by_hand() -> None:
    found = ranking(SCORES)
    assert found.average.tolist() == pytest.approx([(1 + 1 + 1 + 1 + 2) / 5, 2.0, (3.5 + 3 + 2 + 3 + 3) / 5, 3.9])
    assert found.friedman == pytest.approx(stats.friedmanchisquare(*SCORES.T).pvalue)


def test_the_critical_difference_is_that_of_the_table() -> None:
    # Demšar (2006), Table 5: q of 0.05 is 2.569 for four methods; CD = q √(k (k + 1) / 6N)
    found = ranking(SCORES)
    assert found.critical_difference == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 5)), abs=1e-3)
    apart = np.abs(found.average[:, None] - found.average) > found.critical_difference
    assert (apart == (found.nemenyi < 0.05)).all()
    assert apart.any()


@pytest.mark.filterwarnings("error")
def test_methods_that_are_all_alike() -> None:
    found = ranking(np.full((4, 3), 0.5))
    assert found.average.tolist() == [2.0, 2.0, 2.0]
    assert found.friedman == 1.0
    assert found.nemenyi == pytest.approx(1.0)


def test_two_methods_have_no_friedman_test() -> None:
    found = ranking(SCORES[:, :2])
    assert math.isnan(found.friedman)
    assert found.nemenyi[0, 1] > 0.05


def test_one_task_has_no_ranks() -> None:
    with pytest.raises(ValueError, match="at least 2 tasks and 2 methods"):
        ranking(SCORES[:1])


def test_rounding_does_not_break_ties() -> None:
    assert ranking(np.array([[0.1 + 0.2, 0.3], [0.5, 0.5]])).average.tolist() == [1.5, 1.5]


def test_the_interquartile_mean_is_the_trimmed_mean() -> None:
    scores = [np.array([0.0, 0.5, 0.6]), np.array([0.4, 0.7, 0.3, 1.0, 0.2])]
    found = interquartile_mean(scores)
    assert found.value == pytest.approx((0.3 + 0.4 + 0.5 + 0.6) / 4)
    assert found.value == pytest.approx(stats.trim_mean(np.concatenate(scores), 0.25))
    assert found.low < found.value < found.high
    assert interquartile_mean(scores) == found


def test_runs_are_drawn_again_within_their_task() -> None:
    # Tasks differ by far more than their runs: an interval over tasks would be as wide as they are apart.
    found = interquartile_mean([np.array([0.1, 0.11, 0.12]), np.array([0.9, 0.91, 0.92])])
    assert found.high - found.low < 0.05


def test_the_probability_of_improvement_by_hand() -> None:
    first, second = [np.array([0.5, 0.6]), np.array([0.9])], [np.array([0.4, 0.6]), np.array([0.95])]
    found = probability_of_improvement(first, second)
    assert found.value == pytest.approx(((1 + 0 + 1 + 0.5) / 4 + 0) / 2)
    u = stats.mannwhitneyu(first[0], second[0]).statistic
    assert found.value == pytest.approx(u / 4 / 2)
    assert probability_of_improvement(second, first).value == pytest.approx(1 - found.value)
    assert probability_of_improvement(first, first).value == 0.5


def test_nothing_to_estimate() -> None:
    assert math.isnan(interquartile_mean([]).value)
    assert math.isnan(interquartile_mean([np.array([])]).low)
    with pytest.raises(ValueError, match="same tasks"):
        probability_of_improvement([np.ones(1)], [])
