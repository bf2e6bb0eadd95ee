"""The order of a comparison: kept, extended, and done without where it is missing or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

import undrift as ud
from laws import classified, mlp
from undrift.storage.comparison import read_order, write_order

DATA = classified((4, 3, 5))


def test_the_newest_order_comes_first(tmp_path: Path) -> None:
    home = tmp_path / "new"
    assert read_order(home) == []
    write_order(home, ["b", "a"])
    write_order(home, ["c", "a"])
    assert read_order(home) == ["c", "a", "b"]
    assert [entry.name for entry in home.iterdir()] == ["comparison.json"]


def test_a_damaged_order_is_reported_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "comparison.json").write_text("{")
    assert read_order(tmp_path) == []
    assert "comparison.json is damaged" in caplog.text
    write_order(tmp_path, ["a"])
    assert read_order(tmp_path) == ["a"]


def test_comparisons_are_read_back_as_they_were(tmp_path: Path) -> None:
    algorithms = {"Z": "fedavg", "a": "fedhbm", "B": "fedprox"}
    made = ud.compare(algorithms, mlp(), DATA, DATA[0], rounds=1, seeds=[10, 2], out=tmp_path)
    read = ud.Comparison.from_directories([tmp_path])
    assert [(r.label, r.seed) for r in read.records] == [(r.label, r.seed) for r in made.records]
    assert [(r.label, r.seed) for r in read.records][:3] == [("Z", 2), ("Z", 10), ("a", 2)]
    (tmp_path / "comparison.json").unlink()
    old = ud.Comparison.from_directories([tmp_path])
    assert list(dict.fromkeys(r.label for r in old.records)) == ["a", "B", "Z"]


def test_comparisons_of_one_task_in_one_folder(tmp_path: Path) -> None:
    for name in ("one", "two"):
        ud.compare(["fedavg", "fedhbm"], mlp(), DATA, DATA[0], rounds=1, out=tmp_path / name)
    labels = [record.label for record in ud.Comparison.from_directories([tmp_path]).records]
    assert labels == [f"{label} ({tmp_path / name})" for name in ("one", "two") for label in ("FedAvg", "FedHBM")]
