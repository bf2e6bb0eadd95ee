from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quadratics import P2, Quadratics
from undrift.algorithms import FedAvg, FedExP

AXES = Quadratics(tuple(tuple(map(float, row)) for row in np.eye(4)), ((1.0,) * 4,) * 4, (0.0,) * 4, lr=0.1, steps=1)


def updates(problem: Quadratics, x: np.ndarray) -> np.ndarray:
    return (1 - (1 - problem.lr * problem.a) ** problem.steps) * (problem.b - x)


def stretch(each: np.ndarray, weights: np.ndarray, eps: float) -> float:
    """η_g by the paper's formula."""
    mean = weights @ each
    return float(max(1, weights @ (each**2).sum(1) / (2 * (mean @ mean + eps))))


@pytest.mark.parametrize(("weighting", "weights"), [("uniform", [0.5, 0.5]), ("samples", [0.25, 0.75])])
def test_one_step_by_hand(weighting: str, weights: list[float]) -> None:
    problem = Quadratics(((1.0, 2.0), (3.0, 1.0)), ((-6.0, 4.0), (2.0, -2.0)), (1.0, 1.0), lr=0.1, samples=(1, 3))
    w, x = np.array(weights), np.array(problem.start)
    each = updates(problem, x)
    factor = stretch(each, w, 0.01)
    assert factor > 1
    path, _ = problem.run(FedExP(0.01), 1, weighting=weighting)
    np.testing.assert_allclose(path[0], x + factor * (w @ each), rtol=1e-12)


def test_orthogonal_updates_of_one_length() -> None:
    """ε = 0: M of them give η_g = M/2."""
    np.testing.assert_allclose(AXES.run(FedExP(0.0), 1)[0][0], 4 / 2 * 0.1 / 4, rtol=1e-12)


def test_two_clients_that_do_not_disagree_are_averaged() -> None:
    """ε = 0, two clients: η_g > 1 exactly where ⟨Δ₁, Δ₂⟩ < 0."""
    for corner, longer in ((5.0, False), (2.0, True)):
        problem = Quadratics(((1.0,), (1.0,)), ((1.0,), (corner,)), (1.8 if longer else 0.5,), lr=0.1)
        ahead, average = problem.run(FedExP(0.0), 1)[0], problem.run(FedAvg(), 1)[0]
        assert (not np.allclose(ahead, average)) == longer


def test_at_rest_without_eps() -> None:
    """All updates vanish, or cancel: nothing to stretch, and no division by zero."""
    still = Quadratics(((1.0,), (1.0,)), ((2.0,), (2.0,)), (2.0,), lr=0.1)
    assert still.run(FedExP(0.0), 2)[0].tolist() == [[2.0], [2.0]]
    torn = Quadratics(((1.0,), (1.0,)), ((-2.0,), (2.0,)), (0.0,), lr=0.25)
    assert torn.run(FedExP(0.0), 2)[0].tolist() == [[0.0], [0.0]]


def test_evaluation_uses_the_mean_of_the_last_two_iterates() -> None:
    curvature, centre = 1.5, -0.5
    test = (torch.zeros(2, 1, dtype=torch.float64), torch.tensor([[[curvature], [centre]]] * 2, dtype=torch.float64))
    path, run = P2.run(FedExP(0.1), 4, test=test)
    np.testing.assert_allclose(path[:2, 0], [1.725355256, 2.2788061056], rtol=1e-9)  # goes on from x¹, not from a mean
    shown = np.array([path[0], *(path[1:] + path[:-1]) / 2])[:, 0]
    np.testing.assert_allclose(run.history.loss, 0.5 * curvature * (shown - centre) ** 2, rtol=1e-12)
    np.testing.assert_allclose(run.parameters["point"], shown[-1:])  # the user gets the model that was evaluated
    np.testing.assert_allclose(run.models[0]["point"], path[-1])
    assert run.evaluate().loss[0] == pytest.approx(run.history.loss.iloc[-1])


def test_limit() -> None:
    np.testing.assert_allclose(P2.run(FedExP(0.1), 100)[0][-1], [2.9142857143], rtol=1e-9)


def test_small_eps_oscillates() -> None:
    path, _ = P2.run(FedExP(1e-3), 60)
    assert np.ptp(path[-10:]) > 0.1


@pytest.mark.parametrize(("options", "said"), [({"eps": -1.0}, "eps must be at least 0, got -1.0")])
def test_refuses(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FedExP(**options)


def test_refuses_a_server_rate() -> None:
    with pytest.raises(ValueError, match=r"FedExP fixes its own server step; server_lr must be 1, got 0\.5"):
        P2.run(FedExP(), 1, server_lr=0.5)
