"""The headline: what it says of every kind of result."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from records import FEDAVG, FEDHBM, NAN, answering, record
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


# The verdict


def seeds(label: str, finals: Sequence[float]) -> list[Record]:
    return [record(label, [final], seed=seed) for seed, final in enumerate(finals)]


LOW, HIGH = [0.60, 0.61, 0.59, 0.60], [0.70, 0.72, 0.69, 0.71]


def test_a_clear_difference_over_seeds() -> None:
    assert said([*seeds("FedAvg", LOW), *seeds("FedHBM", HIGH)]).endswith(
        "as FedAvg did. The difference is clear (p < 0.001, paired t test over 4 seeds)."
    )


def test_no_clear_winner_over_seeds() -> None:
    verdict = said([*seeds("FedAvg", LOW), *seeds("FedHBM", [0.5, 0.7, 0.6, 0.65])])
    assert "There is no clear winner: the lead of FedHBM over FedAvg may be chance (p = 0." in verdict
    assert "within the spread" not in verdict


def test_a_clear_winner_of_several() -> None:
    middle = [0.61, 0.6, 0.6, 0.58]
    runs = [*seeds("FedAvg", LOW), *seeds("FedProx", middle), *seeds("FedHBM", HIGH)]
    p = 2 * pytest.importorskip("scipy.stats").ttest_rel(middle, HIGH).pvalue  # Holm: the second smallest of three
    assert said(runs).endswith(
        f"FedHBM is clearly better than every other (p ≤ {p:.2g}, paired t test over 4 seeds, corrected for 3 pairs)."
    )


def test_better_than_some_is_no_clear_winner() -> None:
    runs = [*seeds("FedAvg", LOW), *seeds("FedHBM", HIGH), *seeds("GHBM", [0.7, 0.71, 0.7, 0.7])]
    assert "There is no clear winner: the lead of FedHBM over GHBM may be chance (p = 0." in said(runs)


def test_level_over_seeds() -> None:
    runs = [*seeds("FedAvg", LOW), *seeds("FedHBM", LOW)]
    assert said(runs).endswith("There is no clear winner (p = 1, paired t test over 4 seeds).")


def test_one_seed_is_tested_on_the_test_samples() -> None:
    assert said([answering("FedAvg", 600, 1000), answering("FedHBM", 700, 1000)]).endswith(
        "The difference is clear (p < 0.001, McNemar’s exact test on 1,000 test samples); "
        "the spread over seeds is unknown."
    )
    assert (
        said([answering("FedAvg", 600, 1000), answering("FedHBM", 600, 1000, first=380)]).count("no clear winner") == 1
    )
    chance = said([answering("FedAvg", 500, 1000), answering("FedHBM", 510, 1000, first=480)])
    assert "There is no clear winner: the lead of FedHBM over FedAvg may be chance (p = 0." in chance
    assert chance.endswith("; the spread over seeds is unknown.")


def test_a_loss_is_tested_too() -> None:
    runs = [
        record(label, [NAN], loss=[value], seed=seed)
        for label, values in (("FedAvg", HIGH), ("FedHBM", LOW))
        for seed, value in enumerate(values)
    ]
    assert "The difference is clear" in said(runs)


def test_a_rival_that_failed_is_no_part_of_the_verdict() -> None:
    failed = [record("FedProx", [0.9], seed=seed, diverged_at=1) for seed in range(4)]
    assert "The difference is clear" in said([*seeds("FedAvg", LOW), *seeds("FedHBM", HIGH), *failed])
