"""The Mime family against its equations, step by step in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import TRAINING, classified, mlp, seeded
from quadratics import Point, Quadratics, half_square
from undrift.algorithms import Mime, MimeLite, MimeLiteMom, MimeMom, MimeSVRG
from undrift.core.random import Key, Stream, normal

PROBLEM = Quadratics(
    curvature=((1.0, 2.0), (0.5, 1.0), (1.5, 0.7)),
    centre=((0.0, 1.0), (4.0, -2.0), (1.0, 3.0)),
    start=(1.0, 1.0),
    lr=0.1,
    samples=(3, 1, 2),
)
COHORTS = [[0, 1, 2], [0, 2], [1], [2, 1]]
DECAY = 0.2


def reference(beta: float, lite: bool, weighting: str, steps: list[int], server_lr: float) -> np.ndarray:
    """The paper's round: c = Σ w_i ∇f_i(x), d = (1 − β)(g(y) − g(x) + c) + β m, m ← (1 − β) c + β m."""

    def slope(i: int, x: np.ndarray) -> np.ndarray:
        return PROBLEM.a[i] * (x - PROBLEM.b[i]) + DECAY * x

    x, m, path = np.array(PROBLEM.start), np.zeros(2), []
    for cohort in COHORTS:
        w = np.array([PROBLEM.samples[i] if weighting == "samples" else 1 for i in cohort], dtype=float)
        w /= w.sum()
        c = sum(wi * slope(i, x) for wi, i in zip(w, cohort, strict=True))
        move = np.zeros(2)
        for wi, i in zip(w, cohort, strict=True):
            y = x
            for _ in range(steps[i]):
                g = slope(i, y) if lite else slope(i, y) - slope(i, x) + c
                y = y - PROBLEM.lr * ((1 - beta) * g + beta * m)
            move += wi * (y - x)
        x, m = x + server_lr * move, (1 - beta) * c + beta * m
        path.append(x)
    return np.array(path)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "beta", "lite"),
    [
        (Mime(), 0.0, False),
        (MimeSVRG(), 0.0, False),
        (MimeMom(beta=0.7), 0.7, False),
        (MimeLite(), 0.0, True),
        (MimeLiteMom(beta=0.7), 0.7, True),
    ],
)
def test_every_round_is_the_papers(
    algorithm: ud.Algorithm, beta: float, lite: bool, unequal: bool, weighting: str, engine: str
) -> None:
    options: dict[str, Any] = {"steps": None, "batch_size": 1} if unequal else {"steps": 3}
    path, _ = PROBLEM.run(
        algorithm,
        len(COHORTS),
        cohort=COHORTS,
        weighting=weighting,
        weight_decay=DECAY,
        server_lr=0.5,
        engine=engine,
        **options,
    )
    steps = list(PROBLEM.samples) if unequal else [3, 3, 3]
    np.testing.assert_allclose(path, reference(beta, lite, weighting, steps, server_lr=0.5), rtol=1e-12)


def noise(x: Tensor, key: Key, step: int) -> Tensor:
    return x + 0.3 * normal(key, Stream.AUGMENT, step, tuple(x.shape)).to(x.dtype)


def dropping() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3)))


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_the_first_step_does_not_depend_on_the_minibatch(engine: str) -> None:
    """Samples, augmentation and dropout are the same at y and at x, where they cancel."""
    options = TRAINING | {"steps": 1, "epochs": 1, "augment": noise, "engine": engine}
    small, large = (
        ud.simulate(Mime(), dropping(), classified(), **options | {"batch_size": size}).parameters for size in (2, 5)
    )
    assert_close(small, large, rtol=1e-12, atol=1e-12)
    later = [ud.simulate(Mime(), dropping(), classified(), **options | {"steps": 2, "batch_size": b}) for b in (2, 5)]
    assert not torch.allclose(later[0].parameters["0.weight"], later[1].parameters["0.weight"])


