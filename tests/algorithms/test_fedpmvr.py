"""FedPMVR's forms against their equations, on a model of two layers of which the second is the head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import TRAINING, classified, mlp
from quadratics import half_square
from undrift.algorithms import FedAvg, FedPMVR
from undrift.methods.setting import Plan

A = np.array([[1.0, 0.8], [0.5, 1.2], [1.5, 0.4]])  # [clients, (body, head)]
B = np.array([[0.0, 1.0], [4.0, -2.0], [1.0, 3.0]])
SIZES = (3, 1, 2)
START, LR, DECAY, ALPHA = np.array([1.0, 1.0]), 0.1, 0.05, 0.3
FORMS = ("gradient", "drift", "pseudogradient", "sum", "stepwise")
COHORTS = [[0, 1, 2], [0, 2], [1], [2, 1]]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(len(x), 1)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Layer(), Layer()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.body(x), self.head(x)], 1)


def path_of(algorithm: ud.Algorithm, **options: Any) -> np.ndarray:
    data = [
        (torch.zeros(n, 1).double(), torch.from_numpy(np.stack([a, b])).expand(n, 2, 2))
        for a, b, n in zip(A, B, SIZES, strict=True)
    ]
    path: list[list[float]] = []
    settings: dict[str, Any] = {"steps": 3, "batch_size": None, "cohort": COHORTS, "weight_decay": DECAY} | options
    ud.simulate(
        algorithm,
        Two(),
        data,
        loss=half_square,
        rounds=len(settings["cohort"]),
        lr=LR,
        callbacks=[lambda row, run: path.append([float(v) for v in run.parameters.values()])],
        **settings,
    )
    return np.array(path)


def slope(i: int, x: np.ndarray) -> np.ndarray:
    return A[i] * (x - B[i]) + DECAY * x


def reference(
    form: str, keep: bool, steps: list[int], head: np.ndarray, accumulate: bool = False, alpha: float = ALPHA
) -> np.ndarray:
    """The table of forms; `head` marks the parameters that have a momentum."""
    x, momenta, path = START, np.zeros((3, 2)), []
    kept = 1 if accumulate else 1 - alpha
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            y, m = x, momenta[i] if keep else np.zeros(2)
            for _ in range(steps[i]):
                g = slope(i, y)
                if form == "stepwise":
                    m = np.where(head, alpha * m + (1 - alpha) * g, 0)
                    g = np.where(head, m, g)
                if form == "sum":
                    m = np.where(head, alpha * g + kept * m, 0)
                    g = g + m
                y = y - LR * g
            if form == "gradient":
                g = slope(i, y)
                m = np.where(head, alpha * g + kept * m, 0)
                y = np.where(head, y - m, y - LR * g)
            if form in ("drift", "pseudogradient"):
                g = y - x if form == "drift" else x - y
                m = np.where(head, alpha * g + kept * m, 0)
                y = y - m
            momenta[i] = m
            ends.append(y)
        w = np.array([SIZES[i] for i in cohort])
        x = w @ np.array(ends) / w.sum()
        path.append(x)
    return np.array(path)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("layers", [1, "all"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_every_round_is_the_papers(form: str, keep: bool, layers: Any, unequal: bool, engine: str) -> None:
    options: dict[str, Any] = {"steps": None, "batch_size": 1} if unequal else {}
    path = path_of(FedPMVR(ALPHA, layers, form, keep), engine=engine, **options)
    head = np.array([layers == "all", True])
    steps = list(SIZES) if unequal else [3, 3, 3]
    np.testing.assert_allclose(path, reference(form, keep, steps, head), rtol=1e-12)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("form", FORMS[:-1])
def test_momentum_may_accumulate(form: str, keep: bool, engine: str) -> None:
    path = path_of(FedPMVR(ALPHA, 1, form, keep, accumulate=True), engine=engine)
    np.testing.assert_allclose(path, reference(form, keep, [3, 3, 3], np.array([False, True]), True), rtol=1e-12)


@pytest.mark.parametrize(("form", "factor"), [("drift", 1 - ALPHA), ("pseudogradient", 1 + ALPHA)])
def test_a_momentum_that_is_reset_scales_the_update_of_the_head(form: str, factor: float) -> None:
    """Eq. 16: the drift of the last layers is multiplied by 1 − α; with the other sign it grows."""
    changed, plain = (path_of(a, cohort=COHORTS[:1])[0] - START for a in (FedPMVR(ALPHA, 1, form, False), FedAvg()))
    np.testing.assert_allclose(changed, plain * [1, factor], rtol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keep", [True, False])
def test_a_kept_drift_warns(form: str, keep: bool) -> None:
    said = FedPMVR(form=form, keep_momentum=keep).warnings(Plan(participation=1.0, steps=3))
    assert bool(said) == (form == "drift" and keep)
    assert not FedPMVR(alpha=0.0, form=form, keep_momentum=keep).warnings(Plan(participation=1.0, steps=3))


def test_a_kept_drift_stops_the_head() -> None:
    cohort = [[0, 1, 2]] * 60
    kept, reset = (path_of(FedPMVR(ALPHA, 1, "drift", keep), cohort=cohort)[-1] for keep in (True, False))
    centre = path_of(FedAvg(), cohort=cohort)[-1]
    np.testing.assert_allclose(reset, centre, atol=1e-3)
    assert abs(kept[1] - centre[1]) > 0.1
    np.testing.assert_allclose(kept[0], centre[0])


def test_the_head_may_be_named() -> None:
    for form in FORMS:
        named, counted = (path_of(FedPMVR(ALPHA, layers, form)) for layers in (["head.value"], 1))
        np.testing.assert_array_equal(named, counted)


def test_drift_with_alpha_one_never_trains_the_head() -> None:
    run = ud.simulate(FedPMVR(1.0, 1, "drift"), mlp(), classified(), **TRAINING)
    fedavg = ud.simulate(FedAvg(), mlp(), classified(), **TRAINING | {"rounds": 1})
    start = {k: v.detach() for k, v in mlp().named_parameters()}
    assert_close(run.parameters["4.weight"], start["4.weight"], rtol=0, atol=1e-15)
    assert not torch.allclose(run.parameters["0.weight"], start["0.weight"])
    first = ud.simulate(FedPMVR(1.0, 1, "drift"), mlp(), classified(), **TRAINING | {"rounds": 1})
    assert_close(first.parameters["2.weight"], fedavg.parameters["2.weight"], rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_only_what_is_kept_is_remembered(form: str) -> None:
    names = {"2.weight", "2.bias", "4.weight", "4.bias"}  # the last two layers of three
    for keep in (True, False):
        run = ud.simulate(FedPMVR(form=form, keep_momentum=keep), mlp(), classified(), **TRAINING)
        state = run.memory.own.gather(np.arange(2))
        assert {k for own in state.values() for k in own["momentum"]} == (names if keep else set())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.5}, "alpha must be at least 0 and at most 1, got 1.5"),
        ({"form": "gradients"}, "form must be one of 'gradient', .*, 'stepwise', got 'gradients'; did you mean"),
        ({"form": "stepwise", "accumulate": True}, "accumulate=True belongs to the other forms"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedPMVR(**options)
    with pytest.raises(TypeError, match="keep_momentum must be True or False, got 1"):
        FedPMVR(keep_momentum=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layers must lie between 0 and the model's 2 layers, got 3"):
        path_of(FedPMVR(layers=3))
