"""Metrics of an evaluation: macro F1, and users' own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, precision_recall_fscore_support

import undrift as ud
from undrift.client.evaluate import macro
from undrift.client.metrics import find, macro_f1
from undrift.data.text import IGNORED


def scores(guess: np.ndarray[Any, Any], classes: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.from_numpy(guess), classes).float()


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_is_that_of_scikit_learn(seed: int) -> None:
    generator = np.random.default_rng(seed)
    truth, guess = generator.integers(0, 5, 40), generator.integers(0, 6, 40)  # class 6 never occurs, 5 is never true
    expected = f1_score(truth, guess, average="macro", zero_division=0)
    assert float(macro_f1(scores(guess, 7), torch.from_numpy(truth))) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_class_averages_are_those_of_scikit_learn(seed: int) -> None:
    generator = np.random.default_rng(seed)
    truth, guess = generator.integers(0, 5, 40), generator.integers(0, 6, 40)
    expected = precision_recall_fscore_support(truth, guess, average="macro", zero_division=0)[:3]
    assert tuple(macro(truth, guess).values()) == tuple(map(float, expected))


def test_ignored_positions_do_not_count() -> None:
    truth = torch.tensor([[0, 1, IGNORED], [1, IGNORED, IGNORED]])
    guess = torch.tensor([[0, 0, 1], [1, 0, 0]])
    expected = f1_score([0, 1, 1], [0, 0, 1], average="macro")
    assert float(macro_f1(torch.nn.functional.one_hot(guess, 2).float(), truth)) == pytest.approx(expected)


def test_f1_needs_classes() -> None:
    with pytest.raises(ValueError, match="f1 needs scores of classes"):
        macro_f1(torch.zeros(3, 1), torch.zeros(3, 1))


SETTINGS: dict[str, Any] = {"rounds": 4, "eval_every": 2, "lr": 0.1}


def test_metrics_are_columns_of_the_history() -> None:
    run = ud.simulate(
        "fedavg", "softmax", "digits", metrics={"f1": macro_f1, "samples": lambda o, t: len(t)}, **SETTINGS
    )
    assert list(run.history.columns[-2:]) == ["f1", "samples"]
    assert run.history.f1.isna().tolist() == [True, False, True, False]
    assert run.history.samples.iloc[-1] == len(run.experiment.data.test[1])  # type: ignore[index]
    assert run.history.f1.iloc[-1] == pytest.approx(run.evaluate().f1.iloc[0])


@pytest.mark.parametrize("given", ["f1", ["f1"], ("f1",)])
def test_metrics_by_name(given: Any, tmp_path: Any) -> None:
    run = ud.simulate("fedavg", "softmax", "digits", metrics=given, out=tmp_path / "run", **SETTINGS)
    again = ud.resume(tmp_path / "run", rounds=6)
    assert again.history.f1[:4].equals(run.history.f1)
    assert math.isfinite(again.history.f1.iloc[-1])


def test_own_metrics_are_given_again_to_resume(tmp_path: Any) -> None:
    ud.simulate("fedavg", "softmax", "digits", metrics={"mine": macro_f1}, out=tmp_path / "run", **SETTINGS)
    with pytest.raises(ValueError, match="metrics given as an object; give metrics= again"):
        ud.resume(tmp_path / "run", rounds=6)
    assert "mine" in ud.resume(tmp_path / "run", rounds=6, metrics={"mine": macro_f1}).history


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (["f2"], ValueError, "unknown metric 'f2'; did you mean 'f1'?"),
        ({"loss": macro_f1}, ValueError, "a column 'loss' already"),
        ({"two words": macro_f1}, ValueError, "must be a plain word"),
        ({"mine": 3}, TypeError, "must be a function of"),
    ],
)
def test_refused(given: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        find(given, reserved=("loss",))


def test_a_metric_that_is_no_number_is_named() -> None:
    with pytest.raises(TypeError, match="metric 'mine' must return a number, got str"):
        ud.simulate("fedavg", "softmax", "digits", metrics={"mine": lambda o, t: "good"}, **SETTINGS)
