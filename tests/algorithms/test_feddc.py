from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import undrift as ud
from laws import TRAINING, classified, mlp
from quadratics import BY_ONES, P2, P3, SIZED, Quadratics, length, remembered, walk
from undrift.algorithms import FedDC, FedDyn, FedProx
from undrift.algorithms.feddyn import DynamicRegularizer
from undrift.algorithms.scaffold import ControlVariates
from undrift.core.tree import Tree
from undrift.methods.correction import At, Correction
from undrift.methods.setting import Setting
from undrift.protocol import Message, State

COUNTS, COHORTS = np.array([1, 4, 2]), [[0, 1], [1, 2], [0, 2], [0, 1, 2], [1]]
LOCAL = [{}, {"momentum": 0.5}, {"lr_decay": 0.8}, {"weight_decay": 0.1}]


def path_of(
    alpha: float, shares: np.ndarray, momentum: float = 0.0, lr_decay: float = 1.0, weight_decay: float = 0.0
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """FedDC with K_i = (1, 4, 2) as its equations say: x, all drifts h_i, c and all c_i after every round."""
    x, h, c, own, states = np.array(P3.start), np.zeros((3, 1)), np.zeros(1), np.zeros((3, 1)), []
    stiff = alpha / (3 * shares)
    for number, cohort in enumerate(COHORTS):
        lr, weights = P3.lr * lr_decay**number, shares[cohort] / shares[cohort].sum()
        mean, changed, drifts, controls = np.zeros(1), np.zeros(1), h.copy(), own.copy()
        for weight, i in zip(weights, cohort, strict=True):

            def direction(
                y: np.ndarray, i: int = i, x: np.ndarray = x, h: np.ndarray = h[i], c: np.ndarray = c - own[i]
            ) -> np.ndarray:
                return P3.a[i] * (y - P3.b[i]) + weight_decay * y + stiff[i] * (y - x + h) + c

            y = walk(x, direction, COUNTS[i], lr=lr, momentum=momentum)
            drifts[i] = h[i] + y - x
            controls[i] = own[i] - c + (x - y) / (length(COUNTS[i], momentum) * lr)
            mean = mean + weight * y
            changed = changed + shares[i] * (controls[i] - own[i])
        x, h, c, own = mean + drifts.mean(0), drifts, c + changed, controls
        states.append((x, h, c, own))
    return states


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("local", LOCAL)
def test_by_hand(weighting: str, local: dict[str, float]) -> None:
    """Partial participation, unequal steps, both objectives; c is the mean of everybody's c_i in every round."""
    shares = np.full(3, 1 / 3) if weighting == "uniform" else COUNTS / COUNTS.sum()
    expected = path_of(0.4, shares, **local)

    def compare(row: dict[str, Any], run: ud.Run) -> None:
        x, h, c, own = expected[row["round"] - 1]
        server, clients = remembered(run, "ControlVariates")
        np.testing.assert_allclose(run.parameters["point"], x, rtol=1e-12)
        np.testing.assert_allclose(clients["control"], own, rtol=1e-11)
        np.testing.assert_allclose(server["control"], c, rtol=1e-11)
        np.testing.assert_allclose(server["control"], shares @ clients["control"], rtol=1e-11)
        server, clients = remembered(run, "DynamicRegularizer")
        np.testing.assert_allclose(clients["slope"], -0.4 / (3 * shares[:, None]) * h, rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(server["slope"], -0.4 * h.mean(0), rtol=1e-11, atol=1e-14)

    options = {"cohort": COHORTS, "weighting": weighting, **BY_ONES, **local}
    SIZED.run(FedDC(0.4), len(COHORTS), callbacks=[compare], **options)


@pytest.mark.parametrize("cohort", [None, 2])
def test_ends_at_the_optimum(cohort: int | None) -> None:
    np.testing.assert_allclose(P3.run(FedDC(0.1), 120, cohort=cohort)[0][-1], 7 / 3, rtol=1e-9)


def test_weighted_by_samples_it_ends_at_their_optimum() -> None:
    problem = Quadratics(**vars(P3) | {"samples": (5, 2, 3)})
    options = {"cohort": 2, "weighting": "samples", "steps": None, "batch_size": 1}
    np.testing.assert_allclose(problem.run(FedDC(0.1), 120, **options)[0][-1], 1.7647058824, rtol=1e-9)


@pytest.mark.parametrize(("cohort", "rate"), [([0, 1, 2], 2.0), ([0, 2], 5 / 3), ([1], 4 / 3)])
def test_first_round_is_a_longer_step_of_fedprox(cohort: list[int], rate: float) -> None:
    """η_g = 1 + |S|/N."""
    theirs, _ = P3.run(FedProx(0.5), 1, cohort=[cohort], server_lr=rate)
    np.testing.assert_allclose(P3.run(FedDC(0.5), 1, cohort=[cohort])[0], theirs, rtol=1e-14)


@dataclass(frozen=True)
class Frozen(ControlVariates):
    """Controls that never change."""

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        same = {k: torch.zeros_like(v) for k, v in client["control"].items()}
        return update, client, {"change": same}


@dataclass(frozen=True)
class WithoutControl(FedDC):
    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return Frozen(setting.layout.names, "II"), DynamicRegularizer(self.alpha)


def test_without_control_it_is_feddyn() -> None:
    def train(algorithm: ud.Algorithm) -> Tree:
        return ud.simulate(algorithm, mlp(), classified(), **TRAINING).parameters

    assert_close(train(WithoutControl(0.3)), train(FedDyn(0.3)), rtol=1e-12, atol=1e-14)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="alpha must be greater than 0, got 0"):
        FedDC(0)
    with pytest.raises(ValueError, match="FedDC fixes its own server step; server_lr must be 1, got 2"):
        P2.run(FedDC(), 1, server_lr=2.0)
