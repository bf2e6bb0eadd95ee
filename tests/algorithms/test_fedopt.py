from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quadratics import Quadratics
from undrift.algorithms import FedAdagrad, FedAdam, FedYogi

TWO = Quadratics(((1.0, 2.0), (3.0, 0.5)), ((0.0, 1.0), (6.0, -4.0)), (1.0, 1.0), lr=0.1, samples=(3, 1))
FAMILY = {"adagrad": FedAdagrad, "adam": FedAdam, "yogi": FedYogi}


def mean_update(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Clients walk the part 1 − (1 − ηa)^K of the way to their centres."""
    return weights @ ((1 - (1 - TWO.lr * TWO.a) ** TWO.steps) * (TWO.b - x))


def second_moment(rule: str, s: np.ndarray, square: np.ndarray, beta2: float) -> np.ndarray:
    if rule == "adagrad":
        return s + square
    if rule == "adam":
        return beta2 * s + (1 - beta2) * square
    return s - (1 - beta2) * square * np.sign(s - square)


@pytest.mark.parametrize("rule", FAMILY)
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_by_hand(rule: str, weighting: str) -> None:
    """Four rounds, elementwise, weighted; D² lies on both sides of s, where Yogi's sign matters."""
    beta1, beta2, tau, rate = 0.6, 0.8, 0.25, 0.2
    options: dict[str, Any] = {"beta1": beta1, "tau": tau} | ({} if rule == "adagrad" else {"beta2": beta2})
    weights = np.array([0.75, 0.25]) if weighting == "samples" else np.array([0.5, 0.5])
    x, m, s = np.array(TWO.start), np.zeros(2), np.full(2, tau**2)
    expected, sides = [], set()
    for _ in range(4):
        d = mean_update(x, weights)
        sides |= set(np.sign(s - d**2))
        m = beta1 * m + (1 - beta1) * d
        s = second_moment(rule, s, d**2, beta2)
        x = x + rate * m / (np.sqrt(s) + tau)
        expected.append(x)
    assert sides == {-1.0, 1.0}
    path, run = TWO.run(FAMILY[rule](**options), 4, server_lr=rate, weighting=weighting)
    np.testing.assert_allclose(path, expected, rtol=1e-12)
    second = run.memory.server["AdaptiveStep"]["second"]["point"]
    np.testing.assert_allclose(second, s, rtol=1e-12)
    assert (second >= 0).all()


def test_first_round_of_adam() -> None:
    """x¹ = x⁰ + η_g (1 − β₁) D / (√(β₂ τ² + (1 − β₂) D²) + τ): no bias correction, s starts at τ²."""
    beta1, beta2, tau, rate = 0.9, 0.99, 1e-3, 0.1
    d = mean_update(np.array(TWO.start), np.array([0.75, 0.25]))
    expected = 1 + rate * (1 - beta1) * d / (np.sqrt(beta2 * tau**2 + (1 - beta2) * d**2) + tau)
    np.testing.assert_allclose(TWO.run(FedAdam(), 1, server_lr=rate)[0][0], expected, rtol=1e-12)


def test_yogi_raises_and_lowers_s_by_a_share_of_the_square_only() -> None:
    """D² above s: Yogi raises s by (1 − β₂) D², Adam by (1 − β₂)(D² − s); below, Yogi lowers it by as much."""
    for tau in (1e-3, 30.0):
        d = mean_update(np.array(TWO.start), np.array([0.75, 0.25]))
        rises = {}
        for rule in ("adam", "yogi"):
            _, run = TWO.run(FAMILY[rule](beta2=0.9, tau=tau), 1, server_lr=1e-3)
            rises[rule] = run.memory.server["AdaptiveStep"]["second"]["point"].numpy() - tau**2
        sign = 1 if tau < 1 else -1
        np.testing.assert_allclose(rises["yogi"], sign * 0.1 * d**2, rtol=1e-9)
        np.testing.assert_allclose(rises["adam"], 0.1 * (d**2 - tau**2), rtol=1e-9)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (FedAdam, {"beta1": 1.0}, "beta1 must be at least 0 and less than 1, got 1.0"),
        (FedYogi, {"beta2": -0.5}, "beta2 must be at least 0 and less than 1, got -0.5"),
        (FedAdagrad, {"tau": 0.0}, "tau must be greater than 0, got 0.0"),
    ],
)
def test_refuses(kind: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind(**options)
