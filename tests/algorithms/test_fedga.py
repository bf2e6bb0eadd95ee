from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import undrift as ud
from laws import TRAINING, classified, normed
from quadratics import BY_ONES, P2, P3, SIZED, Quadratics, length, remembered, walk
from undrift.algorithms import FedAvg, FedGA

COUNTS, COHORTS = np.array([1, 4, 2]), [[0, 1], [1, 2], [0, 2], [0, 1, 2], [1]]
LOCAL = [{}, {"momentum": 0.5}, {"lr_decay": 0.8}, {"weight_decay": 0.1}, {"server_lr": 0.5}]


def path_of(
    form: str,
    beta: float,
    weights: np.ndarray,
    momentum: float = 0.0,
    lr_decay: float = 1.0,
    weight_decay: float = 0.0,
    server_lr: float = 1.0,
) -> list[np.ndarray]:
    """FedGA with K_i = (1, 4, 2) as its equations say."""
    x, points = np.array(P3.start), []
    own: dict[int, np.ndarray] = {}  # u_i
    mean = np.zeros(1)  # ū

    def gradient(y: np.ndarray, i: int) -> np.ndarray:
        return P3.a[i] * (y - P3.b[i]) + weight_decay * y

    for number, cohort in enumerate(COHORTS):
        lr, w = P3.lr * lr_decay**number, weights[cohort] / weights[cohort].sum()
        common = sum(share * gradient(x, i) for share, i in zip(w, cohort, strict=True))
        moved, directions = np.zeros(1), np.zeros(1)
        for share, i in zip(w, cohort, strict=True):
            if form == "fresh":
                start = x - beta * (common - gradient(x, i))
            else:
                start = x - beta * (mean - own[i]) if i in own else x
            y = walk(start, partial(gradient, i=i), COUNTS[i], lr=lr, momentum=momentum)
            own[i] = (start - y) / (length(COUNTS[i], momentum) * lr)
            directions = directions + share * own[i]
            moved = moved + share * (y - (x if form == "fresh" else start))
        x, mean = x + server_lr * moved, directions
        points.append(x)
    return points


@pytest.mark.parametrize("form", ["fresh", "stale"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("local", LOCAL)
def test_by_hand(form: str, weighting: str, local: dict[str, float]) -> None:
    """Partial participation and unequal steps; a first participation has no displacement when stale."""
    weights = np.ones(3) if weighting == "uniform" else COUNTS.astype(float)
    expected = path_of(form, 0.2, weights, **local)
    options = {"cohort": COHORTS, "weighting": weighting, **BY_ONES, **local}
    path, _ = SIZED.run(FedGA(0.2, form), len(COHORTS), **options)
    np.testing.assert_allclose(path, expected, rtol=1e-12)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_fresh_displacements_cancel(weighting: str) -> None:
    """Σ w_i v_i = 0: with steps of no length the model stays, however far clients were displaced."""
    options = {"cohort": COHORTS, "weighting": weighting, **BY_ONES, "lr": 1e-18}
    path, _ = SIZED.run(FedGA(1.0), len(COHORTS), **options)
    np.testing.assert_allclose(path, 1.0, rtol=1e-12)


def test_one_step_is_gradient_alignment() -> None:
    """x ← x − η Σ w_i ∇f_i(x + β (∇f_i(x) − ∇f(x)))."""
    x, beta, expected = np.array(P2.start), 0.2, []
    for _ in range(4):
        own = P2.a * (x - P2.b)
        x = x - P2.lr * (P2.a * (x + beta * (own - own.mean(0)) - P2.b)).mean(0)
        expected.append(x)
    np.testing.assert_allclose(P2.run(FedGA(beta), 4, steps=1)[0], expected, rtol=1e-12)


@pytest.mark.parametrize("form", ["fresh", "stale"])
def test_alike_clients_are_not_displaced(form: str) -> None:
    alike = Quadratics(((1.5,), (1.5,)), ((2.0,), (2.0,)), (1.0,), lr=0.1)
    np.testing.assert_allclose(alike.run(FedGA(0.5, form), 4)[0], alike.run(FedAvg(), 4)[0], rtol=1e-14)


def test_half_the_walk_cancels_the_drift_of_local_steps() -> None:
    """β = η(K − 1)/2 leaves a bias of the order η²."""
    problem = replace(P2, lr=0.04, steps=5)
    np.testing.assert_allclose(problem.run(FedGA(0.08), 80)[0][-1] - 3, -0.0185, rtol=5e-3)
    np.testing.assert_allclose(problem.run(FedGA(0.0), 80)[0][-1] - 3, -0.124, rtol=5e-3)


def test_fresh_clients_remember_nothing() -> None:
    _, run = P3.run(FedGA(0.2), 2, cohort=2)
    assert remembered(run, "FreshAlignment")[1] == {}
    assert len(run.memory.own) == 0


@pytest.mark.parametrize("form", ["fresh", "stale"])
def test_batch_normalisation(form: str) -> None:
    """The survey's pass leaves statistics alone; engines agree."""
    options: dict[str, Any] = TRAINING | {"batch_size": 5, "buffers": "averaged"}
    data = classified((11, 5, 7, 14, 9))
    alone, together = (ud.simulate(FedGA(0.2, form), normed(), data, **options, engine=e) for e in ENGINES)
    for mine, theirs in ((alone.parameters, together.parameters), (alone.buffers, together.buffers)):
        for name, value in mine.items():
            np.testing.assert_allclose(value, theirs[name], rtol=1e-9, atol=1e-10)


ENGINES = ("sequential", "batched:2")


def test_refusals() -> None:
    with pytest.raises(ValueError, match="form must be one of 'fresh', 'stale', got 'old'"):
        FedGA(form="old")
    with pytest.raises(ValueError, match="needs steps that are linear in the gradient, got Adam"):
        P2.run(FedGA(form="stale"), 1, optimizer="adam")
    P2.run(FedGA(form="fresh"), 1, optimizer="adam")
