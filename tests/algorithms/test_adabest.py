from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import undrift as ud
from quadratics import BY_ONES, P2, P3, SIZED, remembered, walk
from undrift.algorithms import AdaBest, FedAvg

COUNTS, COHORTS = np.array([1, 4, 2]), [[0, 1], [1, 2], [1], [1, 0], [0, 1, 2]]  # away for one round and for three
LOCAL = [{}, {"momentum": 0.5}, {"lr_decay": 0.8}, {"weight_decay": 0.1}]


def path_of(
    mu: float,
    beta: float,
    per_step: bool,
    weights: np.ndarray,
    momentum: float = 0.0,
    lr_decay: float = 1.0,
    weight_decay: float = 0.0,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """AdaBest with K_i = (1, 4, 2) as its equations say: x and all h_i after every round."""
    x, average, own, last, states = np.array(P3.start), np.array(P3.start), np.zeros((3, 1)), np.zeros(3), []
    for t, cohort in enumerate(COHORTS, 1):
        w, mean = weights[cohort] / weights[cohort].sum(), np.zeros(1)
        for weight, i in zip(w, cohort, strict=True):

            def direction(y: np.ndarray, i: int = i, bias: np.ndarray = own[i].copy()) -> np.ndarray:  # noqa: B008
                return P3.a[i] * (y - P3.b[i]) + weight_decay * y - bias

            y = walk(x, direction, COUNTS[i], lr=P3.lr * lr_decay ** (t - 1), momentum=momentum)
            fresh = (mu / COUNTS[i] if per_step else mu) * (x - y)
            own[i] = fresh if last[i] == 0 else own[i] / (t - last[i]) + fresh
            last[i] = t
            mean = mean + weight * y
        x, average = mean - beta * (average - mean), mean
        states.append((x, own.copy()))
    return states


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("local", LOCAL)
def test_by_hand(per_step: bool, weighting: str, local: dict[str, float]) -> None:
    """Partial participation, unequal steps, memories that fade by the rounds of absence."""
    weights = np.ones(3) if weighting == "uniform" else COUNTS.astype(float)
    expected = path_of(0.3, 0.6, per_step, weights, **local)

    def compare(row: dict[str, Any], run: ud.Run) -> None:
        x, own = expected[row["round"] - 1]
        np.testing.assert_allclose(run.parameters["point"], x, rtol=1e-12)
        np.testing.assert_allclose(remembered(run, "AdaptiveBias")[1]["bias"], own, rtol=1e-12, atol=1e-15)

    options = {"cohort": COHORTS, "weighting": weighting, **BY_ONES, **local}
    SIZED.run(AdaBest(0.3, 0.6, per_step), len(COHORTS), callbacks=[compare], **options)


@pytest.mark.parametrize("cohort", [[0, 1, 2], [0, 2]])
def test_first_round_is_a_longer_step_of_fedavg(cohort: list[int]) -> None:
    """η_g = 1 + β; with β = 0 it is FedAvg's."""
    for beta in (0.6, 0.0):
        theirs, _ = P3.run(FedAvg(), 1, cohort=[cohort], server_lr=1 + beta)
        np.testing.assert_allclose(P3.run(AdaBest(0.3, beta), 1, cohort=[cohort])[0], theirs, rtol=1e-14)


def test_it_is_held_by_the_start() -> None:
    """The limit minimises f + (μ(1 − β)/2)(x − x⁰)²."""
    path, _ = P2.run(AdaBest(0.5, 0.5), 220)
    np.testing.assert_allclose(path[-1], 2.7777777778, rtol=1e-9)


def test_per_step_with_uniform_weights_clients_count_by_their_steps() -> None:
    pull, hold = COUNTS[:, None] * P3.a / 3, 2.0 * (1 - 0.5)
    expected = ((pull * P3.b).sum(0) + hold * 1.0) / (pull.sum(0) + hold)
    path, _ = SIZED.run(AdaBest(2.0, 0.5, per_step=True), 120, **BY_ONES)
    np.testing.assert_allclose(path[-1], expected, rtol=1e-8)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="beta must be at least 0 and less than 1, got 1"):
        AdaBest(beta=1)
    with pytest.raises(ValueError, match="mu must be at least 0, got -1"):
        AdaBest(mu=-1)
    with pytest.raises(TypeError, match="per_step must be True or False, got 1"):
        AdaBest(per_step=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="AdaBest fixes its own server step"):
        P2.run(AdaBest(), 1, server_lr=2.0)
