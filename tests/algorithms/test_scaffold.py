from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import undrift as ud
from laws import TRAINING, classified, mlp
from quadratics import BY_ONES, P2, P3, SIZED, Quadratics, length, remembered, walk
from undrift import Algorithm
from undrift.algorithms import SCAFFOLD, FedAvg
from undrift.algorithms.scaffold import ControlVariates
from undrift.core.tree import Tree
from undrift.methods.correction import At, Correction
from undrift.methods.setting import Setting
from undrift.protocol import Message, State

COUNTS, COHORTS = np.array([1, 4, 2]), [[0, 1], [1, 2], [0, 2], [0, 1, 2], [1]]
LOCAL = [{}, {"momentum": 0.5}, {"lr_decay": 0.8}, {"weight_decay": 0.1}, {"server_lr": 0.5}]


def path_of(
    option: str,
    shares: np.ndarray,
    momentum: float = 0.0,
    lr_decay: float = 1.0,
    weight_decay: float = 0.0,
    server_lr: float = 1.0,
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """SCAFFOLD with K_i = (1, 4, 2) as its equations say: x, c and all c_i after every round."""
    x, c, own, states = np.array(P3.start), np.zeros(1), np.zeros((3, 1)), []

    def gradient(i: int, y: np.ndarray) -> np.ndarray:
        return P3.a[i] * (y - P3.b[i]) + weight_decay * y

    def corrected(i: int, correction: np.ndarray, y: np.ndarray) -> np.ndarray:
        return gradient(i, y) + correction

    for number, cohort in enumerate(COHORTS):
        lr = P3.lr * lr_decay**number
        weights = shares[cohort] / shares[cohort].sum()
        moved, changed, controls = np.zeros(1), np.zeros(1), own.copy()
        for weight, i in zip(weights, cohort, strict=True):
            y = walk(x, partial(corrected, i, c - own[i]), COUNTS[i], lr=lr, momentum=momentum)
            displaced = own[i] - c + (x - y) / (length(COUNTS[i], momentum) * lr)
            controls[i] = gradient(i, x) if option == "I" else displaced
            moved = moved + weight * (y - x)
            changed = changed + shares[i] * (controls[i] - own[i])
        x, c, own = x + server_lr * moved, c + changed, controls
        states.append((x, c, own))
    return states


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("local", LOCAL)
def test_by_hand(option: str, weighting: str, local: dict[str, float]) -> None:
    """Partial participation, unequal steps, both objectives; c is the mean of everybody's c_i in every round."""
    shares = np.full(3, 1 / 3) if weighting == "uniform" else COUNTS / COUNTS.sum()
    expected = path_of(option, shares, **local)

    def compare(row: dict[str, Any], run: ud.Run) -> None:
        x, c, own = expected[row["round"] - 1]
        server, clients = remembered(run, "ControlVariates")
        np.testing.assert_allclose(run.parameters["point"], x, rtol=1e-12)
        np.testing.assert_allclose(clients["control"], own, rtol=1e-12)
        np.testing.assert_allclose(server["control"], c, rtol=1e-12)
        np.testing.assert_allclose(server["control"], shares @ clients["control"], rtol=1e-12)

    options = {"cohort": COHORTS, "weighting": weighting, **BY_ONES, **local}
    SIZED.run(SCAFFOLD(option), len(COHORTS), callbacks=[compare], **options)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("cohort", [None, 2])
def test_ends_at_the_optimum(option: str, cohort: int | None) -> None:
    path, run = P3.run(SCAFFOLD(option), 100, cohort=cohort)
    np.testing.assert_allclose(path[-1], 7 / 3, rtol=1e-10)
    server, clients = remembered(run, "ControlVariates")
    np.testing.assert_allclose(server["control"], 0, atol=1e-10)
    np.testing.assert_allclose(clients["control"], P3.a * (7 / 3 - P3.b), rtol=1e-9)  # c_i → ∇f_i(x*)


@pytest.mark.parametrize("option", ["I", "II"])
def test_weighted_by_samples_it_ends_at_their_optimum(option: str) -> None:
    problem = Quadratics(**vars(P3) | {"samples": (5, 2, 3)})
    options = {"cohort": 2, "weighting": "samples", "steps": None, "batch_size": 2, "lr": 0.05}
    path, _ = problem.run(SCAFFOLD(option), 150, **options)
    np.testing.assert_allclose(path[-1], 1.7647058824, rtol=1e-9)


def test_strong_momentum_converges() -> None:
    path, _ = P2.run(SCAFFOLD(), 100, momentum=0.9, lr=0.02, steps=4)
    np.testing.assert_allclose(path[-1], 3, rtol=1e-9)


@dataclass(frozen=True)
class Frozen(ControlVariates):
    """Controls that never change."""

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        same = {k: torch.zeros_like(v) for k, v in client["control"].items()}
        return update, client, {"change": same}


@dataclass(frozen=True)
class WithoutControl(Algorithm):
    weighting: ClassVar[str] = "uniform"

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Frozen(setting.layout.names, "II"),)


