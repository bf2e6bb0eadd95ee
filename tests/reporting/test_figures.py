"""Figures of finished runs: means over seeds, targets, and records that are refused."""

from __future__ import annotations

import math

import pytest

from records import FEDAVG, FEDHBM, NAN, record
from undrift.reporting.figures import summarise
from undrift.reporting.headline import headline
from undrift.reporting.record import RESERVED_NAMES, Record
from undrift.reporting.table import columns, note
from undrift.reporting.wording import NBSP


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
        "averaged",
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
            "averaged": 2,
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


class TestSeedsThatFailed:
    """They are counted, named, and no part of any mean."""

    @staticmethod
    def runs() -> list[Record]:
        diverged = record("A", [0.5, 0.1], seed=0, diverged_at=2)
        exploded, both = (record("A", [0.5, 0.2], seed=seed, diverged_at=2 if seed == 2 else None) for seed in (1, 2))
        for each in (exploded, both):
            each.history["train_loss"] = [1.0, 1000.0]
        return [
            diverged,
            exploded,
            both,
            *(record("A", [0.5, value], seed=3 + n) for n, value in enumerate((0.6, 0.8))),
        ]

    def test_figures(self) -> None:
        row = summarise(self.runs()).iloc[0]
        assert (row["runs"], row["averaged"], row["diverged"], row["exploded"]) == (5, 2, 2, 1)
        assert (row["accuracy"], row["accuracy_std"]) == pytest.approx((0.7, 0.02**0.5))

    def test_the_target_is_that_of_the_others(self) -> None:
        assert summarise(self.runs()).attrs["target"] == pytest.approx(0.7)

    def test_what_is_said(self) -> None:
        runs = [*self.runs(), *(record("B", [0.5, 0.6], seed=seed) for seed in range(2))]
        method, seeds, accuracy, *_ = columns(runs)
        assert method.cells == ["A (2 of 5 seeds; 2 diverged, 1 exploded)", "B"]
        assert seeds.cells == ["2 of 5", "2"]
        assert (accuracy.cells[0].replace(NBSP, " "), accuracy.best) == ("70.0 ± 14.1 %", set())
        assert "Seeds that diverged or exploded are left out of the means." in note(runs)
        said = headline(runs).replace(NBSP, " ")
        assert said.startswith("B ended at 60.0 % accuracy. 2 of 5 runs of A diverged.")
        assert said.endswith("The training loss of A exploded in 1 of 5 runs.")

    def test_of_a_single_method(self) -> None:
        said = headline(self.runs()).replace(NBSP, " ")
        assert said.startswith("A ended at 70.0 % accuracy after 2 rounds, over 2 of 5 seeds.")

    def test_where_all_failed_their_last_values_are_shown(self) -> None:
        runs = self.runs()[:3]
        method, seeds, accuracy, *_ = columns(runs)
        assert (method.cells, seeds.cells) == (["A (2 of 3 diverged, 1 of 3 exploded)"], ["3"])
        assert accuracy.cells[0].startswith("16.7")
        assert "A method of which all runs failed is shown with their last finite values." in note(runs)


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
