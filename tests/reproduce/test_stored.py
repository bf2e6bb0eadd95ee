"""Results in files: what is added to them, and what an interruption leaves."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from undrift.reporting.record import Record
from undrift.reproduce import stored
from undrift.reproduce.experiment import Experiment, find
from undrift.reproduce.results import Chosen, Results
from undrift.storage import files

CASES = ("α = 0.2", "α = 0.6")


@pytest.fixture
def experiment() -> Experiment:
    return find("feddpc-table2")


def results(of: Experiment, *labels: str, case: str = CASES[0], answers: bool = False, **others: Any) -> Results:
    rounds = [1, 2]
    columns = {"round": rounds, "accuracy": 0.5, "train_loss": 1.0, "bytes_down": 1, "bytes_up": 1, "diverged": False}
    runs = [Record(label, 0, pd.DataFrame(columns), {}, {"device": f"device of {label}"}) for label in labels]
    correct = {(case, label): {0: np.array([True, False])} for label in labels} if answers else {}
    chosen = {case: Chosen(dict.fromkeys(labels, "fedavg"))}
    return Results(of, {case: runs}, chosen, **{"fast": False, "correct": correct, **others})


def test_what_is_written_is_added_to_what_is_there(experiment: Experiment, tmp_path: Path) -> None:
    stored.write(results(experiment, "FedDPC", case=CASES[1], answers=True), tmp_path)
    stored.write(results(experiment, "FedDPC", "FedAvg"), tmp_path)
    found = stored.read(tmp_path)
    assert {case: found.labels(case) for case in found.records} == {
        CASES[0]: ["FedAvg", "FedDPC"],  # in the order of the experiment
        CASES[1]: ["FedDPC"],
    }
    assert found.correct.keys() == {(CASES[1], "FedDPC")}
    assert found.runs(CASES[1], "FedDPC")[0].environment == {"device": "device of FedDPC"}


def test_what_is_run_again_replaces_what_is_there_with_its_answers(experiment: Experiment, tmp_path: Path) -> None:
    stored.write(results(experiment, "FedDPC", answers=True), tmp_path)
    assert (tmp_path / stored.ANSWERS).exists()
    stored.write(results(experiment, "FedDPC"), tmp_path)
    assert len(stored.read(tmp_path).runs(CASES[0], "FedDPC")) == 1
    assert not (tmp_path / stored.ANSWERS).exists()


@pytest.mark.parametrize(
    ("name", "fast", "message"),
    [
        ("feddpc-fig7", False, "results of feddpc-fig7 are added to those of feddpc-table2"),
        ("feddpc-table2", True, "results of the short version are added, and there are those of the whole"),
    ],
)
def test_other_results_are_refused(name: str, fast: bool, message: str, tmp_path: Path, experiment: Experiment) -> None:
    stored.check_home(tmp_path, find(name), fast=fast)
    stored.write(results(experiment, "FedAvg"), tmp_path)
    stored.check_home(tmp_path, experiment, fast=False)
    with pytest.raises(ValueError, match=f"holds other results, choose another folder: {message}"):
        stored.check_home(tmp_path, find(name), fast=fast)
    with pytest.raises(ValueError, match=f"^{message}"):
        stored.write(results(find(name), "FedAvg", fast=fast), tmp_path)


def test_results_of_what_an_experiment_had_once_are_refused(experiment: Experiment, tmp_path: Path) -> None:
    stored.write(results(experiment, "FedOld"), tmp_path)
    message = "there is FedOld in α = 0.2, which feddpc-table2 does not have"
    with pytest.raises(ValueError, match=message):
        stored.check_home(tmp_path, experiment, fast=False)
    with pytest.raises(ValueError, match=message):
        stored.write(results(experiment, "FedAvg"), tmp_path)


@pytest.mark.parametrize("written", [0, 1, 2])
@pytest.mark.parametrize("before", [[], ["FedAvg"], ["FedAvg", "FedDPC"]])
def test_an_interruption_leaves_what_was_there(
    before: list[str], written: int, experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many files; the same call then completes them."""
    if before:
        stored.write(results(experiment, *before, answers=True), tmp_path)
    write, count = files.replace, iter(range(3))

    def interrupted(path: Path, content: bytes) -> None:
        if next(count) == written:
            raise KeyboardInterrupt
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(files, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stored.write(results(experiment, "FedDPC", answers=True), tmp_path)
    assert stored.exists(tmp_path) == bool(before)
    if before:
        assert stored.read(tmp_path).labels(CASES[0]) == before
    stored.write(results(experiment, "FedDPC", answers=True), tmp_path)
    assert stored.read(tmp_path).labels(CASES[0]) == sorted({*before, "FedDPC"})


def test_files_that_do_not_belong_together_are_said_to_be_damaged(experiment: Experiment, tmp_path: Path) -> None:
    for label in ("FedAvg", "FedDPC"):
        (tmp_path / label).mkdir()
        stored.write(results(experiment, label), tmp_path / label)
    (tmp_path / "FedAvg" / stored.ABOUT).replace(tmp_path / "FedDPC" / stored.ABOUT)
    with pytest.raises(files.DamageError, match=r"results.json is damaged: it does not say where FedDPC in α = 0.2"):
        stored.read(tmp_path / "FedDPC")
    with pytest.raises(files.DamageError, match=r"histories.csv.gz cannot be read"):
        stored.read(tmp_path)


def runs(
    of: Experiment, lengths: dict[int, int], device: str = "cpu", written: str = "fedavg", torch: str = "2.11.0"
) -> Results:
    """Of FedAvg, by seed; runs of more than two rounds answer correctly."""
    columns = {"accuracy": 0.5, "train_loss": 1.0, "bytes_down": 1, "bytes_up": 1, "diverged": False}
    histories = {seed: pd.DataFrame({"round": range(1, count + 1), **columns}) for seed, count in lengths.items()}
    records = [Record("FedAvg", seed, each, {}, {"device": device, "torch": torch}) for seed, each in histories.items()]
    correct = {(CASES[0], "FedAvg"): {seed: np.array([count > 2]) for seed, count in lengths.items()}}
    return Results(of, {CASES[0]: records}, {CASES[0]: Chosen({"FedAvg": written})}, fast=False, correct=correct)


@pytest.mark.parametrize(
    ("device", "written", "expected"),
    [
        ("cpu", "fedavg", {0: 4, 1: 2, 2: 3}),
        ("cuda", "fedavg", {0: 3, 1: 2}),
        ("cpu", "fedavg(lr=0.1)", {0: 3, 1: 2}),
    ],
)
def test_longer_runs_of_the_same_settings_and_device_are_not_replaced(
    device: str, written: str, expected: dict[int, int], experiment: Experiment, tmp_path: Path
) -> None:
    """Seed 1 has more rounds now, the others fewer, or none; torch is another version."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    stored.write(runs(experiment, {0: 4, 1: 1, 2: 3}), tmp_path / "old")
    stored.write(runs(experiment, {0: 3, 1: 2}, device, written, torch="2.13.0"), tmp_path / "new")
    new, old = (stored.read_files(tmp_path / name) for name in ("new", "old"))
    stored.add(stored.with_longer_runs(new, old), tmp_path / "old")
    found = stored.read(tmp_path / "old")
    assert {run.seed: len(run.history) for run in found.runs(CASES[0], "FedAvg")} == expected
    right = found.correct[CASES[0], "FedAvg"]
    assert {seed: bool(each[0]) for seed, each in right.items()} == {
        seed: count > 2 for seed, count in expected.items()
    }


def test_runs_without_accuracy_are_kept(experiment: Experiment, tmp_path: Path) -> None:
    """One that failed in its first round."""
    given = results(experiment, "FedAvg")
    (run,) = given.records[CASES[0]]
    failed = run._replace(history=run.history.head(1).assign(accuracy=math.nan, diverged=True))
    stored.write(replace(given, records={CASES[0]: [failed]}), tmp_path)
    assert stored.read(tmp_path).runs(CASES[0], "FedAvg")[0].failed
