"""Figures of every client, for algorithms that have one model for all."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import undrift as ud
from laws import classified, mlp
from undrift.simulation import evaluation

SETTINGS: dict[str, Any] = {"rounds": 3, "cohort": 3, "batch_size": 4, "lr": 0.1}
TEST = classified((40,))[0]


def accuracy(run: ud.Run, x: Tensor, y: Tensor) -> float:
    return float((run.predict(x).argmax(1) == y).double().mean()) if len(y) else math.nan


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedexp"])
def test_the_servers_model_on_the_test_samples_of_its_classes(algorithm: str) -> None:
    data = classified()
    data = [*data, (data[0][0][:2], torch.zeros(2, dtype=torch.int64))]  # of one class only
    run = ud.simulate(algorithm, mlp(), data, test=TEST, **SETTINGS)
    x, y = (torch.as_tensor(part) for part in TEST)
    known = [torch.isin(y, torch.as_tensor(own)) for _, own in data]
    np.testing.assert_allclose(run.clients["accuracy"], [accuracy(run, x[k], y[k]) for k in known])
    assert run.clients["classes"].iloc[-1] == 1


def test_the_servers_model_on_what_was_held_out() -> None:
    data = ud.FederatedData.from_clients([*classified((9, 12, 5)), classified((1,))[0]]).hold_out(0.3)
    run = ud.simulate("fedavg", mlp(), data, **SETTINGS)
    tests = [data.client_test(client) for client in range(len(data))]
    assert all(test is not None for test in tests)
    np.testing.assert_allclose(run.clients["accuracy"], [accuracy(run, *test) for test in tests if test is not None])
    assert math.isnan(run.clients["accuracy"].iloc[-1])  # it has a single sample, for training


def test_every_token_counts() -> None:
    """A sample with several targets has as many answers, but for those that are ignored."""
    x, y = torch.zeros(6, 4, dtype=torch.int64), torch.tensor([[0, 1, 1, -100]] * 6)
    data = ud.FederatedData(x, y, [[0, 1, 2], [3, 4, 5]], normalise=None).hold_out(0.4)
    model = torch.nn.Sequential(torch.nn.Embedding(2, 2))
    run = ud.simulate("fedavg", model, data, rounds=1, lr=1e-6)
    guess = int(run.predict(x[:1]).argmax(-1)[0, 0])
    assert run.clients["accuracy"].tolist() == pytest.approx([2 / 3 if guess else 1 / 3] * 2)


def test_summary() -> None:
    run = ud.simulate("fedavg", "softmax", "digits", rounds=2, cohort=8, lr=0.1)
    accuracies = np.sort(run.clients["accuracy"])
    found = run.fairness
    assert {name: found[name] for name in ("clients", "mean", "std", "worst", "worst_tenth", "best")} == pytest.approx(
        {
            "clients": 40,
            "mean": accuracies.mean(),
            "std": accuracies.std(),
            "worst": accuracies[0],
            "worst_tenth": accuracies[:4].mean(),
            "best": accuracies[-1],
        }
    )


def test_without_test_samples() -> None:
    run = ud.simulate("fedavg", mlp(), classified(), **SETTINGS)
    assert run.clients["accuracy"].isna().all()
    assert run.fairness["clients"] == 0
    assert math.isnan(run.fairness["mean"])


def test_nothing_is_computed_unless_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def asked(*args: Any) -> Any:
        raise AssertionError("nobody asked")

    monkeypatch.setattr(evaluation, "_answers", asked)
    run = ud.simulate("fedavg", mlp(), classified(), test=TEST, out=tmp_path / "run", **SETTINGS)
    run._repr_html_()
    with pytest.raises(AssertionError, match="nobody asked"):
        run.fairness  # noqa: B018


def test_own_metrics_are_in_history_table_and_report(tmp_path: Path) -> None:
    metrics = {"sure_answers": lambda outputs, targets: (outputs.softmax(1).amax(1) > 0.5).double().mean()}
    comparison = ud.compare(["fedavg", "fedprox"], mlp(), classified(), TEST, metrics=metrics, **SETTINGS)
    assert comparison.records[0].history["sure_answers"].notna().all()
    table = comparison.table()
    assert table["sure_answers"].between(0, 1).all()
    page = comparison.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Final sure answers" in page
    assert "Sure answers" in page
    assert "Final sure answers" in comparison._repr_html_()
