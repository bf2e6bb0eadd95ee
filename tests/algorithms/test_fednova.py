from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import undrift as ud
from quadratics import BY_ONES, P2, Point, Quadratics
from undrift.algorithms import FedNova
from undrift.algorithms.fednova import NormalisedAveraging
from undrift.client.optim import SGD

UNEQUAL = Quadratics(**vars(P2) | {"samples": (2, 4)})


def gain(steps: int, rho: float = 0.0, pull: float = 0.0, nesterov: bool = False) -> float:
    """‖a‖₁ by recursion: the displacement at rate one along a unit gradient."""
    buffer = total = 0.0
    for _ in range(steps):
        buffer = rho * buffer + 1
        total = (1 - pull) * total + (1 + rho * buffer if nesterov else buffer)
    return total


@pytest.mark.parametrize(
    ("optimizer", "mu", "expected"),
    [
        (SGD(), 0.0, 5),
        (SGD(0.9), 0.0, 13.1441),
        (SGD(), 1.0, 4.0951),
        (SGD(0.9, nesterov=True), 0.0, 16.82969),
        (SGD(0.9), 1.0, 11.4265),
    ],
)
def test_length_of_five_steps(optimizer: SGD, mu: float, expected: float) -> None:
    """The table of ‖a_i‖₁ for K = 5, ρ = 0.9, ημ = 0.1; padded steps do not count."""
    for padding in (0, 3):
        task: Any = SimpleNamespace(active=[None] * (5 + padding), steps=torch.tensor(5.0).double(), lr=0.1)
        assert float(NormalisedAveraging(optimizer, mu).length(task)) == pytest.approx(expected, rel=1e-9)


def test_one_step_by_hand() -> None:
    """Two and four steps; weights by samples 1/3 and 2/3."""
    steps, weights = np.array([[2], [4]]), np.array([1 / 3, 2 / 3])
    moved = (1 - (1 - P2.lr * P2.a) ** steps) * (P2.b - np.array(P2.start))
    effective = weights @ steps
    path, _ = UNEQUAL.run(FedNova(), 1, server_lr=0.5, **BY_ONES)
    np.testing.assert_allclose(path[0], 1 + 0.5 * effective * (weights @ (moved / steps)), rtol=1e-12)


@pytest.mark.parametrize(
    ("local", "mu"),
    [
        ({"momentum": 0.9}, 0.0),
        ({"momentum": 0.9, "optimizer": "nesterov"}, 0.0),
        ({}, 1.0),
        ({"momentum": 0.9}, 1.0),
        ({"momentum": 0.9, "optimizer": "nesterov"}, 1.0),
    ],
)
def test_lengths_are_those_that_clients_walk(local: dict[str, Any], mu: float) -> None:
    """On a slope every client's direction is the slope, whatever it does; only the common length is left."""
    slope, lr, counts = 2.0, 0.1, (5, 2)

    def linear(output: Tensor, target: Tensor) -> Tensor:
        return (slope * output).sum(1)

    data = [(torch.zeros(n, 1).double(), torch.zeros(n, 1).double()) for n in counts]
    settings: dict[str, Any] = {"rounds": 1, "batch_size": 1, "lr": lr, "weighting": "uniform", "loss": linear}
    run = ud.simulate(FedNova(mu), Point([0.0]), data, **settings | local)
    kind = {"rho": local.get("momentum", 0.0), "nesterov": "optimizer" in local}
    common = np.mean(counts if mu else [gain(n, **kind) for n in counts])
    np.testing.assert_allclose(run.parameters["point"], [-lr * slope * common], rtol=1e-12)


def test_proximal_term_by_hand() -> None:
    mu = 0.5
    y = np.full((2, 1), 1.0)
    for _ in range(2):
        y = y - 0.1 * (P2.a * (y - P2.b) + mu * (y - 1))
    expected = 1 + 2 * ((y - 1) / gain(2, pull=0.1 * mu)).mean(0)
    np.testing.assert_allclose(P2.run(FedNova(mu), 1)[0][0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("lr", "nova", "average"), [(0.1, 2.6665496973, 3.1999157806), (0.05, 2.840999638, 3.322321050)]
)
def test_limit(lr: float, nova: float, average: float) -> None:
    """Closer to the optimum 3 as the rate falls; FedAvg goes to 24/7, the optimum of another objective."""
    settings: dict[str, Any] = BY_ONES | {"lr": lr, "weighting": "uniform"}
    for algorithm, point in (("fednova", nova), ("fedavg", average)):
        path, _ = replace(UNEQUAL, start=(point,)).run(algorithm, 5, **settings)
        np.testing.assert_allclose(path, point, rtol=1e-9)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_other_optimisers_are_normalised_by_their_steps(optimizer: str, mu: float) -> None:
    """The mean of (y_i − x)/A_i times the mean of K_i; A_i = K_i, or the sum of (1 − ημ)^k."""
    settings: dict[str, Any] = BY_ONES | {"optimizer": optimizer, "weighting": "uniform"}
    ends = []
    for a, b, count in zip(P2.a, P2.b, (2, 4), strict=True):
        y = torch.tensor(P2.start, dtype=torch.float64)
        kind = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[optimizer]([y], lr=P2.lr)
        for _ in range(count):
            pull = P2.lr * mu * (y - 1)
            y.grad = torch.from_numpy(a) * (y - torch.from_numpy(b))
            kind.step()
            y -= pull
        ends.append((y.numpy() - 1) / gain(count, pull=P2.lr * mu))
    path, _ = UNEQUAL.run(FedNova(mu), 1, **settings)
    np.testing.assert_allclose(path[0], 1 + 3 * np.mean(ends, 0), rtol=1e-9)


def test_refuses() -> None:
    with pytest.raises(ValueError, match=r"mu must be at least 0, got -1\.0"):
        FedNova(mu=-1.0)
