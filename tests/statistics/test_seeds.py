"""Tests over seeds, against scipy and values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from undrift.statistics.seeds import holm, paired

FIRST = [0.80, 0.82, 0.85, 0.81, 0.79]
SECOND = [0.70, 0.83, 0.76, 0.80, 0.74]  # differences 0.10, −0.01, 0.09, 0.01, 0.05


def test_against_scipy() -> None:
    found = paired(FIRST, SECOND)
    assert found.seeds == 5
    assert found.difference == pytest.approx(0.048)
    assert found.t == pytest.approx(stats.ttest_rel(FIRST, SECOND).pvalue)
    assert found.cohens_d == pytest.approx(0.048 / np.std([0.10, -0.01, 0.09, 0.01, 0.05], ddof=1))


def test_signed_ranks_by_hand() -> None:
    # |differences| 0.10, 0.01, 0.09, 0.01, 0.05 have the ranks 5, 1.5, 4, 1.5, 3: 13.5 for the first, 1.5 against it.
    found = paired(FIRST, SECOND)
    assert found.rank_biserial == pytest.approx((13.5 - 1.5) / 15)
    # Of 32 choices of signs 3 have at most 1.5 against (nothing, or either rank of 1.5), and 3 at most 1.5 for.
    assert found.wilcoxon == pytest.approx(2 * 3 / 32)


@pytest.mark.parametrize("count", [6, 12, 20])
def test_signed_ranks_without_ties_are_those_of_scipy(count: int) -> None:
    random = np.random.default_rng(count)
    first, second = random.random(count), random.random(count)
    assert paired(first, second).wilcoxon == pytest.approx(stats.wilcoxon(first, second, method="exact").pvalue)


def test_five_seeds_are_too_few_for_wilcoxon() -> None:
    assert paired(FIRST, [0.1] * 5).wilcoxon == 2 / 2**5  # the smallest there is, above 0.05


def test_the_other_way_round() -> None:
    found, mirrored = paired(FIRST, SECOND), paired(SECOND, FIRST)
    assert (mirrored.t, mirrored.wilcoxon) == pytest.approx((found.t, found.wilcoxon))
    assert (mirrored.difference, mirrored.cohens_d) == pytest.approx((-found.difference, -found.cohens_d))
    assert mirrored.rank_biserial == pytest.approx(-found.rank_biserial)


@pytest.mark.filterwarnings("error")
class TestLittleToTest:
    def test_no_difference(self) -> None:
        found = paired(FIRST, FIRST)
        assert found[:6] == (5, 0.0, 1.0, 1.0, 0.0, 0.0)
        assert found.reason == "no difference in any seed"

    def test_seeds_without_a_difference_are_no_evidence(self) -> None:
        assert paired([0.5, 0.6, 0.7], [0.5, 0.6, 0.6]).wilcoxon == 1.0

    def test_the_same_difference_everywhere(self) -> None:
        found = paired([0.3, 0.5, 0.8], [0.2, 0.4, 0.7])
        assert math.isnan(found.t)
        assert math.isnan(found.cohens_d)
        assert found.wilcoxon == 0.25
        assert "same difference" in found.reason

    def test_one_seed(self) -> None:
        found = paired([0.5], [0.25])
        assert (found.seeds, found.difference) == (1, 0.25)
        assert math.isnan(found.t)
        assert "spread over seeds is unknown" in found.reason

    def test_nothing(self) -> None:
        assert paired([], []).reason == "no seed in common"
        assert paired([math.nan], [1.0]).seeds == 0

    def test_unpaired(self) -> None:
        with pytest.raises(ValueError, match="paired by seed"):
            paired([1.0], [1.0, 2.0])


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]).tolist() == pytest.approx([1.0, 1.0])


def test_holm_is_that_of_statsmodels() -> None:
    p = np.random.default_rng(0).random(20) ** 4
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])


def test_holm_leaves_out_what_was_not_tested() -> None:
    found = holm([math.nan, 0.01, 0.04])
    assert math.isnan(found[0])
    assert found[1:].tolist() == pytest.approx([0.02, 0.04])
    assert len(holm([])) == 0
    assert np.isnan(holm([math.nan])).all()