def train(algorithm: Algorithm, **options: Any) -> Tree:
    return ud.simulate(algorithm, mlp(), classified(), **TRAINING | {"weighting": "uniform"} | options).parameters


def test_frozen_at_zero_it_is_fedavg() -> None:
    assert_close(train(WithoutControl()), train(FedAvg()), rtol=0, atol=0)


@pytest.mark.parametrize("option", ["I", "II"])
def test_first_round_is_fedavg(option: str) -> None:
    """The extra pass of option I does not disturb the order of batches."""
    assert_close(train(SCAFFOLD(option), rounds=1), train(FedAvg(), rounds=1), rtol=0, atol=0)


def test_one_step_is_saga_over_clients() -> None:
    """x ← x − η [mean_S (g_i(x) − c_i) + c] with c_i the gradient at the last visit."""
    cohorts = [[0, 1], [1, 2], [0], [2, 0], [1, 0]]
    x, table, expected = np.array(P3.start), np.zeros((3, 1)), []
    for cohort in cohorts:
        mean, gradients = table.mean(0), P3.a * (x - P3.b)
        x = x - P3.lr * ((gradients - table)[cohort].mean(0) + mean)
        table[cohort] = gradients[cohort]
        expected.append(x)
    np.testing.assert_allclose(P3.run(SCAFFOLD(), 5, cohort=cohorts, steps=1)[0], expected, rtol=1e-12)


def test_the_new_control_is_the_mean_of_the_raw_gradients() -> None:
    """Option II without momentum: whatever c and c_i were, they drop out."""
    cohorts = [[0, 1], [1, 2], [0, 2]]
    points, before = P3.run(SCAFFOLD(), 2, cohort=cohorts[:2], steps=4)
    server, clients = remembered(before, "ControlVariates")
    _, after = P3.run(SCAFFOLD(), 3, cohort=cohorts, steps=4)
    for i in (0, 2):
        raw: list[np.ndarray] = []

        def direction(y: np.ndarray, i: int = i, raw: list[np.ndarray] = raw) -> np.ndarray:
            raw.append(P3.a[i] * (y - P3.b[i]))
            return raw[-1] - clients["control"][i] + server["control"]

        walk(points[-1], direction, 4, lr=P3.lr)
        np.testing.assert_allclose(remembered(after, "ControlVariates")[1]["control"][i], np.mean(raw, 0), rtol=1e-12)


def test_under_adam_the_control_is_the_mean_of_the_raw_gradients() -> None:
    _, run = P2.run(SCAFFOLD(), 1, optimizer="adam", steps=3)
    _, clients = remembered(run, "ControlVariates")
    for i, control in enumerate(clients["control"]):
        y = torch.tensor(P2.start, dtype=torch.float64, requires_grad=True)
        adam, gradients = torch.optim.Adam([y], lr=P2.lr), []
        for _ in range(3):
            adam.zero_grad()
            (0.5 * torch.tensor(P2.a[i]) * (y - torch.tensor(P2.b[i])) ** 2).sum().backward()
            assert y.grad is not None
            gradients.append(y.grad.numpy().copy())
            adam.step()
        np.testing.assert_allclose(control, np.mean(gradients, 0), rtol=1e-9)


def test_refuses_another_option() -> None:
    with pytest.raises(ValueError, match="option must be one of 'II', 'I', got 'III'"):
        SCAFFOLD("III")
