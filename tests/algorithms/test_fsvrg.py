"""FSVRG against numpy, on sparse data and dense; its golden row, limit and traffic are laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import SIZES, classified, seeded
from quadratics import Quadratics
from undrift.algorithms import FSVRG, Mime
from undrift.client.layout import Layout
from undrift.data.batches import Schedule, Table, exact, plan

# Two clients, three features and one that nobody has: the first client has no feature 1, the second no feature 0.
SPARSE_X = (
    np.array([[1.0, 0.0, 2.0, 0.0], [3.0, 0.0, 0.0, 0.0], [2.0, 0.0, -1.0, 0.0], [1.0, 0.0, 0.0, 0.0]]),
    np.array([[0.0, 2.0, 1.0, 0.0], [0.0, -1.0, 0.0, 0.0]]),
)
SPARSE_Y = (np.array([[1.0], [2.0], [0.0], [-1.0]]), np.array([[3.0], [1.0]]))


def squared(output: Tensor, target: Tensor) -> Tensor:
    return 0.5 * ((output - target) ** 2).sum(1)


def line(features: int = 4) -> nn.Linear:
    return seeded(lambda: nn.Linear(features, 1))


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the mean squared loss in [weights, bias]."""
    wide = np.hstack([x, np.ones((len(x), 1))])
    return wide.T @ (wide @ w - y[:, 0]) / len(x)


def start_of(model: nn.Linear) -> np.ndarray:
    return np.append(model.weight.detach().numpy()[0], model.bias.item())


def found(run: ud.Run) -> np.ndarray:
    return np.append(run.parameters["weight"].numpy()[0], run.parameters["bias"].item())


def by_hand(
    w: np.ndarray,
    cohort: list[int],
    common: np.ndarray | None,
    enlargement: np.ndarray,
    lr: float,
    steps: int,
    decay: float = 0.0,
) -> np.ndarray:
    """A round of the equations, full batches; the factors of the bias are one, and without `common` all of Λ."""
    sizes = np.array([len(SPARSE_X[i]) for i in cohort])
    weights = sizes / sizes.sum()
    mean = sum(p * gradient(w, SPARSE_X[i], SPARSE_Y[i]) for p, i in zip(weights, cohort, strict=True)) + decay * w
    update = np.zeros_like(w)
    for p, i in zip(weights, cohort, strict=True):
        x, y = SPARSE_X[i], SPARSE_Y[i]
        own = (x != 0).mean(0)
        factor = np.ones(5)
        if common is not None:
            factor[:4][own > 0] = (common / np.where(own > 0, own, 1))[own > 0]
        v = w.copy()
        for _ in range(steps):
            drift = factor * (gradient(v, x, y) - gradient(w, x, y)) + decay * (v - w)
            v = v - lr / len(x) * (drift + mean)
        update += p * (v - w)
    return w + np.append(enlargement, 1.0) * update


SPARSE = list(zip(SPARSE_X, SPARSE_Y, strict=True))


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("scaling", ["cohort", "printed", "census", "off"])
def test_sparse_features_by_hand(scaling: str, engine: str) -> None:
    """n^j = 4, 2, 3, 0 of 6 samples; ω^j = 1, 1, 2, 0 of 2 clients. Weight decay is not scaled."""
    common = None if scaling == "off" else np.array([4 / 6, 2 / 6, 3 / 6, 0.0])
    enlargement = np.ones(4) if scaling == "off" else np.array([2.0, 2.0, 1.0, 1.0])
    w = start_of(line())
    for _ in range(3):
        w = by_hand(w, [0, 1], common, enlargement, lr=0.2, steps=3, decay=0.1)
    run = ud.simulate(
        FSVRG(feature_scaling=scaling),
        line(),
        SPARSE,
        loss=squared,
        rounds=3,
        steps=3,
        batch_size=None,
        lr=0.2,
        weight_decay=0.1,
        engine=engine,
    )
    np.testing.assert_allclose(found(run), w, rtol=1e-12)


def test_the_cohort_counts_itself() -> None:
    """Alone in a round, a client is all there is, and its factors are one."""
    w = start_of(line())
    for i in (1, 0):
        w = by_hand(w, [i], None, np.ones(4), lr=0.2, steps=2)
    run = ud.simulate(
        FSVRG(), line(), SPARSE, loss=squared, rounds=2, cohort=[[1], [0]], steps=2, batch_size=None, lr=0.2
    )
    np.testing.assert_allclose(found(run), w, rtol=1e-12)


