from __future__ import annotations

import numpy as np
import pytest

from quadratics import P2, P3, Quadratics
from undrift.algorithms import FedAvg, FedProx


def test_by_hand() -> None:
    """f = ½x² from 1 with μ = 1 and steps of ½: 1 → ½, then slope ½ + spring (½ − 1) = 0: it rests there."""
    alone = Quadratics(((1.0,),), ((0.0,),), (1.0,), lr=0.5)
    path, _ = alone.run(FedProx(mu=1.0), 2)
    np.testing.assert_allclose(path[:, 0], [0.5, 0.25], rtol=1e-14)  # the next round is anchored at ½


def test_the_spring_is_inside_the_momentum_buffer() -> None:
    """Buffer 1, then 0.5·1 + ½ + μ(½ − 1) = ½: 1 → ½ → ¼."""
    alone = Quadratics(((1.0,),), ((0.0,),), (1.0,), lr=0.5)
    path, _ = alone.run(FedProx(mu=1.0), 1, momentum=0.5)
    assert path[0, 0] == pytest.approx(0.25, abs=1e-14)


def test_one_step_feels_no_spring() -> None:
    near, far = (P3.run(algorithm, 4, steps=1, cohort=2)[0] for algorithm in (FedProx(mu=5.0), FedAvg()))
    np.testing.assert_allclose(near, far, rtol=0)


def test_a_stiff_spring_holds_the_client_to_about_one_step() -> None:
    """With η(a + μ) = 1 the second step leads back to where slope and spring balance: x − a (x − b)/(a + μ)."""
    problem = Quadratics(((1.0,),), ((0.0,),), (1.0,), lr=0.01, steps=50)
    path, _ = problem.run(FedProx(mu=99.0), 1)
    assert path[0, 0] == pytest.approx(1 - 1 / 100, abs=1e-12)


def test_the_coefficient_is_mu_and_not_its_half() -> None:
    path, _ = P2.run(FedProx(mu=0.5), 1)
    ends = []
    for a, b in ((1.0, 0.0), (3.0, 4.0)):
        y = 1 - 0.1 * a * (1 - b)
        ends.append(y - 0.1 * (a * (y - b) + 0.5 * (y - 1)))
    assert path[0, 0] == pytest.approx(np.mean(ends), abs=1e-14)
