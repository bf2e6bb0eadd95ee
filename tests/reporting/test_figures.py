"""Figures of finished runs: means over seeds, targets, and records that are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

import undrift as ud
from records import FEDAVG, FEDHBM, NAN, record
from undrift.reporting.figures import summarise
from undrift.reporting.headline import headline
from undrift.reporting.record import RESERVED_NAMES, Record
from undrift.reporting.report import render
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
    assert summary.attrs["target"] == pytest.approx(0.8)
    first, second = summary.to_dict("records")
    spread = 0.02**0.5  # of two values that are 0.2 apart
    expected = {
        "label": "FedAvg",
        "reference": False,
        "runs": 2,
        "averaged": 2,
        "accuracy": 0.8,
        "accuracy_std": spread,
        "best_accuracy": 0.9,
        "best_accuracy_std": 0,
        "best_round": 2.5,
        "best_round_std": 0.5**0.5,
        "last_k_accuracy": (0.7 + 2 / 3) / 2,
        "last_k_accuracy_std": (0.7 - 2 / 3) / 2**0.5,
        "last_k": 3,
        "loss": 1.5,
        "rounds_to_target": 2.5,
        "rounds_to_target_std": 0.5**0.5,
        "bytes_to_target": 375,
        "bytes_to_target_std": 150 * 0.5**0.5,
        "speed_up_to_target": 1,
        "reached_target": 2,
        "traffic": 450,
        "seconds": 1.5,
        "training_seconds": 1.2,
        "diverged": 0,
        "exploded": 0,
        "lr": None,
        "server_lr": None,
        "weighting": None,
    }
    assert list(first) == list(expected)
    assert first == pytest.approx(expected)
    assert second["label"] == "FedHBM"
    assert (second["rounds_to_target"], second["speed_up_to_target"]) == (1, 2.5)
    assert math.isnan(second["accuracy_std"])


def test_final_is_the_last_evaluated_round() -> None:
    summary = summarise([record("FedAvg", [0.5, 0.6, NAN], loss=[2, 1, NAN])])
    assert (summary["accuracy"][0], summary["loss"][0]) == (0.6, 1)


def test_a_given_target_counts_only_the_seeds_that_reach_it() -> None:
    runs = [record("FedAvg", [0.5, 0.9], seed=0), record("FedAvg", [0.5, 0.6], seed=1)]
    summary = summarise([*runs, record("FedHBM", [0.1, 0.2])], targets=0.85)
    assert summary.attrs["target"] == 0.85
    assert summary.loc[0, "rounds_to_target"] == 2
    assert math.isnan(summary["rounds_to_target"][1])


class TestTargets:
    """Several of them, absolute or relative, and what can be none."""

    runs = (record("A", [0.1, 0.5, 0.6, 0.8]), record("B", [0.5, 0.7, 0.7, 0.7]))

    def test_several(self) -> None:
        summary = summarise(self.runs, [0.5, "0.75", 0.9])
        assert summary.attrs["targets"] == {"0.5": 0.5, "0.75": 0.75, "0.9": 0.9}
        assert summary["rounds_to_0.5"].tolist() == [2, 1]
        assert summary["bytes_to_0.5"].tolist() == [300, 150]
        assert summary["speed_up_to_0.5"].tolist() == [1, 2]
        assert summary["rounds_to_0.75"].tolist() == pytest.approx([4, NAN], nan_ok=True)
        assert summary["speed_up_to_0.75"].tolist() == pytest.approx([1, NAN], nan_ok=True)
        assert summary["reached_0.9"].tolist() == [0, 0]

    def test_no_speed_up_where_a_seed_never_arrived(self) -> None:
        late = [record("B", [0.9, 0.9]), record("B", [0.1, 0.1], seed=1)]
        row = summarise([record("A", [0.5, 0.9]), *late], 0.8).iloc[1]
        assert (row["rounds_to_target"], row["reached_target"]) == (1, 1)
        assert math.isnan(row["speed_up_to_target"])

    @pytest.mark.parametrize(
        ("targets", "message"),
        [
            (60, "between 0 and 1, got 60; 60 % are 0.6"),
            ([0.5, -0.1], "between 0 and 1, got -0.1"),
            ("0%", "above 0 % and up to 100 %, got '0%'"),
            (["101%"], "up to 100 %, got '101%'"),
            ("often", "an accuracy such as 0.6 or '90%', got 'often'"),
            ([0.5, "0.5"], "targets must differ"),
        ],
    )
    def test_impossible_ones(self, targets: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            summarise(self.runs, targets)

    @pytest.mark.parametrize("targets", [[True], {0.5}, [[0.5]]])
    def test_of_a_wrong_type(self, targets: Any) -> None:
        with pytest.raises(TypeError, match=r"such as 0\.6 or '90%'"):
            summarise(self.runs, targets)

    def test_a_share_of_nothing(self) -> None:
        with pytest.raises(
            ValueError, match=r"centralised accuracy, which is not there; compare with centralised=True"
        ):
            ud.Comparison(self.runs, targets="90%")


class TestReference:
    """A centralised run: a row of its own, what relative targets are a share of, and never ranked."""

    runs = (
        record("A", [0.1, 0.5, 0.6, 0.8]),
        record("Centralised", [0.9, 0.99], config={"algorithm": {"name": "centralised"}}),
        record("B", [0.5, 0.7, 0.75, 0.7]),
    )

    def test_relative_targets(self) -> None:
        summary = summarise(self.runs, ["50%", "80%"])
        assert summary["label"].tolist() == ["A", "B", "Centralised"]
        assert summary["reference"].tolist() == [False, False, True]
        assert summary.attrs["targets"] == pytest.approx({"50%": 0.495, "80%": 0.792})
        assert summary["rounds_to_50%"].tolist() == pytest.approx([2, 1, NAN], nan_ok=True)
        assert summary["rounds_to_80%"].tolist() == pytest.approx([4, NAN, NAN], nan_ok=True)
        assert math.isnan(summary["traffic"][2])

    def test_it_has_no_clients(self) -> None:
        runs = [
            record("A", [0.5], personal_accuracy=[0.6]),
            record("Centralised", [0.9], config={"algorithm": {"name": "centralised"}}, personal_accuracy=[0.9]),
        ]
        assert summarise(runs)["personal_accuracy"].tolist() == pytest.approx([0.6, NAN], nan_ok=True)
        assert "Accuracy of clients" in render(runs)

    def test_it_sets_no_target_and_wins_nothing(self) -> None:
        assert summarise(self.runs[::-1]).attrs["target"] == 0.7  # B is the first method now
        assert headline(self.runs).replace(NBSP, " ").startswith("B ended at 70.0 % accuracy, 10.0 points below A")
        seeds = [each._replace(seed=seed) for each in self.runs for seed in range(2)]
        accuracy = next(each for each in columns(seeds) if each.name == "accuracy")
        assert (accuracy.cells[2].replace(NBSP, " "), accuracy.best) == ("99.0 ± 0.0 %", {0})
        assert "trained on the pooled data; its rounds are epochs" in note(seeds)

    def test_alone_it_is_a_run_as_any_other(self) -> None:
        assert summarise(self.runs[1:2]).loc[0, "traffic"] == 300


def test_the_end_of_a_run() -> None:
    long = record("A", [0.0] * 60 + [0.5] * 50 + [0.7] * 50)
    assert summarise([long]).loc[0, "last_k_accuracy"] == pytest.approx(0.6)
    assert summarise([long], last_k=50).loc[0, "last_k_accuracy"] == pytest.approx(0.7)
    assert "Last 100 rounds" in [each.heading.replace(NBSP, " ") for each in columns([long])]
    short = record("B", [0.2, NAN, 0.4])
    row = summarise([short]).iloc[0]
    assert (row["last_k_accuracy"], row["last_k"]) == (pytest.approx(0.3), 3)
    assert "last_k" not in [each.name for each in columns([short])]  # the mean of a whole run says little
    assert "last_k" in [each.name for each in columns([short], last_k=20)]
    assert "Runs have 3 rounds, fewer than 20: their mean is over all of them." in note([short], last_k=20)
    assert "fewer than 100 rounds where a run is shorter: B (3)." in note([long, short], last_k=100)


def test_time_of_runs_from_before_evaluation_was_timed() -> None:
    old = record("A", FEDAVG)
    old.history["evaluation_seconds"] = NAN
    assert summarise([old])["training_seconds"].isna().all()
    time = next(each for each in columns([old, record("B", FEDAVG)]) if each.name == "time")
    assert (time.heading, time.cells[0].replace(NBSP, " ")) == ("Time", "2.00 s")


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
