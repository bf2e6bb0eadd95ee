"""Metrics of an evaluation: of classes, of clients, and users' own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import confusion_matrix, f1_score, precision_recall_fscore_support
from torch import nn
from torchmetrics.functional import classification as torchmetrics

import undrift as ud
from laws import classified, mlp
from undrift.client import evaluate
from undrift.client.classification import class_accuracies, confusion, macro_f1
from undrift.client.fairness import fairness
from undrift.client.metrics import FUNCTIONS, METRICS, find
from undrift.data.text import IGNORED
from undrift.reporting.record import TIMES
from undrift.simulation import evaluation


def scores(guess: np.ndarray[Any, Any], classes: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.from_numpy(guess), classes).float()


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_is_that_of_scikit_learn(seed: int) -> None:
    generator = np.random.default_rng(seed)
    truth, guess = generator.integers(0, 5, 40), generator.integers(0, 6, 40)  # class 6 never occurs, 5 is never true
    expected = f1_score(truth, guess, average="macro", zero_division=0)
    assert float(macro_f1(scores(guess, 7), torch.from_numpy(truth))) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_averages_over_classes_are_those_of_scikit_learn_and_torchmetrics(seed: int) -> None:
    generator = np.random.default_rng(seed)
    truth, guess = generator.integers(0, 5, 40), generator.integers(0, 6, 40)
    outputs, targets = scores(guess, 7), torch.from_numpy(truth)
    expected = precision_recall_fscore_support(truth, guess, average="macro", zero_division=0)[:3]
    names = ("precision", "recall", "f1")
    assert [float(FUNCTIONS[name](outputs, targets)) for name in names] == pytest.approx(expected, abs=1e-15)
    for name, of_torchmetrics in zip(names, ("precision", "recall", "f1_score"), strict=True):
        function = getattr(torchmetrics, f"multiclass_{of_torchmetrics}")
        for ours, average in ((name, "macro"), (f"{name}_micro", "micro")):
            theirs = float(function(outputs, targets, num_classes=7, average=average))  # in single precision
            assert float(FUNCTIONS[ours](outputs, targets)) == pytest.approx(theirs, abs=1e-6)


def test_confusion_and_class_accuracies_are_those_of_scikit_learn_and_torchmetrics() -> None:
    generator = np.random.default_rng(0)
    truth, guess = generator.integers(0, 5, 60), generator.integers(0, 6, 60)
    outputs, targets = scores(guess, 7), torch.from_numpy(truth)
    matrix = confusion(outputs, targets)
    np.testing.assert_array_equal(matrix, confusion_matrix(truth, guess, labels=range(7)))
    assert torch.equal(matrix, torchmetrics.multiclass_confusion_matrix(outputs, targets, num_classes=7))
    found = class_accuracies(outputs, targets)
    np.testing.assert_allclose(found[:5], [(guess[truth == c] == c).mean() for c in range(5)])
    assert found[5:].isnan().all()  # classes without samples


def test_those_of_torchmetrics() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(50, 3, generator=generator), torch.randint(0, 3, (50,), generator=generator)
    padded = torch.cat([outputs, outputs[:1]]), torch.cat([targets, torch.tensor([IGNORED])])
    for name in ("auroc", "calibration_error"):
        expected = getattr(torchmetrics, f"multiclass_{name}")(outputs.softmax(1), targets, num_classes=3)
        assert float(FUNCTIONS[name](*padded)) == pytest.approx(float(expected))


def test_ignored_positions_do_not_count() -> None:
    truth = torch.tensor([[0, 1, IGNORED], [1, IGNORED, IGNORED]])
    guess = torch.tensor([[0, 0, 1], [1, 0, 0]])
    expected = f1_score([0, 1, 1], [0, 0, 1], average="macro")
    assert float(macro_f1(torch.nn.functional.one_hot(guess, 2).float(), truth)) == pytest.approx(expected)


def test_f1_needs_classes() -> None:
    with pytest.raises(ValueError, match="need scores of classes and class numbers, got outputs of shape"):
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


@pytest.mark.parametrize("given", ["f1", ["f1"], ("recall", "f1"), "f1, recall"])
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


CLASSIFIED: dict[str, Any] = {"rounds": 4, "eval_every": 2, "cohort": 3, "batch_size": 4, "lr": 0.1}
TEST = classified((40,))[0]
ALL = [name for name in METRICS if name not in ("auroc", "calibration_error")]


def small(algorithm: str = "fedavg", **options: Any) -> ud.Run:
    return ud.simulate(algorithm, mlp(), classified(), test=TEST, **CLASSIFIED | options)


@pytest.mark.parametrize(
    ("algorithm", "engine"),
    [("fedavg", "batched"), ("perfedavg", "sequential"), ("perfedavg", "batched"), ("mafsvrg(models=2)", "sequential")],
)
def test_all_by_name(algorithm: str, engine: str) -> None:
    """Columns follow from what the run says itself, and nothing else changes."""
    plain, run = (small(algorithm, engine=engine, metrics=metrics) for metrics in ((), ALL))
    shared = [name for name in plain.history if name not in TIMES]
    pd.testing.assert_frame_equal(run.history[shared], plain.history[shared])
    last, outputs, y = run.history.iloc[-1], run.predict(TEST[0]), torch.as_tensor(TEST[1])
    assert run.history["f1"].isna().tolist() == [True, False, True, False]
    assert last["precision_micro"] == last["recall_micro"] == last["f1_micro"] == last["accuracy"]
    guess = outputs.argmax(1)
    for number in range(3):
        share = float((guess[y == number] == number).double().mean())
        assert last[f"accuracy_class_{number}"] == pytest.approx(share)
    np.testing.assert_array_equal(run.confusion, confusion_matrix(y, guess))
    np.testing.assert_array_equal(plain.confusion, run.confusion)
    accuracies = plain.clients["accuracy"].to_numpy()
    for name, value in plain.fairness.items():
        assert name == "clients" or last[f"client_accuracy_{name}"] == pytest.approx(value)
    assert last["personal_accuracy"] == pytest.approx(np.average(accuracies, weights=plain.clients["samples"]))


def test_personal_accuracy_of_private_batch_normalisation() -> None:
    """Features of the two clients are far apart: only one's own normalisation, which FedBN keeps, removes that."""
    generator = np.random.default_rng(0)
    y, client = generator.integers(0, 2, 80), np.repeat([0, 1], 40)
    x = generator.normal(size=(80, 2)) + 4 * np.eye(2)[y] + 30 * client[:, None]
    data = ud.FederatedData(x.astype(np.float32), y, np.split(np.arange(80), 2), classes=2).hold_out(0.25)
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    given: dict[str, Any] = {"rounds": 10, "batch_size": 10, "lr": 0.2, "metrics": ["personal_accuracy"]}
    own, shared = (ud.simulate(algorithm, model, data, **given) for algorithm in ("fedbn", "fedavg"))
    assert own.history["personal_accuracy"].iloc[-1] == 1
    assert own.clients["accuracy"].tolist() == [1, 1]
    assert own.history["accuracy"].iloc[-1] < 0.8  # the mean of the normalisations suits nobody
    assert shared.history["personal_accuracy"].iloc[-1] == shared.history["accuracy"].iloc[-1] < 0.8


