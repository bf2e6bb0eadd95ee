"""Figures of finished runs: means over seeds, targets, and records that are refused."""

from __future__ import annotations

import math

import pytest

from records import FEDAVG, FEDHBM, NAN, record
from undrift.reporting.figures import summarise
from undrift.reporting.record import RESERVED_NAMES


def test_hand_computed() -> None:
    summary = summarise(
        [
            record("FedAvg", [0.5, 0.9, 0.7], seed=0, loss=[3, 2, 1]),
            record("FedHBM", [0.8, 0.9, 0.9], seed=0),
            record("FedAvg", [0.5, 0.6, 0.9], seed=1, loss=[3, 2, 2]),
        ]
    )
    assert list(summary.columns) == [
        "label",
        "runs",
        "accuracy",
        "accuracy_std",
        "best_accuracy",
        "loss",
        "rounds_to_target",
        "traffic",
        "seconds",
        "diverged",
        "exploded",
        "lr",
        "server_lr",
        "weighting",
    ]
    assert summary.attrs["target"] == pytest.approx(0.8)
    first, second = summary.to_dict("records")
    assert first == pytest.approx(
        {
            "label": "FedAvg",
            "runs": 2,
            "accuracy": 0.8,
            "accuracy_std": 0.02**0.5,
            "best_accuracy": 0.9,
            "loss": 1.5,
            "rounds_to_target": 2.5,
            "traffic": 450,
            "seconds": 1.5,
            "diverged": 0,
            "exploded": 0,
            "lr": None,
            "server_lr": None,
            "weighting": None,
        }
    )
    assert second["label"] == "FedHBM"
    assert second["rounds_to_target"] == 1
    assert math.isnan(second["accuracy_std"])


def test_final_is_the_last_evaluated_round() -> None:
    summary = summarise([record("FedAvg", [0.5, 0.6, NAN], loss=[2, 1, NAN])])
    assert (summary["accuracy"][0], summary["loss"][0]) == (0.6, 1)


def test_a_given_target_counts_only_the_seeds_that_reach_it() -> None:
    runs = [record("FedAvg", [0.5, 0.9], seed=0), record("FedAvg", [0.5, 0.6], seed=1)]
    summary = summarise([*runs, record("FedHBM", [0.1, 0.2])], target=0.85)
    assert summary.attrs["target"] == 0.85
    assert summary.loc[0, "rounds_to_target"] == 2
    assert math.isnan(summary["rounds_to_target"][1])


def test_a_method_reaches_its_own_mean_despite_rounding() -> None:
    runs = [record("FedAvg", [0.0, 0.1], seed=seed) for seed in range(3)]
    assert summarise(runs).loc[0, "rounds_to_target"] == 2


def test_regression_has_no_target() -> None:
    summary = summarise([record("FedAvg", [NAN, NAN])])
    assert summary.attrs["target"] is None
    assert math.isnan(summary["accuracy"][0])


def test_diverged_seeds_are_counted() -> None:
    runs = [record("FedAvg", [0.5, 0.1], seed=0, diverged_at=2), record("FedAvg", FEDAVG, seed=1)]
    assert summarise(runs).loc[0, "diverged"] == 1


def test_no_records() -> None:
    with pytest.raises(ValueError, match="at least one record, got none"):
        summarise([])


def test_empty_history() -> None:
    with pytest.raises(ValueError, match=r"'FedAvg' \(seed 3\) is empty"):
        summarise([record("FedAvg", [], seed=3)])


def test_missing_column() -> None:
    given = record("FedAvg", FEDAVG)
    with pytest.raises(ValueError, match=r"'FedAvg' \(seed 0\) lacks the columns seconds"):
        summarise([given._replace(history=given.history.drop(columns="seconds"))])


def test_the_same_run_twice() -> None:
    with pytest.raises(ValueError, match=r"both 'FedAvg' \(seed 0\)"):
        summarise([record("FedAvg", FEDAVG), record("FedAvg", FEDHBM)])


@pytest.mark.parametrize("target", [95, -0.1, NAN])
def test_target_out_of_range(target: float) -> None:
    with pytest.raises(ValueError, match=f"between 0 and 1, got {target}"):
        summarise([record("FedAvg", FEDAVG)], target)


def test_metrics_follow_with_their_standard_deviation() -> None:
    runs = [record("FedAvg", FEDAVG, seed=seed, f1=[0.1, 0.2, final, NAN]) for seed, final in enumerate((0.3, 0.5))]
    summary = summarise([*runs, record("FedHBM", FEDHBM)])
    assert list(summary.columns[-2:]) == ["f1", "f1_std"]
    assert summary["f1"][0] == pytest.approx(0.4)
    assert summary["f1_std"][0] == pytest.approx(0.02**0.5)
    assert summary["f1"].isna().tolist() == [False, True]  # FedHBM did not compute it


def test_no_metric_can_replace_a_column() -> None:
    assert set(summarise([record("FedAvg", FEDAVG)]).columns) <= set(RESERVED_NAMES)
