from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quadratics import P2, Quadratics
from undrift.algorithms import FedAvg, FedAvgM

X0 = np.array(P2.start)


def mean_update(x: np.ndarray, problem: Quadratics = P2) -> np.ndarray:
    """Clients walk the part 1 − (1 − ηa)^K of the way to their centres."""
    return ((1 - (1 - problem.lr * problem.a) ** problem.steps) * (problem.b - x)).mean(0)


@pytest.mark.parametrize("nesterov", [False, True])
def test_two_rounds_by_hand(nesterov: bool) -> None:
    beta, rate = 0.9, 0.7
    first = mean_update(X0)
    one = X0 + rate * (first + beta * first if nesterov else first)
    second = mean_update(one)
    velocity = beta * first + second
    two = one + rate * (second + beta * velocity if nesterov else velocity)
    path, _ = P2.run(FedAvgM(beta, nesterov), 2, server_lr=rate)
    np.testing.assert_allclose(path, [one, two], rtol=1e-12)


def test_first_round_is_fedavg() -> None:
    assert P2.run(FedAvgM(0.9), 1)[0] == P2.run(FedAvg(), 1)[0]


def test_averaged_form_is_a_shorter_step() -> None:
    """v ← β v + (1 − β) Δ at the rate η_g is v ← β v + Δ at η_g (1 − β)."""
    beta, rate, x, velocity, expected = 0.9, 0.5, X0, np.zeros(1), []
    for _ in range(6):
        velocity = beta * velocity + (1 - beta) * mean_update(x)
        x = x + rate * velocity
        expected.append(x)
    path, _ = P2.run(FedAvgM(beta), 6, server_lr=rate * (1 - beta))
    np.testing.assert_allclose(path, expected, rtol=1e-12)


def test_with_one_step_it_is_the_heavy_ball() -> None:
    x, before, expected = X0, X0, []
    for _ in range(6):
        gradient = (P2.a * (x - P2.b)).mean(0)
        x, before = x - P2.lr * gradient + 0.8 * (x - before), x
        expected.append(x)
    path, _ = P2.run(FedAvgM(0.8), 6, steps=1)
    np.testing.assert_allclose(path, expected, rtol=1e-12)


def test_rests_where_fedavg_does() -> None:
    still = replace(P2, start=(2.9142857143,))
    np.testing.assert_allclose(still.run(FedAvgM(0.9), 5)[0], 2.9142857143, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"beta": 1.0}, ValueError, "beta must be at least 0 and less than 1, got 1.0"),
        ({"beta": -0.1}, ValueError, "got -0.1"),
        ({"nesterov": 1}, TypeError, "nesterov must be True or False, got 1"),
    ],
)
def test_refuses(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        FedAvgM(**options)
