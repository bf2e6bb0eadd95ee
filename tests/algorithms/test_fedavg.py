from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from quadratics import BY_ONES, P2, P3, SIZED, Quadratics, walk
from undrift.algorithms import FedAvg


def slope(problem: Quadratics, client: int, y: np.ndarray) -> np.ndarray:
    return problem.a[client] * (y - problem.b[client])


def test_by_hand() -> None:
    """f_0 = ½x², f_1 = (3/2)(x − 4)², from 1, two steps of 0.1: 1 → 0.9 → 0.81 and 1 → 1.9 → 2.53."""
    path, _ = P2.run(FedAvg(), 1)
    assert path[0, 0] == pytest.approx((0.81 + 2.53) / 2, abs=1e-14)


def test_one_step_of_everybody_is_gradient_descent() -> None:
    path, _ = P3.run(FedAvg(), 5, steps=1, server_lr=0.5)
    x = np.array(P3.start)
    for reached in path:
        x = x - 0.5 * P3.lr * np.mean([slope(P3, i, x) for i in range(3)], axis=0)
        np.testing.assert_allclose(reached, x, rtol=1e-13)


def test_alike_clients_are_one() -> None:
    alike = Quadratics(((2.0,),) * 3, ((1.0,),) * 3, (5.0,), lr=0.1, steps=4)
    path, _ = alike.run(FedAvg(), 3)
    np.testing.assert_allclose(path[:, 0], 1 + 4 * 0.8 ** (4 * np.arange(1, 4)), rtol=1e-13)


def test_equal_sizes_make_weightings_equal() -> None:
    paths = [P3.run(FedAvg(), 3, weighting=w)[0] for w in ("samples", "uniform")]
    np.testing.assert_allclose(paths[0], paths[1], rtol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_weights_are_those_of_the_cohort(weighting: str, momentum: float) -> None:
    """Unequal sizes and steps (1, 4, 2), two clients at a time; momentum starts from nothing in every round."""
    counts, cohorts = np.array([1, 4, 2]), [[0, 1], [1, 2], [0, 2]]
    path, _ = SIZED.run(FedAvg(), 3, cohort=cohorts, weighting=weighting, momentum=momentum, **BY_ONES)
    x = np.array(SIZED.start)
    for cohort, reached in zip(cohorts, path, strict=True):
        weights = counts[cohort] / counts[cohort].sum() if weighting == "samples" else np.full(2, 0.5)
        ends = [walk(x, partial(slope, SIZED, i), counts[i], lr=SIZED.lr, momentum=momentum) for i in cohort]
        x = weights @ np.array(ends)
        np.testing.assert_allclose(reached, x, rtol=1e-13)
