"""The headline: what it says of every kind of result."""

from __future__ import annotations

from collections.abc import Sequence

from records import FEDAVG, FEDHBM, NAN, record
from undrift.reporting.headline import headline
from undrift.reporting.record import Record


def said(records: Sequence[Record], target: float | None = None) -> str:
    """The headline, with plain spaces."""
    return headline(records, target).replace("\u00a0", " ")


def test_one_run() -> None:
    assert said([record("FedAvg", FEDAVG)]) == "FedAvg ended at 80.0 % accuracy after 4 rounds."


def test_one_method_several_seeds() -> None:
    runs = [record("FedAvg", FEDAVG, seed=seed) for seed in range(3)]
    assert said(runs) == "FedAvg ended at 80.0 % accuracy after 4 rounds, the mean of 3 seeds."


def test_one_method_and_a_target() -> None:
    run = [record("FedAvg", FEDAVG)]
    assert said(run, 0.7).endswith("; it reached 70.0 % in 3 rounds.")
    assert said(run, 0.9).endswith("; it did not reach 90.0 %.")


def test_better_and_sooner() -> None:
    assert said([record("FedAvg", FEDAVG), record("FedHBM", FEDHBM)]) == (
        "FedHBM ended at 95.0 % accuracy, 15.0 points above FedAvg, "
        "and reached FedAvg’s final accuracy in 2 rounds instead of 4."
    )


def test_worse() -> None:
    assert said([record("FedHBM", FEDHBM), record("FedAvg", FEDAVG)]) == (
        "FedAvg ended at 80.0 % accuracy, 15.0 points below FedHBM, and did not reach FedHBM’s final accuracy."
    )


def test_worse_though_once_better() -> None:
    assert said([record("FedAvg", FEDAVG), record("FedHBM", [0.7, 0.85, 0.8, 0.75])]) == (
        "FedHBM ended at 75.0 % accuracy, 5.0 points below FedAvg, "
        "but reached FedAvg’s final accuracy in 2 rounds instead of 4."
    )


def test_level_but_later() -> None:
    assert said([record("FedAvg", [0.8, 0.8]), record("FedHBM", [0.1, 0.8])]) == (
        "FedHBM ended at 80.0 % accuracy, level with FedAvg, "
        "and reached FedAvg’s final accuracy in 2 rounds, against 1 round for FedAvg."
    )


def test_level_and_as_soon() -> None:
    assert said([record("FedAvg", [0.1, 0.8]), record("FedHBM", [0.2, 0.9])]) == (
        "FedHBM ended at 90.0 % accuracy, 10.0 points above FedAvg, "
        "and reached FedAvg’s final accuracy in 2 rounds, as FedAvg did."
    )


def test_a_target_only_one_reaches() -> None:
    runs = [record("FedAvg", FEDAVG), record("FedHBM", FEDHBM)]
    assert said(runs, 0.9).endswith(", and reached 90.0 % in 3 rounds; FedAvg did not reach it.")
    assert said(runs[::-1], 0.9).endswith(", and did not reach 90.0 %; FedHBM did, in 3 rounds.")


def test_seeds_that_did_not_reach_it_are_not_hidden() -> None:
    runs = [record("FedHBM", FEDHBM, seed=0), record("FedHBM", FEDAVG, seed=1)]
    assert "in 3 rounds (1 of 2 seeds)" in said([record("FedAvg", FEDAVG), *runs], 0.9)


def test_difference_within_the_spread() -> None:
    baseline = [record("FedAvg", [value], seed=seed) for seed, value in enumerate((0.6, 0.9))]
    rival = [record("FedHBM", [value], seed=seed) for seed, value in enumerate((0.7, 0.9))]
    assert said([*baseline, *rival]).endswith("The difference is within the spread over seeds.")


def test_unequal_lengths() -> None:
    runs = [record("FedAvg", FEDAVG), record("FedHBM", FEDHBM[:3])]
    assert said(runs).endswith("FedHBM ran for 3 rounds, FedAvg for 4.")


def test_many_methods() -> None:
    middle = record("FedProx", [0.6, 0.7, 0.8, 0.85])
    runs = [record("FedAvg", FEDAVG), middle, record("FedHBM", FEDHBM)]
    assert said(runs).startswith(
        "FedHBM ended highest of 3 methods, at 95.0 % accuracy, 15.0 points above FedAvg, and reached"
    )
    assert said(runs[::-1]) == (
        "FedHBM ended highest of 3 methods, at 95.0 % accuracy, 10.0 points above FedProx, the next best."
    )
    level = [record(label, FEDHBM) for label in ("FedHBM", "GHBM")]
    assert said([*level, middle]) == ("FedHBM and GHBM ended level, highest of 3 methods, at 95.0 % accuracy.")


def test_one_diverged_run() -> None:
    assert said([record("FedAvg", [0.5, 0.1], diverged_at=2)]) == (
        "FedAvg diverged at round 2; its last accuracy was 10.0 %."
    )


def test_some_seeds_diverged() -> None:
    runs = [record("FedAvg", FEDAVG, seed=0), record("FedAvg", FEDAVG, seed=1, diverged_at=4)]
    assert said(runs).endswith("1 of 2 runs of FedAvg diverged.")


def test_the_rival_diverged() -> None:
    runs = [record("FedHBM", FEDHBM, seed=seed, diverged_at=4) for seed in range(2)]
    assert said([record("FedAvg", FEDAVG), *runs]) == (
        "FedAvg ended at 80.0 % accuracy. FedHBM diverged in all 2 runs."
    )


def test_the_baseline_diverged() -> None:
    runs = [record("FedAvg", FEDAVG, diverged_at=4), record("FedHBM", FEDHBM)]
    assert said(runs) == "FedHBM ended at 95.0 % accuracy. FedAvg diverged."


def test_everything_diverged() -> None:
    runs = [record(label, FEDAVG, diverged_at=4) for label in ("FedAvg", "FedProx", "FedHBM")]
    assert said(runs) == "Every run diverged: FedAvg, FedProx and FedHBM."


def test_no_accuracy() -> None:
    runs = [record("FedAvg", [NAN] * 2, loss=[1, 0.5]), record("FedHBM", [NAN] * 2, loss=[1, 0.2])]
    assert said(runs) == "FedHBM ended at a test loss of 0.200, 0.300 below FedAvg."
    assert said(runs[::-1]) == "FedAvg ended at a test loss of 0.500, 0.300 above FedHBM."
    assert said(runs[:1]) == "FedAvg ended at a test loss of 0.500 after 2 rounds."


def test_no_evaluation_at_all() -> None:
    assert said([record("FedAvg", [NAN], loss=[NAN])]).startswith("No round was evaluated")
