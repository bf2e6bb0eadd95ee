from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quadratics import BY_ONES, P2, P3, SIZED, length
from undrift.algorithms import FedADC, FedAvg

COUNTS, COHORTS = np.array([1, 4, 2]), [[0, 1], [1, 2], [0, 2], [0, 1, 2]]


def path_of(
    form: str,
    lookahead: bool,
    weights: np.ndarray,
    beta: float = 0.7,
    rho: float = 0.0,
    decay: float = 1.0,
    rate: float = 1.0,
) -> list[np.ndarray]:
    """FedADC with K_i = (1, 4, 2), momentum ρ, a rate that decays and a server's factor, as its equations say."""
    x, m, expected = np.array(P3.start), np.zeros(1), []
    for number, cohort in enumerate(COHORTS):
        lr = P3.lr * decay**number
        w = weights[cohort] / weights[cohort].sum()
        back = np.zeros(1)
        for share, i in zip(w, cohort, strict=True):
            each = (beta * m if form == "v1" else m) / (COUNTS[i] if lookahead else length(COUNTS[i], rho))
            y, buffer = x, np.zeros(1)
            for _ in range(COUNTS[i]):
                y = y - lr * each if lookahead else y
                direction = P3.a[i] * (y - P3.b[i]) + (0 if lookahead else each)
                buffer = rho * buffer + direction
                y = y - lr * buffer
            back = back + share * (x - y)
        m = back / lr if form == "v1" else back / lr - (1 - beta) * m
        x = x - rate * lr * m
        expected.append(x)
    return expected


@pytest.mark.parametrize("form", ["v1", "v2"])
@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("local", [{}, {"rho": 0.5}, {"decay": 0.8}, {"rate": 0.5}])
def test_by_hand(form: str, lookahead: bool, weighting: str, local: dict[str, float]) -> None:
    """Four rounds of partial participation and unequal steps."""
    names = {"rho": "momentum", "decay": "lr_decay", "rate": "server_lr"}
    settings: dict[str, Any] = {names[k]: v for k, v in local.items()}
    weights = np.ones(3) if weighting == "uniform" else COUNTS.astype(float)
    path, _ = SIZED.run(FedADC(0.7, form, lookahead), 4, cohort=COHORTS, **BY_ONES, weighting=weighting, **settings)
    np.testing.assert_allclose(path, path_of(form, lookahead, weights, **local), rtol=1e-12)


@pytest.mark.parametrize("form", ["v1", "v2"])
def test_first_round_is_fedavg(form: str) -> None:
    assert P2.run(FedADC(0.9, form), 1)[0] == P2.run(FedAvg(), 1)[0]


def test_forms_agree_for_one_step_only() -> None:
    """With K = 1 both take the gradient at x; then m ← β m + g is all there is."""
    one, two = (P2.run(FedADC(0.9, form), 8, steps=1)[0] for form in ("v1", "v2"))
    np.testing.assert_allclose(one, two, rtol=1e-12)
    one, two = (P2.run(FedADC(0.9, form), 2)[0] for form in ("v1", "v2"))
    np.testing.assert_allclose([one[1, 0], two[1, 0]], [2.6482, 2.6415], rtol=1e-12)


@pytest.mark.parametrize("form", ["v1", "v2"])
@pytest.mark.parametrize("lookahead", [False, True])
def test_rests_where_fedavg_does(form: str, lookahead: bool) -> None:
    still = replace(P2, start=(2.9142857143,))
    np.testing.assert_allclose(still.run(FedADC(0.9, form, lookahead), 5)[0], 2.9142857143, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"beta": 1.0}, ValueError, "beta must be at least 0 and less than 1, got 1.0"),
        ({"form": "v3"}, ValueError, "form must be one of 'v2', 'v1', got 'v3'"),
        ({"lookahead": "red"}, TypeError, "lookahead must be True or False, got 'red'"),
    ],
)
def test_refuses(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        FedADC(**options)


def test_refuses_adam() -> None:
    with pytest.raises(ValueError, match="which Adam rescales; optimizer must be 'sgd' or 'nesterov'"):
        P2.run(FedADC(), 1, optimizer="adam")
