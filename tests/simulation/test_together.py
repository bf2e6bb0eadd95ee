"""Runs that differ in seed and learning rate only train as one larger cohort, and give the numbers they give alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import undrift as ud
from laws import one_of_every_kind
from undrift.reporting.record import TIMES
from undrift.simulation.round import RoundRunner

pytestmark = pytest.mark.usefixtures("networks_are_tried_once")
COLUMNS = ["loss", "accuracy", "train_loss", "bytes_down", "bytes_up", "participants"]
SETTING: dict[str, Any] = {
    "rounds": 4,
    "cohort": 3,
    "batch_size": 4,
    "engine": "batched",
    "dtype": "float64",
    "weighting": "paper",
}


def split(seed: int) -> ud.FederatedData:
    """The same samples, dealt out differently by every seed, to unequal clients."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(60, 5)), generator.integers(0, 3, 60)
    dealt = np.random.default_rng(seed).permutation(60)
    return ud.FederatedData(x, y, np.split(dealt, [4, 11, 30, 33, 45]), (x[:20], y[:20]), classes=3)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 3))


def sizes_of_groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes how many runs train together, round by round."""
    seen: list[int] = []
    original = RoundRunner.run

    def run(self: RoundRunner, memories: Any, round: int) -> Any:
        seen.append(len(memories))
        return original(self, memories, round)

    monkeypatch.setattr(RoundRunner, "run", run)
    return seen


def agree(record: Any, alone: ud.Run) -> None:
    found, expected = (h[COLUMNS].to_numpy(dtype=float) for h in (record.history, alone.history))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", one_of_every_kind(sorted(ud.algorithms.available())))
def test_every_algorithm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four runs together; two of them, which differ in both seed and rate, are repeated alone."""
    setting = SETTING | {"rounds": 2, "batch_size": 8}
    seen = sizes_of_groups(monkeypatch)
    comparison = ud.compare([name], module(), split, seeds=[3, 0], lr=[0.1, 0.02], **setting)
    assert seen == [4] * 2
    assert [r.seed for r in comparison.records] == [0, 3, 0, 3]
    for record, lr in zip(comparison.records[::3], (0.1, 0.02), strict=True):
        assert record.label.endswith(f"lr {lr}")
        agree(record, ud.simulate(name, module(), split(record.seed), seed=record.seed, lr=lr, **setting))


def test_one_that_is_done_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = sizes_of_groups(monkeypatch)

    def enough(row: dict[str, Any], run: ud.Run) -> bool:
        return run.options.seed == 1 and run.rounds == 2

    comparison = ud.compare(["scaffold"], module(), split, seeds=3, callbacks=[enough], **SETTING)
    assert seen == [3, 3, 2, 2]
    assert [len(r.history) for r in comparison.records] == [4, 2, 4]
    agree(comparison.records[2], ud.simulate("scaffold", module(), split(2), seed=2, **SETTING))


def test_one_that_diverges_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is linear, the loss a square: a rate of 1e18 overflows in a few rounds, one of 0.01 does not."""

    def squared(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target[:, None]).square().sum(1)

    torch.manual_seed(0)
    linear = nn.Linear(5, 1)
    comparison = ud.compare(["fedavg"], linear, split, lr=[1e18, 0.01], loss=squared, **SETTING)
    assert comparison.records[0].history.diverged.iloc[-1]
    agree(comparison.records[1], ud.simulate("fedavg", linear, split(0), lr=0.01, loss=squared, **SETTING))


def test_runs_that_are_there_train_as_they_were_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds 0 and 1 were begun together, and 2 alone; the others are new."""
    for seeds, done in (([0, 1], 2), ([2], 3)):
        ud.compare(["fedhbm"], module(), split, seeds=seeds, out=tmp_path, **(SETTING | {"rounds": done}))
    seen = sizes_of_groups(monkeypatch)
    comparison = ud.compare(["fedhbm"], module(), split, seeds=5, out=tmp_path, **SETTING)
    assert seen == [2, 2] + [1] + [2] * 4
    for record in comparison.records:
        agree(record, ud.simulate("fedhbm", module(), split(record.seed), seed=record.seed, **SETTING))


def test_one_that_is_ahead_is_computed_with_those_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of a run depend on how many are computed together."""
    whole = ud.compare(["fedhbm"], module(), split, seeds=3, out=tmp_path / "whole", **SETTING)
    ud.compare(["fedhbm"], module(), split, seeds=3, out=tmp_path / "part", **SETTING)
    shutil.rmtree(tmp_path / "part/fedhbm/seed-1")
    seen = sizes_of_groups(monkeypatch)
    repeated = ud.compare(["fedhbm"], module(), split, seeds=[2, 0, 1], out=tmp_path / "part", **SETTING)
    assert seen == [3] * 4
    expected, found = (comparison.curves().drop(columns=TIMES) for comparison in (whole, repeated))
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


def test_runs_that_are_left_out_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def stop(row: dict[str, Any], run: ud.Run) -> None:
        if run.rounds == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        ud.compare(["fedhbm"], module(), split, seeds=3, out=tmp_path, callbacks=[stop], **SETTING)
    comparison = ud.compare(["fedhbm"], module(), split, seeds=2, out=tmp_path, **SETTING)
    assert "3 runs were begun together and 2 are continued" in caplog.text
    agree(comparison.records[0], ud.simulate("fedhbm", module(), split(0), seed=0, **SETTING))


@pytest.mark.parametrize("ending", [{"patience": 1}, {"callbacks": [lambda row, run: run.rounds == 2]}])
def test_what_has_ended_stays_so(ending: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ud.compare(["fedhbm"], module(), split, seeds=2, out=tmp_path, lr=1e-9, **SETTING | ending)
    assert [len(r.history) for r in first.records] == [2, 2]
    seen = sizes_of_groups(monkeypatch)
    again = ud.compare(["fedhbm"], module(), split, seeds=2, out=tmp_path, lr=1e-9, **SETTING | ending)
    assert not seen
    pd.testing.assert_frame_equal(first.curves(), again.curves())


def test_other_samples_train_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(seed: int) -> ud.FederatedData:
        data = split(seed)
        return ud.FederatedData(data.x + seed, data.y, [range(10), range(10, 60)], data.test, classes=3)

    seen = sizes_of_groups(monkeypatch)
    ud.compare(["fedavg"], module(), other, seeds=2, **(SETTING | {"cohort": 2}))
    assert seen == [1] * 8


def test_no_more_than_the_engine_can_train_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = sizes_of_groups(monkeypatch)
    ud.compare(["fedavg"], module(), split, seeds=3, **(SETTING | {"engine": "batched:6"}))
    assert seen == [2] * 4 + [1] * 4


@pytest.mark.parametrize("rates", [[], [0.1, 0.1]])
def test_rates_must_differ(rates: list[float]) -> None:
    with pytest.raises(ValueError, match="lr must be a number or a list of different ones"):
        ud.compare(["fedavg"], module(), split, lr=rates, **SETTING)
