"""Stored results: how rates are chosen, what is the same, and what may be ranked."""

from __future__ import annotations

import math
from importlib import resources

import pandas as pd
import pytest

from undrift.recommendation import measured, ranks

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
    assert found["moon"].score == pytest.approx(0.6)


def test_what_all_settings_have_is_ranked() -> None:
    one = {0.1: [(0.5, 0.5, False)] * 3}
    stored = measured.outcomes(
        pd.concat([runs(TASK, name, one) for name in ("fedavg", "fedprox", "moon")] + [runs(OTHER, "fedavg", one)])
    )
    assert ranks.complete(stored) == ([TASK], ["fedavg", "fedprox", "moon"])


def test_results_are_a_part_of_the_package() -> None:
    assert resources.files("undrift.recommendation").joinpath(measured.FILE).is_file()