def test_printed_counts_everybody_once() -> None:
    """First only the second client is known, who stands for both; then both are, however often one returns."""
    w = start_of(line())
    # |S| / (N · part of the known clients that have the feature) = 1 / 2, where anybody has it
    w = by_hand(w, [1], None, np.array([1.0, 0.5, 0.5, 1.0]), lr=0.2, steps=2)
    w = by_hand(w, [1], None, np.array([1.0, 0.5, 0.5, 1.0]), lr=0.2, steps=2)
    common = np.array([4 / 6, 2 / 6, 3 / 6, 0.0])
    w = by_hand(w, [0], common, np.array([1.0, 1.0, 0.5, 1.0]), lr=0.2, steps=2)
    w = by_hand(w, [1], common, np.array([1.0, 1.0, 0.5, 1.0]), lr=0.2, steps=2)
    run = ud.simulate(
        FSVRG(feature_scaling="printed"),
        line(),
        SPARSE,
        loss=squared,
        rounds=4,
        cohort=[[1], [1], [0], [1]],
        steps=2,
        batch_size=None,
        lr=0.2,
    )
    np.testing.assert_allclose(found(run), w, rtol=1e-12)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_census_counts_everybody_before_the_first_round(engine: str) -> None:
    """Eq. 19, 21 and 59 of MA-FSVRG: n̂^j and ω^j over all clients, |S| of the cohort; nothing is sent up for it."""
    w, common = start_of(line()), np.array([4 / 6, 2 / 6, 3 / 6, 0.0])
    for i in (1, 0):
        w = by_hand(w, [i], common, np.array([1.0, 1.0, 0.5, 1.0]), lr=0.2, steps=2)
    run = ud.simulate(
        FSVRG(feature_scaling="census"),
        line(),
        SPARSE,
        loss=squared,
        rounds=2,
        cohort=[[1], [0]],
        steps=2,
        batch_size=None,
        lr=0.2,
        engine=engine,
    )
    np.testing.assert_allclose(found(run), w, rtol=1e-12)
    assert run.history.bytes_up.tolist() == [8 * 2 * 5] * 2


def test_a_census_of_what_is_no_input_of_the_layer() -> None:
    """Pooled inputs, or normalised ones: all factors are one."""
    image = [(torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 0, 1])) for _ in range(2)]
    scaled = ud.FederatedData.from_clients(image)
    scaled.normalise = ((0.5,), (0.5,))
    pooled = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(1, 2))
    whole = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    for model, data in ((pooled, image), (whole, scaled)):
        runs = [
            ud.simulate(FSVRG(feature_scaling=scaling), model, data, rounds=2, cohort=[[0, 1], [0]], lr=0.5).parameters
            for scaling in ("census", "off")
        ]
        if data is image:
            assert_close(*runs)
        else:  # A of dense data is the participation ratio
            assert not torch.allclose(runs[0]["1.weight"], runs[1]["1.weight"])


def test_dense_data_have_no_factors_but_the_participation_ratio() -> None:
    """A is |S|/N as printed, for the weight; a bias has the factor one."""
    options: dict[str, Any] = {"rounds": 1, "cohort": [[0, 2, 3]], "steps": 2, "batch_size": 4, "lr": 0.5}

    def model() -> nn.Module:
        return seeded(lambda: nn.Linear(6, 3))

    def moved(scaling: str) -> dict[str, Tensor]:
        run = ud.simulate(FSVRG(feature_scaling=scaling), model(), classified(), **options)
        return {k: v - model().state_dict()[k] for k, v in run.parameters.items()}

    plain = moved("off")
    assert_close(moved("cohort"), plain, rtol=1e-12, atol=1e-14)
    ratio = 3 / len(SIZES)
    assert_close(moved("printed"), {"weight": ratio * plain["weight"], "bias": plain["bias"]}, rtol=1e-12, atol=1e-14)


