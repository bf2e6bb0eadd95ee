from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from torch.testing import assert_close

import undrift as ud
from laws import TRAINING, classified, mlp
from quadratics import BY_ONES, P2, P3, SIZED, Quadratics, remembered, walk
from undrift import Algorithm
from undrift.algorithms import FedDyn, FedProx
from undrift.algorithms.feddyn import DynamicRegularizer
from undrift.core.tree import Tree
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import Message, State

COUNTS, COHORTS = np.array([1, 4, 2]), [[0, 1], [1, 2], [0, 2], [0, 1, 2], [1]]
LOCAL = [{}, {"momentum": 0.5}, {"lr_decay": 0.8}, {"weight_decay": 0.1}]


def path_of(
    alpha: float, shares: np.ndarray, momentum: float = 0.0, lr_decay: float = 1.0, weight_decay: float = 0.0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """FedDyn with a table of all clients' drifts q_i: the spring is α/(N p_i), x ← mean_S y_i + mean_all q_i."""
    x, drift, states = np.array(P3.start), np.zeros((3, 1)), []
    stiff = alpha / (3 * shares)
    for number, cohort in enumerate(COHORTS):
        weights, mean = shares[cohort] / shares[cohort].sum(), np.zeros(1)
        for weight, i in zip(weights, cohort, strict=True):

            def direction(y: np.ndarray, i: int = i, x: np.ndarray = x, held: np.ndarray = drift[i]) -> np.ndarray:
                return P3.a[i] * (y - P3.b[i]) + weight_decay * y + stiff[i] * (held + y - x)

            y = walk(x, direction, COUNTS[i], lr=P3.lr * lr_decay**number, momentum=momentum)
            drift = drift + np.eye(3)[:, [i]] * (y - x)
            mean = mean + weight * y
        x = mean + drift.mean(0)
        states.append((x, -stiff[:, None] * drift))
    return states


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("local", LOCAL)
def test_by_hand(weighting: str, local: dict[str, float]) -> None:
    """Partial participation, unequal steps, both objectives; h is the mean of everybody's ĝ_i in every round."""
    shares = np.full(3, 1 / 3) if weighting == "uniform" else COUNTS / COUNTS.sum()
    expected = path_of(0.4, shares, **local)

    def compare(row: dict[str, Any], run: ud.Run) -> None:
        x, slopes = expected[row["round"] - 1]
        server, clients = remembered(run, "DynamicRegularizer")
        np.testing.assert_allclose(run.parameters["point"], x, rtol=1e-12)
        np.testing.assert_allclose(clients["slope"], slopes, rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(server["slope"], shares @ clients["slope"], rtol=1e-11, atol=1e-14)

    options = {"cohort": COHORTS, "weighting": weighting, **BY_ONES, **local}
    SIZED.run(FedDyn(0.4), len(COHORTS), callbacks=[compare], **options)


@pytest.mark.parametrize("cohort", [None, 2])
def test_ends_at_the_optimum(cohort: int | None) -> None:
    path, run = P3.run(FedDyn(0.5), 230, cohort=cohort, steps=5)
    np.testing.assert_allclose(path[-1], 7 / 3, rtol=1e-9)
    server, clients = remembered(run, "DynamicRegularizer")
    np.testing.assert_allclose(server["slope"], 0, atol=1e-8)
    np.testing.assert_allclose(clients["slope"], P3.a * (7 / 3 - P3.b), rtol=1e-8)  # ĝ_i → ∇f_i(x*)


def test_weighted_by_samples_it_ends_at_their_optimum() -> None:
    problem = Quadratics(**vars(P3) | {"samples": (5, 2, 3)})
    options = {"cohort": 2, "weighting": "samples", "steps": None, "batch_size": 1}
    path, _ = problem.run(FedDyn(1.0), 130, **options)
    np.testing.assert_allclose(path[-1], 1.7647058824, rtol=1e-9)


@pytest.mark.parametrize(("cohort", "rate"), [([0, 1, 2], 2.0), ([0, 2], 5 / 3), ([1], 4 / 3)])
def test_first_round_is_a_longer_step_of_fedprox(cohort: list[int], rate: float) -> None:
    """η_g = 1 + |S|/N."""
    theirs, _ = P3.run(FedProx(0.5), 1, cohort=[cohort], server_lr=rate)
    np.testing.assert_allclose(P3.run(FedDyn(0.5), 1, cohort=[cohort])[0], theirs, rtol=1e-14)


def test_one_step() -> None:
    """y_i = x − η (g_i − ĝ_i): at its first step a client feels no spring."""
    x, slopes, h, alpha = np.array(P2.start), np.zeros((2, 1)), np.zeros(1), 0.5
    expected = []
    for _ in range(4):
        y = x - P2.lr * (P2.a * (x - P2.b) - slopes)
        slopes = slopes - alpha * (y - x)
        h = h - alpha * (y - x).mean(0)
        x = y.mean(0) - h / alpha
        expected.append(x)
    np.testing.assert_allclose(P2.run(FedDyn(alpha), 4, steps=1)[0], expected, rtol=1e-12)


@dataclass(frozen=True)
class Frozen(DynamicRegularizer):
    """Slopes that never change."""

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, client, {}

    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        return updates, server


@dataclass(frozen=True)
class Still(Algorithm):
    weighting: ClassVar[str] = "uniform"

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Frozen(0.3),)


def test_frozen_at_zero_it_is_fedprox() -> None:
    def train(algorithm: Algorithm) -> Tree:
        return ud.simulate(algorithm, mlp(), classified(), weighting="uniform", **TRAINING).parameters

    assert_close(train(Still()), train(FedProx(0.3)), rtol=1e-14, atol=1e-15)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="alpha must be greater than 0, got 0"):
        FedDyn(0)
    with pytest.raises(ValueError, match="FedDyn fixes its own server step; server_lr must be 1, got 2"):
        P2.run(FedDyn(), 1, server_lr=2.0)
