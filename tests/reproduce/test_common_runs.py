"""What experiments take over from each other."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from undrift.reporting.record import Record
from undrift.reproduce import experiment, stored
from undrift.reproduce.common_runs import take_over
from undrift.reproduce.results import Chosen, Results

TEXT = """
paper = "Mine"
table = "Table 1"
title = "Digits"
[data]
name = { value = "digits", source = "§1" }
[run]
rounds = { value = 4, source = "§1" }
eval_every = { value = 1, source = "§1" }
[algorithms]
A = { run = "fedavg", source = "§2" }
B = { run = "fedprox(mu=0.1)", source = "§2" }
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two experiments, `mine` and `theirs`, whose runs are the same."""
    for name in ("mine", "theirs"):
        (tmp_path / f"{name}.toml").write_text(TEXT, "utf-8")
    monkeypatch.setattr(experiment, "_folder", lambda: tmp_path)
    experiment.find.cache_clear()
    return tmp_path


def keep(home: Path, name: str, label: str, *rounds: int, device: str = "cpu", failed: tuple[int, ...] = ()) -> None:
    """A run of so many rounds for every seed."""
    runs = [
        Record(label, seed, history(count, diverged=seed in failed), {}, {"device": device})
        for seed, count in enumerate(rounds)
    ]
    (home / name).mkdir(exist_ok=True)
    chosen = {"": Chosen({label: "fedavg"})}
    stored.write(Results(experiment.find(name), {"": runs}, chosen, fast=False), home / name)


def history(rounds: int, *, diverged: bool) -> pd.DataFrame:
    columns = {"round": range(1, rounds + 1), "accuracy": 0.5, "bytes_down": 1, "bytes_up": 1}
    return pd.DataFrame(columns).assign(diverged=[diverged and each == rounds - 1 for each in range(rounds)])


def rounds(home: Path, label: str = "A") -> list[int]:
    return [len(run.history) for run in stored.read(home / "mine").runs("", label)]


def taken(home: Path) -> list[tuple[str, str]]:
    return take_over(experiment.find("mine"), home)


def test_what_the_other_has_in_part(home: Path) -> None:
    """It has no B, and of a third experiment there is an empty folder."""
    keep(home, "theirs", "A", 4)
    (home / "mine").mkdir()
    assert taken(home) == [("", "A")]
    assert taken(home) == []


@pytest.mark.parametrize(
    ("theirs", "failed", "found"),
    [
        ([4, 4], (), [3, 4]),
        ([4, 3], (), [3, 3]),
        ([4, 2], (), [3]),  # all would be shown after two rounds
        ([4, 2], (1,), [3, 2]),  # one that failed shortens nothing
        ([4, 2, 4], (), [3, 4]),
    ],
)
def test_what_is_stored_is_not_shortened(
    theirs: list[int], failed: tuple[int, ...], found: list[int], home: Path
) -> None:
    keep(home, "mine", "A", 3)
    keep(home, "theirs", "A", *theirs, failed=failed)
    assert taken(home) == ([("", "A")] if len(found) > 1 else [])
    assert rounds(home) == found


def test_as_many_rounds_as_are_wanted_are_enough(home: Path) -> None:
    """Though the other experiment has more, and what is stored has, too."""
    keep(home, "mine", "A", 6)
    keep(home, "theirs", "A", 4, 5)
    assert taken(home) == [("", "A")]
    assert rounds(home) == [6, 4]


def test_runs_that_were_evaluated_in_other_rounds_are_others(home: Path) -> None:
    text = TEXT.replace("eval_every = { value = 1", "eval_every = { value = 2")
    (home / "theirs.toml").write_text(text, "utf-8")
    keep(home, "theirs", "A", 4)
    assert taken(home) == []


def test_seeds_from_another_device_are_not_added(home: Path) -> None:
    keep(home, "mine", "A", 4)
    keep(home, "theirs", "A", 4, 4, device="NVIDIA H200")
    assert taken(home) == []
    keep(home, "theirs", "B", 4, device="NVIDIA H200")  # of which there are none so far
    assert taken(home) == [("", "B")]