def test_metrics_are_those_of_the_preferred_model() -> None:
    """Of algorithms with several models; best, mean and worst are columns of their own."""
    run = small("mafsvrg(models=3)", metrics=["f1", "recall"])
    table, last = run.evaluate(), run.history.iloc[-1]
    assert last["f1"] == table["f1"].iloc[0]
    assert last["recall"] == table["recall"].iloc[0]
    assert last["accuracy_worst"] <= last["accuracy"] == table["accuracy"].iloc[0] <= last["accuracy_best"]


def test_fairness_by_hand() -> None:
    found = fairness(np.array([0.5, math.nan, 0.9, 0.7, 0.7]))
    assert found == pytest.approx(
        {
            "mean": 0.7,
            "std": math.sqrt((0.04 + 0.04) / 4),
            "worst": 0.5,
            "worst_tenth": 0.5,
            "best": 0.9,
            "gap": 0.4,
            "jain": 2.8**2 / (4 * (0.25 + 0.81 + 0.49 + 0.49)),
        }
    )
    assert fairness(np.arange(20) / 20)["worst_tenth"] == pytest.approx(0.025)  # two of twenty
    assert fairness(np.array([0.3, 0.3]))["jain"] == pytest.approx(1)
    assert math.isnan(fairness(np.zeros(2))["jain"])
    assert all(map(math.isnan, fairness(np.array([math.nan])).values()))


