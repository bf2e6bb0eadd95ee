"""The order of a comparison: kept, extended, and done without where it is missing or damaged."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from torch import nn

import undrift as ud
from laws import classified, mlp
from undrift.reporting.record import TIMES
from undrift.storage.comparison import read, write

DATA = classified((4, 3, 5))


def test_the_newest_order_comes_first(tmp_path: Path) -> None:
    home = tmp_path / "new"
    assert list(read(home).labels) == []
    write(home, ["b", "a"])
    write(home, ["c", "a"])
    assert read(home).labels == ["c", "a", "b"]
    assert [entry.name for entry in home.iterdir()] == ["comparison.json"]


def test_a_damaged_order_is_reported_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "comparison.json").write_text("{")
    assert list(read(tmp_path).labels) == []
    assert "comparison.json is damaged" in caplog.text
    write(tmp_path, ["a"])
    assert read(tmp_path).labels == ["a"]


def test_comparisons_are_read_back_as_they_were(tmp_path: Path) -> None:
    algorithms = {"Z": "fedavg", "a": "fedhbm", "B": "fedprox"}
    made = ud.compare(algorithms, mlp(), DATA, DATA[0], rounds=1, seeds=[10, 2], out=tmp_path)
    read = ud.Comparison.from_directories([tmp_path])
    assert [(r.label, r.seed) for r in read.records] == [(r.label, r.seed) for r in made.records]
    assert [(r.label, r.seed) for r in read.records][:3] == [("Z", 2), ("Z", 10), ("a", 2)]
    (tmp_path / "comparison.json").unlink()
    old = ud.Comparison.from_directories([tmp_path])
    assert list(dict.fromkeys(r.label for r in old.records)) == ["a", "B", "Z"]


def test_targets_are_kept(tmp_path: Path) -> None:
    given: dict[str, Any] = {"rounds": 2, "centralised": True, "out": tmp_path / "a", "last_k": np.int64(1)}
    targets: Any = (np.float32(0.25), "50%")
    made = ud.compare(["fedavg"], mlp(), DATA, DATA[0], targets=targets, **given)
    read = ud.Comparison.from_directories([tmp_path])
    assert read.targets == [0.25, "50%"]
    assert read.last_k == 1
    assert_frame_equal(read.table(), made.table())
    assert ud.Comparison.from_directories([tmp_path], targets=0.5, last_k=2).targets == 0.5
    # Without the reference, a share of its accuracy means nothing.
    assert ud.Comparison.from_directories([tmp_path / "a" / "fedavg"]).targets is None
    shutil.rmtree(tmp_path / "a" / "centralised")
    assert ud.Comparison.from_directories([tmp_path]).targets is None
    # The newest comparison says by what it is measured; several may not agree.
    ud.compare(["fedavg"], mlp(), DATA, DATA[0], targets=0.5, **given)
    assert ud.Comparison.from_directories([tmp_path]).targets == 0.5
    ud.compare(["fedavg"], mlp(), DATA, DATA[0], targets=0.6, **given | {"out": tmp_path / "b"})
    assert ud.Comparison.from_directories([tmp_path]).targets is None


def test_comparisons_of_one_task_in_one_folder(tmp_path: Path) -> None:
    for name in ("one", "two"):
        ud.compare(["fedavg", "fedhbm"], mlp(), DATA, DATA[0], rounds=1, out=tmp_path / name)
    labels = [record.label for record in ud.Comparison.from_directories([tmp_path]).records]
    assert labels == [f"{label} ({tmp_path / name})" for name in ("one", "two") for label in ("FedAvg", "FedHBM")]


class TestAnotherInitialisation:
    """Of a module the architecture must be the same; weights are those that the comparison was begun with."""

    ALGORITHMS: ClassVar = {"A": "fedavg", "H": "fedhbm"}

    def compare(
        self, model: nn.Module, home: Path | None, algorithms: Any = ALGORITHMS, **options: Any
    ) -> pd.DataFrame:
        options = {"rounds": 3, "seeds": 2, "lr": 0.1} | options
        curves = ud.compare(algorithms, model, DATA, DATA[0], out=home, **options).curves()
        return curves.drop(columns=TIMES)

    def test_a_repeated_comparison_is_the_same(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        whole = self.compare(mlp(), None)
        self.compare(mlp(), tmp_path, {"A": "fedavg"}, rounds=2)
        caplog.set_level("INFO", "undrift")
        assert_frame_equal(self.compare(shifted(mlp()), tmp_path), whole)  # the new algorithm begins there as well
        assert "the initial weights are those that the comparison in this directory was begun with" in caplog.text
        assert_frame_equal(self.compare(shifted(mlp()), tmp_path), whole)

    def test_the_order_of_old_and_new_makes_no_difference(self, tmp_path: Path) -> None:
        self.compare(mlp(), tmp_path, {"H": "fedhbm"})
        assert_frame_equal(self.compare(shifted(mlp()), tmp_path), self.compare(mlp(), None))

    def test_another_architecture_is_refused(self, tmp_path: Path) -> None:
        self.compare(mlp(), tmp_path, {"A": "fedavg"})
        with pytest.raises(ValueError, match=r"^A: the given model is not the one .*: it has no '\d\.\w+'$"):
            self.compare(nn.Sequential(mlp()[0]), tmp_path)
        assert not (tmp_path / "h").exists()


def shifted(model: nn.Module) -> nn.Module:
    for value in model.parameters():
        value.data += 1
    return model
