"""A setting that takes several values in turn, and how the accuracy depends on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import undrift as ud
from undrift.simulation.round import RoundRunner

QUICK: dict[str, Any] = {"rounds": 2, "lr": 0.3, "cohort": 4}


def compare(algorithms: Any = ("fedavg", "fedhbm"), data: Any = "digits", **arguments: Any) -> ud.Comparison:
    return ud.compare(algorithms, "softmax", data, **QUICK | arguments)


def test_values_of_the_data(tmp_path: Path) -> None:
    comparison = compare(vary={"partition": ["iid", "classes:2"]}, out=tmp_path, seeds=2)
    table = comparison.sensitivity()
    assert table.columns.tolist() == ["label", "partition", "accuracy", "std", "low", "high"]
    assert table["partition"].tolist() == ["iid", "classes:2"] * 2
    assert comparison.table()["task"].nunique() == 2
    assert (tmp_path / "partition-classes-2" / "fedavg" / "seed-0" / "config.json").exists()
    alone = ud.data.load("digits", "classes:2", seed=1)
    run = ud.simulate("fedhbm", "softmax", alone, seed=1, weighting="samples", **QUICK)
    found = next(r for r in comparison.records[4:] if (r.label, r.seed) == ("FedHBM", 1))
    np.testing.assert_allclose(found.history["loss"], run.history["loss"], rtol=1e-5)
    page = comparison.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("Accuracy against partition") >= 2  # the heading, and its name for screen readers
    assert ud.Comparison.from_directories([tmp_path]).sensitivity()["accuracy"].tolist() != []


def test_values_of_the_run() -> None:
    comparison = compare(["fedavg"], vary={"cohort": [2, 4]})
    assert comparison.sensitivity()["cohort"].tolist() == [2, 4]
    assert {record.label for record in comparison.records} == {"FedAvg"}
    # Batches of another size are no other task: labels tell them apart.
    comparison = compare(["fedavg"], vary={"batch_size": [8, 16]})
    assert [record.label for record in comparison.records] == ["FedAvg, batch_size 8", "FedAvg, batch_size 16"]
    assert comparison.sensitivity()["label"].tolist() == ["FedAvg", "FedAvg"]


def test_values_of_an_algorithm() -> None:
    comparison = compare(["fedavg", "feddpc"], vary={"feddpc.lam": [1, -0.5, 0.5]})
    assert [r.label for r in comparison.records] == ["FedAvg", "FedDPC", "FedDPC(lam=-0.5)", "FedDPC(lam=0.5)"]
    table = comparison.sensitivity()
    assert table["label"].tolist() == ["FedAvg", "FedDPC", "FedDPC", "FedDPC"]
    assert table["algorithm.lam"].isna().tolist() == [True, False, False, False]


def test_rates_written_with_an_algorithm_train_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = RoundRunner.run

    def run(self: RoundRunner, memories: Any, round: int) -> Any:
        seen.append(len(memories))
        return original(self, memories, round)

    monkeypatch.setattr(RoundRunner, "run", run)
    comparison = ud.compare(["fedavg(lr=0.1)", "fedprox", "fedavg(lr=0.3)"], "softmax", "digits", cohort=4, rounds=1)
    assert seen == [2, 1]
    assert [r.label for r in comparison.records] == ["FedAvg(lr=0.1)", "FedProx", "FedAvg(lr=0.3)"]
    # The same algorithm under two labels is two runs, each with its own directory.
    twice = ud.compare({"A": "fedavg", "B": "fedavg"}, "softmax", "digits", cohort=4, rounds=1)
    assert [r.label for r in twice.records] == ["A", "B"]


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"cohrt": [1]}, "vary: unknown setting 'cohrt'; did you mean 'cohort'?"),
        ({"cohort": []}, "vary: cohort must have at least one value"),
        ({"cohort": 3}, "vary: cohort must be a list of values"),
        ({"cohort": [1], "epochs": [2]}, "vary must name one setting"),
        ({"lam": [1]}, "'lam' is an option of an algorithm; did you mean 'feddpc.lam'?"),
        ({"fedavg.lam": [1]}, "FedAvg has no option 'lam'"),
        ({"fedhbm.beta": [1]}, "vary: fedhbm.beta: 'fedhbm' is none of the algorithms"),
        ({"cohort": [4, 4000]}, "cohort"),
        ({"partition": ["iid", "dirichlt:1"]}, "dirichlet"),
    ],
)
def test_wrong_input(vary: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        compare(["fedavg", "feddpc"], vary=vary, out=tmp_path / "out")
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_data_must_have_a_name() -> None:
    with pytest.raises(TypeError, match="vary='clients' needs data that are given by name"):
        compare(data=ud.data.load("digits"), vary={"clients": [5, 10]})


def test_runs_that_differ_in_more_have_no_sensitivity() -> None:
    with pytest.raises(ValueError, match="the runs do not differ in one setting alone"):
        compare().sensitivity()
