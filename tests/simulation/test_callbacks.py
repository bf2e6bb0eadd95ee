"""Callbacks: begin, round and end; early stopping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import undrift as ud

SETTINGS: dict[str, Any] = {"lr": 0.1, "cohort": 5}


class Diary(ud.Callback):
    def __init__(self, last: int = 0) -> None:
        self.entries: list[str] = []
        self._last = last

    def begin(self, run: ud.Run) -> None:
        self.entries.append(f"begin {run.rounds}")

    def round(self, row: dict[str, Any], run: ud.Run) -> bool:
        self.entries.append(f"round {row['round']}")
        return row["round"] == self._last

    def end(self, run: ud.Run) -> None:
        self.entries.append(f"end {run.rounds}")


def test_begin_round_and_end() -> None:
    diary = Diary()
    ud.simulate("fedavg", "softmax", "digits", rounds=2, callbacks=[diary], **SETTINGS)
    assert diary.entries == ["begin 0", "round 1", "round 2", "end 2"]


def test_a_true_result_ends_the_run_and_all_are_told() -> None:
    first, second = Diary(last=1), Diary()
    ud.simulate("fedavg", "softmax", "digits", rounds=5, callbacks=[first, second], **SETTINGS)
    assert second.entries == ["begin 0", "round 1", "end 1"]


def test_end_comes_after_an_error_too() -> None:
    diary = Diary()
    with pytest.raises(ud.DivergenceError):
        ud.simulate(
            "fedavg", "softmax", "digits", rounds=5, callbacks=[diary], **SETTINGS | {"lr": 1e18, "weight_decay": 1e18}
        )
    assert diary.entries[-1].startswith("end")


def test_every_run_of_a_comparison() -> None:
    diary = Diary()
    ud.compare(["fedavg"], "softmax", "digits", seeds=2, rounds=1, callbacks=[diary], **SETTINGS)
    assert sorted(diary.entries) == ["begin 0"] * 2 + ["end 1"] * 2 + ["round 1"] * 2


def test_no_callback() -> None:
    with pytest.raises(TypeError, match="callbacks must be a list of functions"):
        ud.simulate("fedavg", "softmax", "digits", rounds=1, callbacks=[3], **SETTINGS)  # type: ignore[list-item]


def accuracies(*values: float) -> dict[str, Any]:
    """A metric cannot steer the run, so the accuracy itself is set, by a callback that comes first."""

    def set_accuracy(row: dict[str, Any], run: ud.Run) -> None:
        run._rows[-1]["accuracy"] = row["accuracy"] = values[row["round"] - 1]

    return {"callbacks": [set_accuracy]}


@pytest.mark.parametrize(
    ("values", "patience", "rounds"),
    [
        ((0.1, 0.2, 0.3, 0.4, 0.5), 1, 5),
        ((0.1, 0.2, 0.2, 0.4, 0.5), 1, 3),  # no better is not better
        ((0.1, 0.3, 0.2, 0.4, 0.3), 2, 5),
        ((0.3, 0.2, 0.1, 0.4, 0.5), 2, 3),
    ],
)
def test_patience(values: tuple[float, ...], patience: int, rounds: int) -> None:
    run = ud.simulate("fedavg", "softmax", "digits", rounds=5, patience=patience, **SETTINGS, **accuracies(*values))
    assert run.rounds == rounds


def test_patience_of_a_resumed_run(tmp_path: Path) -> None:
    """It counts the rounds before the interruption as well: with such a rate, accuracy is the same in every round."""
    given: dict[str, Any] = {"rounds": 9, "patience": 3, "lr": 1e-30}
    whole = ud.simulate("fedavg", "softmax", "digits", **given)
    interrupted = [lambda row, run: row["round"] == 2]
    ud.simulate("fedavg", "softmax", "digits", callbacks=interrupted, out=tmp_path / "run", **given)
    assert (whole.rounds, ud.resume(tmp_path / "run").rounds) == (4, 4)


def test_patience_without_a_test_set() -> None:
    """Nothing is evaluated, so that nothing ends the run."""
    data = ud.data.load("digits", clients=5)
    clients = [data.client(i) for i in range(5)]
    assert ud.simulate("fedavg", "softmax", clients, rounds=3, patience=1).rounds == 3
