"""Per-FedAvg against its equations, and its three batches."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import undrift as ud
from laws import TRAINING, classified, mlp, normed
from quadratics import Point, Quadratics, half_square
from undrift.algorithms import FedAvg, PerFedAvg

PROBLEM = Quadratics(
    curvature=((1.0, 2.0), (0.5, 1.0), (1.5, 0.7)),
    centre=((0.0, 1.0), (4.0, -2.0), (1.0, 3.0)),
    start=(1.0, 1.0),
    lr=0.1,
    samples=(3, 1, 2),
)
COHORTS = [[0, 1, 2], [0, 2], [1], [2, 1]]
DECAY, ALPHA = 0.2, 0.15


def reference(form: str, weighting: str, steps: list[int]) -> np.ndarray:
    """(I − αH) ∇f_i(y − α∇f_i(y)), without the Hessian in the first-order form; weight decay belongs to f_i."""

    def slope(i: int, x: np.ndarray) -> np.ndarray:
        return PROBLEM.a[i] * (x - PROBLEM.b[i]) + DECAY * x

    x, path = np.array(PROBLEM.start), []
    for cohort in COHORTS:
        w = np.array([PROBLEM.samples[i] if weighting == "samples" else 1 for i in cohort], dtype=float)
        ends = []
        for i in cohort:
            y = x
            for _ in range(steps[i]):
                q = slope(i, y - ALPHA * slope(i, y))
                y = y - PROBLEM.lr * (q * (1 - ALPHA * (PROBLEM.a[i] + DECAY)) if form == "hf" else q)
            ends.append(y)
        x = w @ np.array(ends) / w.sum()
        path.append(x)
    return np.array(path)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("form", ["fo", "hf"])
def test_every_round_is_the_papers(form: str, unequal: bool, weighting: str, engine: str) -> None:
    options: dict[str, Any] = {"steps": None, "batch_size": 1} if unequal else {"steps": 3}
    path, _ = PROBLEM.run(
        PerFedAvg(alpha=ALPHA, form=form),
        len(COHORTS),
        cohort=COHORTS,
        weighting=weighting,
        weight_decay=DECAY,
        engine=engine,
        **options,
    )
    steps = list(PROBLEM.samples) if unequal else [3, 3, 3]
    np.testing.assert_allclose(path, reference(form, weighting, steps), rtol=1e-9)


def test_local_momentum_leaves_the_inner_step_alone() -> None:
    """Heavy ball on d = H (I − αH) z."""
    a, b, lr, rho = 2.0, 3.0, 0.1, 0.5
    z, velocity = 1.0 - b, 0.0
    for _ in range(3):
        velocity = rho * velocity + a * (1 - ALPHA * a) * z
        z -= lr * velocity
    problem = Quadratics(((a,),), ((b,),), (1.0,), lr=lr, steps=3)
    path, _ = problem.run(PerFedAvg(alpha=ALPHA), 1, momentum=rho)
    assert path[0, 0] == pytest.approx(b + z, abs=1e-12)


# One client with samples of different curvature and centre, one a step: the step tells which three were used.

CURVATURE, CENTRE = np.array([1.0, 1.3, 0.6, 1.7]), np.array([0.0, 2.1, -1.7, 4.4])
OPTIONS: dict[str, Any] = {"loss": half_square, "rounds": 80, "steps": 1, "batch_size": 1, "lr": 0.1}


def points(algorithm: ud.Algorithm, engine: str = "sequential") -> list[float]:
    path = [1.0]
    target = torch.from_numpy(np.stack([CURVATURE, CENTRE], 1))[..., None]  # [4, 2, 1]
    ud.simulate(
        algorithm,
        Point([1.0]),
        [(torch.zeros(4, 1).double(), target)],
        engine=engine,
        callbacks=[lambda row, run: path.append(float(run.parameters["point"]))],
        **OPTIONS,
    )
    return path


def batches_used(path: list[float]) -> list[tuple[int, int, int]]:
    """(D, D', D'') of every step."""

    def slope(s: int, x: float) -> float:
        return float(CURVATURE[s] * (x - CENTRE[s]))

    used = []
    for before, after in itertools.pairwise(path):
        matches = []
        for d, e, f in itertools.product(range(4), repeat=3):
            q = slope(e, before - ALPHA * slope(d, before))
            if abs(after - (before - 0.1 * q * (1 - ALPHA * CURVATURE[f]))) < 1e-9:
                matches.append((d, e, f))
        assert len(matches) == 1
        used += matches
    return used


def test_the_three_batches_are_drawn_independently() -> None:
    used = batches_used(points(PerFedAvg(alpha=ALPHA, form="hf", delta=0.5)))
    for place in range(3):
        assert {triple[place] for triple in used} == set(range(4))
    for one, other in itertools.combinations(range(3), 2):
        assert len({(t[one], t[other]) for t in used}) == 16, "every pair occurs"
    assert points(PerFedAvg(alpha=ALPHA, form="hf", delta=0.5), "batched") == pytest.approx(
        points(PerFedAvg(alpha=ALPHA, form="hf", delta=0.5))
    )


def test_the_outer_batch_is_that_of_other_algorithms() -> None:
    used = batches_used(points(PerFedAvg(alpha=ALPHA, form="hf", delta=0.5)))
    path = points(FedAvg())
    plain = [
        int(np.argmin(abs(after - (before - 0.1 * CURVATURE * (before - CENTRE)))))
        for before, after in itertools.pairwise(path)
    ]
    assert [e for _, e, _ in used] == plain


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_clients_are_evaluated_after_one_step_on_all_their_samples(engine: str) -> None:
    data = classified()
    data[1] = (data[1][0], torch.tensor([0, 2, 0]))  # a client that lacks a class
    x, y = classified((60,))[0]
    run = ud.simulate(
        PerFedAvg(alpha=0.7), mlp(), data, test=(x, y), engine=engine, **TRAINING | {"cohort": [[0, 1], [1, 3]] * 2}
    )
    expected = [0.0] * 5
    for client in range(5):
        model = {k: v.clone().requires_grad_() for k, v in run.parameters.items()}
        F.cross_entropy(torch.func.functional_call(mlp(), model, data[client][0]), data[client][1]).backward()
        decay = TRAINING["weight_decay"]
        alpha = 0.7 if client in (0, 1, 3) else 0.0  # who has not taken part uses the server's model
        adapted = {k: v.detach() - alpha * (v.grad + decay * v.detach()) for k, v in model.items()}
        known = torch.isin(y, data[client][1])
        scores = torch.func.functional_call(mlp(), adapted, x[known])
        expected[client] = float((scores.argmax(1) == y[known]).double().mean())
    np.testing.assert_allclose(run.clients["accuracy"], expected)
    assert len(set(expected)) > 2


def test_batch_normalisation_and_augmentation() -> None:
    """Engines agree where every pass has statistics and draws of its own."""
    options = TRAINING | {"augment": lambda x, key, step: x + step * 1e-9}
    runs = [
        ud.simulate(PerFedAvg(alpha=0.2, form="hf"), normed(), classified(), engine=engine, **options)
        for engine in ("sequential", "batched:3")
    ]
    assert_close(runs[0].parameters, runs[1].parameters, rtol=1e-8, atol=1e-8)
    assert_close(runs[0].buffers, runs[1].buffers, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -0.1}, "alpha must be at least 0, got -0.1"),
        ({"form": "of"}, "form must be one of 'fo', 'hf', got 'of'"),
        ({"delta": 0}, "delta must be greater than 0, got 0"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PerFedAvg(**options)
