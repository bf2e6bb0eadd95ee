from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import undrift as ud
from laws import TRAINING, classified, mlp
from quadratics import P2, Quadratics, walk
from undrift.algorithms import FedAvg, FedDPC

PLANE = Quadratics(
    ((1.0, 2.0), (0.5, 1.0), (1.5, 0.7)), ((0.0, 1.0), (4.0, -2.0), (1.0, 3.0)), (1.0, 1.0), lr=0.1, steps=2
)


def train(algorithm: ud.Algorithm, **options: Any) -> list[torch.Tensor]:
    """The whole model after every round as one vector, the initial one first."""
    path = [torch.cat([p.detach().flatten() for p in mlp().parameters()])]
    settings = TRAINING | {"weighting": "uniform"} | options
    path_of = [lambda row, run: path.append(torch.cat([p.flatten() for p in run.parameters.values()]))]
    ud.simulate(algorithm, mlp(), classified(), callbacks=path_of, **settings)
    return path


@pytest.mark.parametrize("lam", [-0.5, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("scaling", [True, False])
@pytest.mark.parametrize("projection", [True, False])
def test_by_hand(lam: float, scaling: bool, projection: bool) -> None:
    """The equations in the plane, with a server rate of 0.3 and two of three clients."""
    cohorts = [[0, 1], [1, 2], [0, 2], [0, 1]]

    def gradient(i: int, y: np.ndarray) -> np.ndarray:
        return PLANE.a[i] * (y - PLANE.b[i])

    path, _ = PLANE.run(FedDPC(lam, projection, scaling), 4, cohort=cohorts, server_lr=0.3)
    x, last = np.array(PLANE.start), np.zeros(2)
    for cohort, reached in zip(cohorts, path, strict=True):
        residuals = []
        for i in cohort:
            y = walk(x, partial(gradient, i), PLANE.steps, lr=PLANE.lr)
            delta = (x - y) / PLANE.lr
            r = delta - (delta @ last / (last @ last)) * last if projection and last.any() else delta
            residuals.append((lam + np.linalg.norm(delta) / np.linalg.norm(r)) * r if scaling else r)
        last = np.mean(residuals, axis=0)
        x = x - 0.3 * PLANE.lr * last
        np.testing.assert_allclose(reached, x, rtol=1e-12)


@pytest.mark.parametrize("lam", [-0.5, 0.0, 1.0])
def test_an_update_keeps_its_length_and_gets_lam_times_that_of_what_is_left(lam: float) -> None:
    """‖Δ_i‖ + λ ‖r_i‖, where ‖r_i‖ is ‖Δ_i‖ times the sine of the angle to the last global update."""
    (first, second), _ = PLANE.run(FedDPC(lam), 2, cohort=[[0], [1]])
    last, update = first - PLANE.start, walk(first, lambda y: PLANE.a[1] * (y - PLANE.b[1]), 2, lr=PLANE.lr) - first
    left = np.sqrt(update @ update - (update @ last) ** 2 / (last @ last))
    assert np.linalg.norm(second - first) == pytest.approx(np.linalg.norm(update) + lam * left, rel=1e-12)


def test_successive_updates_are_orthogonal() -> None:
    steps = torch.stack(train(FedDPC(lam=0.5), rounds=6)).diff(dim=0)
    for before, after in pairwise(steps):
        assert abs(torch.nn.functional.cosine_similarity(before, after, dim=0)) < 1e-12


def test_the_first_round_is_fedavg_with_a_longer_step() -> None:
    assert_close(train(FedDPC(lam=0.5))[1], train(FedAvg(), server_lr=1.5)[1], rtol=1e-12, atol=1e-12)


def test_without_projection_it_is_fedavg_with_a_longer_step() -> None:
    assert_close(train(FedDPC(lam=0.5, projection=False)), train(FedAvg(), server_lr=1.5), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_parallel_update_counts_as_zero(dtype: str) -> None:
    """On a line every update is parallel to the last one: the second round rests, the third begins anew."""
    path, _ = P2.run(FedDPC(lam=1.0), 3, dtype=dtype)
    first = 1 + 2 * 0.67  # FedAvg's first step is 0.67
    tolerance = 1e-12 if dtype == "float64" else 1e-6
    assert path[0, 0] == pytest.approx(first, rel=tolerance)
    assert path[1, 0] == path[0, 0]
    assert path[2, 0] == pytest.approx(first + 2 * (0.35 * (2.9142857142857 - first)), rel=max(tolerance, 1e-12))
