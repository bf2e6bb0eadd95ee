"""Conformal prediction sets: by hand, and the coverage they guarantee."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from undrift.statistics.conformal import METHODS, Conformal, check_levels, fewest, threshold

P = np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]])
NONE = np.zeros(2)


def test_scores_by_hand() -> None:
    np.testing.assert_allclose(Conformal("threshold").scores(P, NONE), [[0.4, 0.7, 0.9], [0.8, 0.7, 0.5]])
    np.testing.assert_allclose(Conformal("adaptive").scores(P, NONE), [[0.6, 0.9, 1.0], [1.0, 0.8, 0.5]])
    shares = np.array([0.5, 1.0])
    randomised = Conformal("adaptive", randomised=True).scores(P, shares)
    np.testing.assert_allclose(randomised, [[0.3, 0.75, 0.95], [0.8, 0.5, 0.0]])
    regularised = Conformal("regularised", penalty=0.1, free_ranks=1).scores(P, NONE)
    np.testing.assert_allclose(regularised, [[0.6, 1.0, 1.2], [1.2, 0.9, 0.5]])
    unpenalised = Conformal("regularised", penalty=0).scores(P, NONE)
    np.testing.assert_array_equal(unpenalised, Conformal("adaptive").scores(P, NONE))


def test_the_threshold_is_an_exact_rank() -> None:
    scores = np.arange(1, 100) / 100  # 99 of them
    assert threshold(scores, 0.55) == 0.55  # the 55th, though 100 × 0.55 is a bit more in floating point
    assert threshold(scores, 0.551) == 0.56
    assert threshold(scores, 0.99) == 0.99
    with pytest.raises(
        ValueError, match=r"level 0\.995 needs at least 199 samples for calibration, half of .*, got 99"
    ):
        threshold(scores, 0.995)
    assert [fewest(level) for level in (0.5, 0.9, 0.95)] == [1, 9, 19]


def test_sets_by_hand() -> None:
    """Six samples, three of which calibrate: which, the seed says."""
    targets = np.array([0, 1, 0, 1, 0, 1])
    of_truth = np.array([0.9, 0.8, 0.7, 0.6, 0.55, 0.3])
    p = np.where(targets[:, None] == np.arange(2), of_truth[:, None], 1 - of_truth[:, None]).astype(np.float32)
    rows = np.random.default_rng(3).permutation(6)
    limit = 1 - np.sort(of_truth[rows[:3]])[1]  # level 0.5 of three: the second largest p
    rest = rows[3:]
    sets = np.stack([1 - p[rest, 0] <= limit + 1e-6, 1 - p[rest, 1] <= limit + 1e-6], axis=1)
    found = Conformal(seed=3).evaluate(p, targets, [0.5])[0]
    assert found.coverage == pytest.approx(sets[np.arange(3), targets[rest]].mean())
    assert found.size == pytest.approx(sets.sum(1).mean())
    for number in range(2):
        mine = targets[rest] == number
        assert found.class_size[number] == pytest.approx(sets.sum(1)[mine].mean())
        assert found.class_coverage[number] == pytest.approx(sets[mine, number].mean())


@pytest.mark.parametrize(("method", "randomised"), [(name, False) for name in METHODS] + [("adaptive", True)])
def test_the_coverage_is_what_was_promised(method: str, randomised: bool) -> None:
    """Of 19 calibration samples, level 0.9 is reached on average over splits, neither less nor more."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(38 * 400, 4))
    p = np.exp(2 * logits) / np.exp(2 * logits).sum(1, keepdims=True)
    truth = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)  # the model is overconfident
    targets = (generator.random((len(p), 1)) > truth.cumsum(1)).sum(1).clip(max=3)
    parts = zip(np.split(p.astype(np.float32), 400), np.split(targets, 400), strict=True)
    sets = Conformal(method, randomised=randomised)
    found = [sets.evaluate(part, true, [0.9])[0].coverage for part, true in parts]
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - 0.9) < 4 * error
    assert error < 0.01


def test_randomised_sets_are_the_same_for_the_same_seed() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(5), 60).astype(np.float32)
    targets = p.argmax(1)
    first, again, other = (
        Conformal("adaptive", randomised=True, seed=seed).evaluate(p, targets, [0.7])[0].size for seed in (0, 0, 1)
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "thresold"}, "did you mean 'threshold'"),
        ({"randomised": True}, "randomised=True is for the methods 'adaptive' and 'regularised'"),
        ({"penalty": -1}, "penalty must be at least 0"),
        ({"free_ranks": -1}, "free_ranks must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Conformal(**options)


@pytest.mark.parametrize("levels", [0, 1, [0.9, 1.2], [-0.1], [], "high", [None]])
def test_levels_are_between_0_and_1(levels: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="levels"):
        check_levels(levels)
