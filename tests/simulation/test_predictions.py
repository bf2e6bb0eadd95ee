"""What the final model says of the test samples is kept, in memory and in the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

import undrift as ud
from laws import classified, mlp
from undrift.client import evaluate
from undrift.simulation.comparison import Comparison
from undrift.statistics.predictions import Predictions
from undrift.storage import predictions as stored
from undrift.storage.files import DamageError

TEST = classified((300,))[0]  # more than a block
SETTINGS: dict[str, Any] = {"rounds": 3, "cohort": 2, "batch_size": 4, "lr": 0.1}


def run(out: Path | None = None, **options: Any) -> ud.Run:
    given: dict[str, Any] = SETTINGS | {"test": TEST, "model": mlp(), "data": classified()} | options
    return ud.simulate("fedavg", out=out, **given)


def read(home: Path) -> Predictions | None:
    return Comparison.from_directories([home]).records[0].predictions


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_they_are_those_of_the_model_in_the_history(engine: str) -> None:
    result = run(engine=engine)
    found = result.predictions
    assert found is not None
    assert found.probabilities is not None
    scores = result.predict(TEST[0])
    assert found.targets.tolist() == TEST[1].tolist()
    assert found.labels.tolist() == scores.argmax(-1).tolist()
    assert found.probabilities.dtype == np.float32
    np.testing.assert_allclose(found.probabilities, scores.softmax(-1).numpy(), rtol=1e-6)
    assert found.accuracy == result.history["accuracy"].iloc[-1]
    assert result.record.predictions is found


def test_the_directory_has_them_whether_the_run_ended_early_was_resumed_or_extended(tmp_path: Path) -> None:
    whole = run(rounds=5)
    run(tmp_path / "a", rounds=5, callbacks=[lambda row, run: row["round"] == 2])
    assert read(tmp_path / "a") == run(rounds=2).predictions
    ud.resume(tmp_path / "a", model=mlp(), data=classified(), test=TEST)
    assert read(tmp_path / "a") == whole.predictions
    longer = ud.resume(tmp_path / "a", rounds=7, model=mlp(), data=classified(), test=TEST)
    assert read(tmp_path / "a") == longer.predictions
    assert longer.predictions != whole.predictions


def test_runs_that_train_together_have_their_own(tmp_path: Path) -> None:
    compared = ud.compare(["fedavg"], mlp(), classified(), TEST, seeds=2, out=tmp_path, **SETTINGS)
    first, second = (record.predictions for record in compared.records)
    assert first is not None
    assert first != second
    assert first.accuracy == compared.records[0].history["accuracy"].iloc[-1]
    again = Comparison.from_directories([tmp_path])
    assert [record.predictions for record in again.records] == [first, second]


def test_finished_runs_are_not_evaluated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tmp_path / "a")

    def refuse(*args: Any) -> None:
        raise AssertionError("evaluated once more")

    monkeypatch.setattr("undrift.simulation.run.predictions", refuse)
    again = ud.resume(tmp_path / "a", model=mlp(), data=classified(), test=TEST)
    assert again.record.predictions == first.predictions


def _stop(row: dict[str, Any], run: ud.Run) -> None:
    raise RuntimeError("stopped")


def test_a_run_that_goes_on_has_none_of_an_earlier_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "a"
    run(out)
    with pytest.raises(RuntimeError, match="stopped"):
        ud.resume(out, rounds=6, model=mlp(), data=classified(), test=TEST, callbacks=[_stop])
    assert read(out) is None
    assert f"{out / stored.FILE} is of round 3, not of round 4" in caplog.text


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _other_labels(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def _foreign(path: Path) -> None:
    save_file({"weight": np.zeros(3)}, path)


def _unchecked(path: Path) -> None:
    save_file(load_file(path), path)


@pytest.mark.parametrize("damage", [_cut, _other_labels, _foreign, _unchecked, Path.unlink])
def test_a_broken_file_is_named_and_written_again(damage: Any, tmp_path: Path, caplog: Any) -> None:
    out = tmp_path / "a"
    whole = run(out).predictions
    damage(out / stored.FILE)
    assert read(out) is None
    assert str(out / stored.FILE) in caplog.text
    ud.resume(out, model=mlp(), data=classified(), test=TEST)
    assert read(out) == whole


def test_too_many_probabilities_leave_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "undrift")
    whole = run().predictions
    assert whole is not None
    assert whole.probabilities is not None
    monkeypatch.setattr(evaluate, "MOST_BYTES", whole.probabilities.nbytes - 1)
    run(tmp_path / "a")
    assert read(tmp_path / "a") == Predictions(whole.targets, whole.labels)
    assert "only labels are kept" in caplog.text


def test_probabilities_that_are_not_finite_leave_labels(tmp_path: Path) -> None:
    class Infinite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.layer(x)
            return scores if self.training else scores + torch.inf

    x = torch.randn(8, 4, dtype=torch.float64)
    y = torch.arange(8) % 3
    found = run(tmp_path / "a", model=Infinite(), data=[(x, y)], test=(x, y), cohort=None).predictions
    assert found is not None
    assert found.probabilities is None
    assert read(tmp_path / "a") == found


def test_nothing_without_classes_or_test_samples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(8, 3)
    line: dict[str, Any] = {"model": nn.Linear(3, 1), "data": [(x, x[:, :1])], "loss": _squared, "cohort": None}
    assert run(tmp_path / "a", **line, test=(x, x[:, :1])).predictions is None
    assert run(tmp_path / "b", test=None).predictions is None
    assert read(tmp_path / "a") is None
    assert read(tmp_path / "b") is None
    assert stored.FILE not in caplog.text


def _squared(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum(1)


def test_of_sequences_every_position_that_is_scored(tmp_path: Path) -> None:
    x = torch.randn(6, 5, 4)
    y = torch.arange(30).reshape(6, 5) % 3
    y[2, 3:] = -100
    found = run(tmp_path / "a", model=nn.Linear(4, 3), data=[(x, y)], test=(x, y), cohort=None)
    assert found.predictions is not None
    assert found.predictions.targets.tolist() == y[y >= 0].tolist()
    assert found.predictions.accuracy == found.history["accuracy"].iloc[-1]


def _grows(output: Tensor, target: Tensor) -> Tensor:
    return output.square().sum(1)


def test_a_run_that_diverged_has_none(tmp_path: Path) -> None:
    x, y = torch.ones(8, 2), torch.arange(8) % 2
    settings: dict[str, Any] = {"lr": 1e18, "loss": _grows, "cohort": None, "on_divergence": "stop"}
    result = run(tmp_path / "a", model=nn.Linear(2, 2), data=[(x, y)], test=(x, y), **settings)
    assert result.history["diverged"].any()
    assert result.predictions is None
    assert not (tmp_path / "a" / stored.FILE).exists()


def test_overwriting_a_run_removes_them(tmp_path: Path) -> None:
    run(tmp_path / "a")
    with pytest.raises(RuntimeError, match="stopped"):
        run(tmp_path / "a", overwrite=True, callbacks=[_stop])
    with pytest.raises(DamageError, match="missing"):
        stored.read(tmp_path / "a", 1)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"labels": np.zeros(3, dtype=np.int64)}, "one length"),
        ({"labels": np.zeros(2)}, "int64"),
        ({"probabilities": np.zeros((3, 2), dtype=np.float32)}, "probabilities must be float32"),
        ({"probabilities": np.full((2, 2), 1.5, dtype=np.float32)}, "between 0 and 1"),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(fields: dict[str, Any], problem: str) -> None:
    two = np.zeros(2, dtype=np.int64)
    with pytest.raises(ValueError, match=problem):
        Predictions(**{"targets": two, "labels": two} | fields)
