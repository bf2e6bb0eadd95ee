from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import undrift as ud
from quadratics import P2, Quadratics, remembered, walk
from undrift.algorithms import FedDyn, FedSpeed

PLANE = Quadratics(
    ((1.0, 2.0), (3.0, 1.5), (2.0, 0.5)), ((0.0, 1.0), (4.0, -2.0), (1.0, 3.0)), (1.0, 1.0), lr=0.05, steps=3
)
COHORTS = [[0, 1], [1, 2], [0, 2], [0, 1, 2]]


def path_of(lam: float, rho: float, mix: float, weight_decay: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """FedSpeed as its equations say, the second gradient at a distance ρ along the first: x and all ĝ_i."""
    x, own, states = np.array(PLANE.start), np.zeros((3, 2)), []

    def gradient(i: int, y: np.ndarray) -> np.ndarray:
        return PLANE.a[i] * (y - PLANE.b[i])

    for cohort in COHORTS:
        ends, slopes = [], own.copy()
        for i in cohort:

            def direction(y: np.ndarray, i: int = i, x: np.ndarray = x, slope: np.ndarray = own[i]) -> np.ndarray:
                first = gradient(i, y)
                second = gradient(i, y + rho * first / (np.linalg.norm(first) + 1e-7))
                return (1 - mix) * first + mix * second + weight_decay * y - slope + (y - x) / lam

            ends.append(walk(x, direction, PLANE.steps, lr=PLANE.lr))
            slopes[i] = own[i] - (ends[-1] - x) / lam
        x, own = np.mean(ends, 0) - lam * slopes.mean(0), slopes
        states.append((x, own))
    return states


@pytest.mark.parametrize("mix", [1.0, 0.3])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_by_hand(mix: float, weight_decay: float, engine: str) -> None:
    expected = path_of(2.0, 0.2, mix, weight_decay)

    def compare(row: dict[str, Any], run: ud.Run) -> None:
        x, own = expected[row["round"] - 1]
        server, clients = remembered(run, "DynamicRegularizer")
        np.testing.assert_allclose(run.parameters["point"], x, rtol=1e-11)
        np.testing.assert_allclose(clients["slope"], own, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(server["slope"], own.mean(0), rtol=1e-10, atol=1e-13)

    options = {"cohort": COHORTS, "weight_decay": weight_decay, "engine": engine}
    PLANE.run(FedSpeed(2.0, 0.2, mix), len(COHORTS), callbacks=[compare], **options)


def test_it_is_not_feddyn() -> None:
    assert np.abs(P2.run(FedSpeed(2.0, 0.1), 1)[0] - P2.run(FedDyn(0.5), 1)[0]) > 1e-2


def test_a_client_at_its_minimum_stays() -> None:
    """A gradient of zero has no direction."""
    alone = Quadratics(((2.0, 1.0),), ((1.0, 3.0),), (1.0, 3.0), lr=0.1)
    np.testing.assert_array_equal(alone.run(FedSpeed(), 3)[0], [[1.0, 3.0]] * 3)


def test_the_plug_in_changes_the_gradient_that_is_stepped_along() -> None:
    """|ρ| ⊙ g with g from uphill; with one sample |ρ| = ℓ |∇ℓ| at y."""
    y, lam, rho, lr = 1.0, 2.0, 0.2, 0.05
    uphill = y + rho * np.sign(2 * (y - 3.0))
    slope = 2 * (uphill - 3.0)
    y = y - lr * abs((y - 3.0) ** 2 * 2 * (y - 3.0)) * slope
    x = y + (y - 1.0)  # ĝ = −(y − x)/λ, and the server subtracts λ ĝ
    alone = Quadratics(((2.0,),), ((3.0,),), (1.0,), lr=lr, steps=1)
    algorithm = FedSpeed(lam, rho, pgvc=ud.PGVC(layers="all", form="magnitude"))
    np.testing.assert_allclose(alone.run(algorithm, 1)[0], [[x]], rtol=1e-7)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="lam must be greater than 0, got 0"):
        FedSpeed(lam=0)
    with pytest.raises(ValueError, match="rho must be at least 0, got -1"):
        FedSpeed(rho=-1)
    with pytest.raises(ValueError, match="mix must be at least 0 and at most 1, got 2"):
        FedSpeed(mix=2)
    with pytest.raises(ValueError, match="FedSpeed fixes its own server step"):
        P2.run(FedSpeed(), 1, server_lr=2.0)