def test_details_are_kept_and_resumed_exactly(tmp_path: Path) -> None:
    metrics = ["confusion", "fairness", "per_class_accuracy"]
    whole = small(metrics=metrics, rounds=6, out=tmp_path / "whole")
    small(metrics=metrics, rounds=4, out=tmp_path / "part")
    data: dict[str, Any] = {"model": mlp(), "data": classified(), "test": TEST}
    idle = ud.resume(tmp_path / "part", **data)  # nothing is left to do, and nothing is lost
    assert idle.record.detail is not None
    assert idle.record.detail["round"] == 4
    with (tmp_path / "part" / "details.jsonl").open("a") as log:
        log.write('{"round": 6, "cut off')
    ud.resume(tmp_path / "part", rounds=6, **data)
    lines = [(tmp_path / name / "details.jsonl").read_text() for name in ("whole", "part")]
    assert lines[0] == lines[1]
    details = [json.loads(line) for line in lines[0].splitlines()]
    assert [detail["round"] for detail in details] == [2, 4, 6]
    assert details[-1]["confusion"] == whole.confusion.to_numpy().tolist()
    assert details[-1]["client_accuracy"] == whole.clients["accuracy"].tolist()
    stored = ud.Comparison.from_directories([tmp_path / "whole"]).records[0].detail
    assert stored == whole.record.detail


def test_damaged_details_are_named_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small(metrics="confusion", out=tmp_path / "run")
    file = tmp_path / "run" / "details.jsonl"
    file.write_text(file.read_text().replace('"round":4', '"round":3'))
    assert ud.Comparison.from_directories([tmp_path / "run"]).records[0].detail is None
    assert "details.jsonl is damaged or was edited" in caplog.text
    caplog.clear()
    again = ud.resume(tmp_path / "run", rounds=6, model=mlp(), data=classified(), test=TEST)
    assert "details.jsonl is damaged or was edited" in caplog.text
    assert again.record.detail is not None
    assert [json.loads(line)["round"] for line in file.read_text().splitlines()] == [2, 6]


def test_runs_that_train_together(tmp_path: Path) -> None:
    given: dict[str, Any] = CLASSIFIED | {"metrics": ["fairness", "confusion"], "engine": "batched"}
    together = ud.compare(["fedavg"], mlp(), classified(), TEST, seeds=2, out=tmp_path / "runs", **given)
    for record in together.records:
        alone = ud.simulate("fedavg", mlp(), classified(), TEST, seed=record.seed, weighting="samples", **given)
        assert record.detail == alone.record.detail
    page = together.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Worst tenth of clients" in page


def test_free_when_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    totals = evaluate.totals

    def noted(*args: Any) -> Any:
        kept.append(args[3])
        return totals(*args)

    monkeypatch.setattr(evaluation, "totals", noted)
    monkeypatch.setattr(evaluation, "client_accuracies", None)
    run = small()
    assert kept == [False, False]
    assert run.record.detail is None


@pytest.mark.parametrize("name", [name for name in METRICS if name != "f1_micro"])
def test_regression_has_no_classes(name: str) -> None:
    x = torch.randn(8, 3)
    with pytest.raises(
        ValueError, match=f"metric '{name}' needs scores of classes and class numbers, got outputs of sh"
    ):
        ud.simulate(
            "fedavg",
            nn.Linear(3, 1),
            [(x, x.sum(1))] * 2,
            (x, x.sum(1)),
            metrics=[name],
            rounds=1,
            loss=lambda output, target: (output[:, 0] - target) ** 2,
        )


def test_what_metrics_need_is_said_before_anything_trains() -> None:
    x, y = torch.zeros(4, 3), torch.tensor([0, 1, 2, 5])

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output[:, 0] - target) ** 2

    with pytest.raises(ValueError, match="from 0 to 1, as the model scores 2 classes, got targets from 0 to 5"):
        ud.simulate("fedavg", nn.Linear(3, 2), [(x, y)], (x, y), loss=loss, metrics="recall")
    with pytest.raises(ValueError, match="'f1' needs test samples; give test="):
        ud.simulate("fedavg", nn.Linear(3, 6), [(x, y)], metrics="f1")
    with pytest.raises(ValueError, match="'confusion' is for at most 1000 classes, and there are 1001"):
        ud.simulate("fedavg", nn.Linear(3, 1001), [(x, y)], (x, y), metrics="confusion")
    words = torch.zeros(4, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match="'fairness' needs test samples of every client; hold some out"):
        ud.simulate("fedavg", nn.Embedding(2, 2), [(words, words)], (words, words), metrics="fairness")