def test_equal_clients_and_full_batches_need_no_correction() -> None:
    data = classified((7,)) * 3
    options = TRAINING | {"batch_size": None, "steps": 3, "epochs": 1, "cohort": 2}
    for mime, lite in ((Mime(), MimeLite()), (MimeMom(beta=0.6), MimeLiteMom(beta=0.6))):
        pair = [ud.simulate(a, mlp(), data, **options).parameters for a in (mime, lite)]
        assert_close(*pair, rtol=1e-12, atol=1e-12)


def test_without_momentum_none_is_kept_or_sent() -> None:
    for algorithm in (Mime(), MimeSVRG(), MimeMom(beta=0.0)):
        run = ud.simulate(algorithm, mlp(), classified(), **TRAINING)
        assert run.memory.server["Imitation"].keys() == {"gradient"}
    assert not [key for key in ud.simulate(MimeLite(), mlp(), classified(), **TRAINING).memory.server if key != "model"]


# Part of the samples: with centres that are powers of two, one step tells which were looked at.

SIZES = (10, 7, 1)


def looked_at(fraction: float, rounds: int, engine: str, seed: int = 0) -> list[list[frozenset[int]]]:
    """The samples behind every client's gradient, round by round."""
    seen: list[list[frozenset[int]]] = [[] for _ in SIZES]
    for client in range(len(SIZES)):
        data = [
            (torch.zeros(n, 1).double(), torch.stack([torch.ones(n), 2.0 ** torch.arange(n)], 1)[..., None].double())
            for n in SIZES
        ]
        before = [1.0]

        def decode(row: dict[str, Any], run: ud.Run, client: int = client, before: list[float] = before) -> None:
            after = float(run.parameters["point"])
            size = max(1, round(fraction * SIZES[client]))
            total = round(size * (before[0] - (before[0] - after) / 0.1))  # after = x − η (x − mean of centres)
            seen[client].append(frozenset(s for s in range(SIZES[client]) if total >> s & 1))
            before[0] = after

        ud.simulate(
            MimeSVRG(anchor_fraction=fraction),
            Point([1.0]),
            data,
            loss=half_square,
            rounds=rounds,
            cohort=[[client]] * rounds,
            steps=1,
            batch_size=2,
            lr=0.1,
            seed=seed,
            engine=engine,
            callbacks=[decode],
        )
    return seen


def test_the_anchor_is_taken_on_a_share_of_the_samples() -> None:
    seen = looked_at(0.4, 12, "sequential")
    assert [{len(part) for part in client} for client in seen] == [{4}, {3}, {1}]
    assert len(set(seen[0])) > 6, "drawn anew in every round"
    assert frozenset().union(*seen[0]) == frozenset(range(10)), "every sample has its turn"
    assert looked_at(0.4, 12, "batched") == seen
    assert looked_at(0.4, 12, "sequential", seed=1) != seen


def test_clients_draw_for_themselves_and_engines_agree() -> None:
    """Unequal sizes together in one chunk, where the smaller ones are padded."""
    options = TRAINING | {"rounds": 3, "cohort": None}
    runs = [
        ud.simulate(MimeSVRG(anchor_fraction=0.35), mlp(), classified(), engine=engine, **options).parameters
        for engine in ("sequential", "batched:5")
    ]
    assert_close(*runs, rtol=1e-10, atol=1e-10)
    twins = ud.simulate(MimeSVRG(anchor_fraction=0.35), mlp(), classified((9,)) * 2, cohort=[[0]], rounds=1, steps=1)
    other = ud.simulate(MimeSVRG(anchor_fraction=0.35), mlp(), classified((9,)) * 2, cohort=[[1]], rounds=1, steps=1)
    assert not torch.allclose(twins.parameters["0.weight"], other.parameters["0.weight"])


@pytest.mark.parametrize(
    ("kind", "option", "message"),
    [
        (MimeMom, {"beta": 1.0}, "beta must be at least 0 and less than 1, got 1.0"),
        (MimeLiteMom, {"beta": -0.1}, "beta must be at least 0 and less than 1, got -0.1"),
        (MimeSVRG, {"anchor_fraction": 0.0}, "anchor_fraction must be greater than 0 and at most 1, got 0.0"),
    ],
)
def test_refusals(kind: Any, option: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**option)
