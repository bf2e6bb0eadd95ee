"""Stored results: how rates are chosen, what is the same, and what may be ranked."""

from __future__ import annotations

import math
from importlib import resources
from itertools import product

import pandas as pd
import pytest

from undrift.recommendation import measured, page, ranks

TASK, OTHER = list(measured.TASKS)[:2]


def runs(task: str, algorithm: str, figures: dict[float, list[tuple[float, float, bool]]]) -> pd.DataFrame:
    """Of every rate, by seed: held-out and test accuracy, and whether the run diverged."""
    return pd.DataFrame(
        [
            (task, algorithm, lr, seed, held, test, diverged, 3 if diverged else 100, 30 if diverged else 1000)
            for lr, each in figures.items()
            for seed, (held, test, diverged) in enumerate(each)
        ],
        columns=measured.COLUMNS,
    )


def test_the_rate_is_chosen_by_held_out_samples_and_one_that_loses_a_seed_comes_last() -> None:
    good, better, lost = (0.5, 0.9, False), (0.6, 0.4, False), (math.nan, math.nan, True)
    found = measured.outcomes(
        pd.concat(
            [
                runs(TASK, "fedavg", {0.01: [good] * 3, 0.03: [better] * 3, 0.1: [(0.9, 0.9, False)] * 2 + [lost]}),
                runs(TASK, "moon", {0.01: [lost] * 3, 0.03: [lost, good, good], 0.1: [lost] * 3}),
            ]
        )
    )[TASK]
    assert (found["fedavg"].rate, found["fedavg"].failed, found["fedavg"].failed_anywhere) == (0.03, 0, 1)
    assert found["fedavg"].mean == pytest.approx(0.4)
    assert found["fedavg"].bytes_per_round == 10
    assert (found["moon"].rate, found["moon"].failed, sorted(found["moon"].accuracies)) == (0.03, 1, [1, 2])
    assert found["moon"].mean == pytest.approx(0.9)
    assert found["moon"].scores == {0: 0.0, 1: 0.9, 2: 0.9}
    assert found["moon"].score == pytest.approx(0.6)


def test_what_all_settings_have_is_ranked() -> None:
    one = {0.1: [(0.5, 0.5, False)] * 3}
    stored = measured.outcomes(
        pd.concat([runs(TASK, name, one) for name in ("fedavg", "fedprox", "moon")] + [runs(OTHER, "fedavg", one)])
    )
    assert ranks.complete(stored) == ([TASK], ["fedavg", "fedprox", "moon"])


def test_a_run_that_failed_counts_nothing_in_differences() -> None:
    figures = {0.1: [(0.5, 0.5, False)] * 3}, {0.1: [(0.6, 0.6, False), (math.nan, math.nan, True), (0.6, 0.7, False)]}
    stored = measured.outcomes(
        pd.concat([runs(TASK, name, each) for name, each in zip(("fedavg", "moon"), figures, strict=True)])
    )
    found = ranks.difference(stored, [TASK], "moon", "fedavg")
    assert found.seeds == 3
    assert found.difference == pytest.approx(1.3 / 3 - 0.5)


def test_results_are_a_part_of_the_package() -> None:
    assert resources.files("undrift.recommendation").joinpath(measured.FILE).is_file()


def test_a_device_is_called_no_more_than_the_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = measured.times()
    monkeypatch.setattr(measured, "times", lambda: pd.concat([stored, stored.assign(device="cuda")]))
    written = page.markdown()
    assert "**10 clients of 100, two CPU cores**" in written.replace("\u00a0", " ")
    assert "**10 clients of 100, cuda**" in written.replace("\u00a0", " ")


def test_every_algorithm_ran_in_every_setting_at_every_rate_with_every_seed() -> None:
    rows = measured.rows()
    runs = set(zip(rows.task, rows.algorithm, rows.lr, rows.seed, strict=True))
    assert runs == set(product(measured.TASKS, measured.ALGORITHMS, measured.RATES, range(measured.SEEDS)))
    assert len(rows) == len(runs)
