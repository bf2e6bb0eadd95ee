from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laws import fedcm_point
from quadratics import BY_ONES, P2, P3, SIZED, Terrain, length, walk
from undrift.algorithms import FedAvg, FedCM

COUNTS, COHORTS = np.array([1, 4, 2]), [[0, 1], [1, 2], [0, 2], [0, 1, 2]]


def path_of(
    alpha: float, weights: np.ndarray, rho: float = 0.0, decay: float = 1.0, lam: float = 0.0, rate: float = 1.0
) -> list[np.ndarray]:
    """FedCM with K_i = (1, 4, 2), momentum ρ, a rate that decays and weight decay λ, as its equations say."""
    x, momentum, expected = np.array(P3.start), np.zeros(1), []
    for number, cohort in enumerate(COHORTS):
        lr = P3.lr * decay**number
        w = weights[cohort] / weights[cohort].sum()
        moved, slopes = np.zeros(1), np.zeros(1)
        for share, i in zip(w, cohort, strict=True):

            def direction(y: np.ndarray, i: int = i, common: np.ndarray = momentum) -> np.ndarray:
                return alpha * P3.a[i] * (y - P3.b[i]) + (1 - alpha) * common + lam * y

            y = walk(x, direction, COUNTS[i], lr=lr, momentum=rho)
            moved, slopes = moved + share * (y - x), slopes + share * (x - y) / (lr * length(COUNTS[i], rho))
        x, momentum = x + rate * moved, slopes
        expected.append(x)
    return expected


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("local", [{}, {"rho": 0.5}, {"decay": 0.8}, {"lam": 0.1}, {"rate": 0.5}])
def test_by_hand(weighting: str, local: dict[str, float]) -> None:
    """Four rounds of partial participation and unequal steps."""
    names = {"rho": "momentum", "decay": "lr_decay", "lam": "weight_decay", "rate": "server_lr"}
    settings: dict[str, Any] = {names[k]: v for k, v in local.items()}
    weights = np.ones(3) if weighting == "uniform" else COUNTS.astype(float)
    path, _ = SIZED.run(FedCM(0.3), 4, cohort=COHORTS, **BY_ONES, weighting=weighting, **settings)
    np.testing.assert_allclose(path, path_of(0.3, weights, **local), rtol=1e-12)


def test_first_round_is_fedavg_at_a_lower_rate() -> None:
    np.testing.assert_allclose(
        P2.run(FedCM(0.3), 1)[0], P2.run(FedAvg(), 1, lr=0.3 * P2.lr, weighting="uniform")[0], rtol=1e-12
    )


def test_limit() -> None:
    alpha, k = 0.1, np.full((2, 1), 2)
    terrain = Terrain(a=P2.a, b=P2.b, p=np.full((2, 1), 0.5), k=k, lr=P2.lr, start=np.array(P2.start))
    np.testing.assert_allclose(fedcm_point(alpha)(terrain), [2.9924050633], rtol=1e-9)
    still = replace(P2, start=(2.9924050633,))
    np.testing.assert_allclose(still.run(FedCM(alpha), 5)[0], 2.9924050633, rtol=1e-9)


def test_adam_sends_the_mean_of_its_directions() -> None:
    """One step each: the momentum is the mean of α g + (1 − α) Δ, which no displacement of Adam's would tell."""
    alpha, momentum, x = 0.4, np.zeros(1), np.array(P2.start)
    for rounds in (1, 2, 3):
        momentum = alpha * (P2.a * (x - P2.b)).mean(0) + (1 - alpha) * momentum
        path, run = P2.run(FedCM(alpha), rounds, steps=1, optimizer="adam")
        np.testing.assert_allclose(run.memory.server["ClientMomentum"]["momentum"]["point"], momentum, rtol=1e-12)
        x = path[-1]


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_refuses(alpha: float) -> None:
    with pytest.raises(ValueError, match=f"alpha must be greater than 0 and at most 1, got {alpha}"):
        FedCM(alpha)
