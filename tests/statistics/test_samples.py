"""Tests of two classifiers on the same samples, against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from undrift.statistics.samples import Answers, bootstrap_difference, independence, mcnemar


def test_the_table_of_answers() -> None:
    first, second = np.array([1, 1, 1, 0, 0, 1], bool), np.array([1, 0, 0, 1, 0, 1], bool)
    assert Answers.of(first, second) == (2, 2, 1, 1)
    with pytest.raises(ValueError, match="the same samples"):
        Answers.of(first, second[:-1])


def test_mcnemar_by_hand() -> None:
    found = mcnemar(Answers(both=50, only_first=10, only_second=3, neither=37))
    tail = sum(math.comb(13, k) for k in range(4)) / 2**13
    assert found.exact == pytest.approx(2 * tail)
    statistic = (abs(10 - 3) - 1) ** 2 / 13
    assert found.corrected == pytest.approx(math.erfc(math.sqrt(statistic / 2)))  # χ² with one degree of freedom
    assert found.exact > 0.05


def test_mcnemar_does_not_count_samples_on_which_both_agree() -> None:
    assert mcnemar(Answers(0, 10, 3, 0)) == mcnemar(Answers(10**6, 10, 3, 10**5))
    assert mcnemar(Answers(5, 3, 10, 0)) == mcnemar(Answers(5, 10, 3, 0))


@pytest.mark.parametrize("answers", [Answers(7, 0, 0, 3), Answers(0, 0, 0, 0), Answers(7, 4, 4, 3)])
def test_no_difference_is_p_of_one(answers: Answers) -> None:
    assert mcnemar(answers) == (1.0, 1.0)


def test_the_test_of_independence_is_another_question() -> None:
    agreeing = Answers(both=60, only_first=0, only_second=0, neither=40)
    assert mcnemar(agreeing).exact == 1.0
    assert independence(agreeing) < 1e-20  # the same answers are anything but independent
    # By hand, with Yates' correction: all four cells are 5 away from the 50 that independence expects.
    assert independence(Answers(55, 45, 45, 55)) == pytest.approx(math.erfc(math.sqrt(4 * 4.5**2 / 50 / 2)))
    assert math.isnan(independence(Answers(60, 0, 40, 0)))


def test_the_bootstrap_interval_is_that_of_resampled_samples() -> None:
    random = np.random.default_rng(3)
    differences = random.choice([-1.0, 0.0, 1.0], size=400, p=[0.1, 0.7, 0.2])
    low, high = bootstrap_difference(differences)
    drawn = differences[random.integers(400, size=(10_000, 400))].mean(1)
    assert (low, high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.006)
    # and about the normal one
    error = differences.std() / 20
    assert (low, high) == pytest.approx(
        (differences.mean() - 1.96 * error, differences.mean() + 1.96 * error), abs=0.006
    )


def test_the_bootstrap_repeats_and_narrows() -> None:
    differences = np.repeat([-1.0, 0.0, 1.0], [10, 60, 30])
    assert bootstrap_difference(differences) == bootstrap_difference(differences)
    wide, narrow = bootstrap_difference(differences), bootstrap_difference(differences, level=0.5)
    assert wide.low < narrow.low < narrow.high < wide.high
    assert bootstrap_difference(np.zeros(5)) == (0.0, 0.0)
    assert all(map(math.isnan, bootstrap_difference(np.zeros(0))))