def test_alone_it_is_svrg() -> None:
    """One client: y ← y − (h/n)(∇ℓ_s(y) − ∇ℓ_s(x) + ∇f(x)) over a permutation of its samples."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(5, 4)), generator.normal(size=(5, 1))
    data = ud.FederatedData.from_clients([(x, y)])
    w = start_of(line())
    for number in (1, 2):
        schedule, only = Schedule(1, 1, None), torch.tensor([0])
        table = Table.of(data, torch.device("cpu"))
        shape = exact(schedule, data.sizes)
        drawn = plan(table, positions=only, clients=only, shape=shape, schedule=schedule, seed=7, round=number)
        order = drawn.rows[0, :, 0].tolist()
        assert sorted(order) == [0, 1, 2, 3, 4]
        mean, v = gradient(w, x, y), w.copy()
        for s in order:
            v = v - 0.4 / 5 * (gradient(v, x[[s]], y[[s]]) - gradient(w, x[[s]], y[[s]]) + mean)
        w = v
    run = ud.simulate(FSVRG(), line(), data, loss=squared, rounds=2, batch_size=1, lr=0.4, seed=7)
    np.testing.assert_allclose(found(run), w, rtol=1e-12)


def test_with_equal_clients_it_is_mime() -> None:
    """S = A = I and n_k = n: Mime at the rate h/n, whose batches of one pass once over the samples."""
    data = classified(sizes=(6, 6, 6, 6))
    options: dict[str, Any] = {"rounds": 3, "cohort": 2, "batch_size": 1}

    def model() -> nn.Module:
        return seeded(lambda: nn.Linear(6, 3))

    mine = ud.simulate(FSVRG(), model(), data, lr=0.6, **options)
    theirs = ud.simulate(Mime(), model(), data, lr=0.1, **options)
    assert_close(mine.parameters, theirs.parameters, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_unequal_clients_by_hand(momentum: float) -> None:
    """The rate is η/n_i also with momentum, and the aggregation weights are the samples'."""
    problem = Quadratics(((1.0, 2.0), (3.0, 0.5)), ((0.0, 1.0), (6.0, -4.0)), (1.0, 1.0), lr=0.3, samples=(4, 1))
    x, p = np.array(problem.start), np.array([0.8, 0.2])
    expected = []
    for _ in range(3):
        mean, update = p @ (problem.a * (x - problem.b)), np.zeros(2)
        for i, n in enumerate(problem.samples):
            y, buffer = x, np.zeros(2)
            for _ in range(problem.steps):
                buffer = momentum * buffer + problem.a[i] * (y - x) + mean
                y = y - 0.3 / n * buffer
            update = update + p[i] * (y - x)
        x = x + update
        expected.append(x)
    path, _ = problem.run(FSVRG(), 3, momentum=momentum)
    np.testing.assert_allclose(path, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("model", "weight"),
    [
        (nn.Linear(6, 3), "weight"),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), "1.weight"),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)), None),
        (nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), None),
        (nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 3)), None),
        (nn.Sequential(nn.Linear(6, 4).requires_grad_(False), nn.Linear(4, 3)), None),
        (nn.Conv2d(1, 3, 2), None),
    ],
)
def test_only_a_linear_model_has_a_column_for_every_feature(model: nn.Module, weight: str | None) -> None:
    assert Layout.of(model).only_linear == weight


def test_a_layer_behind_something_else_is_not_scaled() -> None:
    """Pooling mixes the inputs, which are half zeros here."""
    data = [(x * (x > 0.5), y) for x, y in classified()]

    def model() -> nn.Module:
        return seeded(lambda: nn.Sequential(nn.Unflatten(1, (1, 6)), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(3, 3)))

    runs = [
        ud.simulate(FSVRG(feature_scaling=scaling), model(), data, rounds=2, batch_size=4, lr=0.5).parameters
        for scaling in ("cohort", "off")
    ]
    assert_close(*runs, rtol=1e-12, atol=1e-12)


def test_engines_agree_on_sparse_data() -> None:
    """Padding is not counted among the samples of a client."""
    data = [(x * (x > 0.8), y) for x, y in classified()]
    runs = [
        ud.simulate(
            FSVRG(feature_scaling="printed"),
            seeded(lambda: nn.Linear(6, 3)),
            data,
            rounds=3,
            cohort=3,
            batch_size=4,
            lr=0.5,
            engine=engine,
        ).parameters
        for engine in ("sequential", "batched:2")
    ]
    assert_close(*runs, rtol=1e-12, atol=1e-12)


def test_features_travel() -> None:
    """Up: gradient, update and the features' frequencies; down: the model twice, the gradient and frequencies."""
    run = ud.simulate(FSVRG(), line(), SPARSE, loss=squared, rounds=1, batch_size=None)
    assert run.history.bytes_up[0] == 2 * 8 * (2 * 5 + 4)
    assert run.history.bytes_down[0] == 2 * 8 * (3 * 5 + 4)


@pytest.mark.parametrize(
    ("options", "kind"), [({"scale_step": 1}, TypeError), ({"feature_scaling": "everybody"}, ValueError)]
)
def test_wrong_options_are_refused(options: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=next(iter(options))):
        FSVRG(**options)
