"""Curves of experiments."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from undrift.reporting.record import Record
from undrift.reproduce import curves
from undrift.reproduce.experiment import find
from undrift.reproduce.results import Results


def run(label: str, accuracies: list[float], seed: int = 0) -> Record:
    rounds = range(1, len(accuracies) + 1)
    history = pd.DataFrame({"round": rounds, "accuracy": accuracies, "train_loss": 1.0, "diverged": False})
    return Record(label, seed, history, {}, {})


def test_a_point_is_the_mean_over_a_window() -> None:
    found = curves.windows(run("A", list(np.arange(80) / 100))).history
    assert len(found) == curves.POINTS
    assert found["round"].tolist()[:2] == [2, 4]
    assert found["accuracy"].tolist()[:2] == pytest.approx([0.005, 0.025])
    of = find("feddpc-table2")
    assert curves.window_rounds(Results(of, {"": [run("A", [0.1] * 80)]}, {}, fast=False)) == 2
    assert curves.window_rounds(Results(of, {"": [run("A", [np.nan, 0.1] * 2)]}, {}, fast=False)) == 1
    few = curves.windows(run("A", [0.1, np.nan, 0.3])).history
    assert (few["round"].tolist(), few["accuracy"].tolist()) == ([1, 3], [0.1, 0.3])


def test_runs_that_failed_are_no_part_of_a_curve() -> None:
    """One was evaluated before, the other failed in the first round."""
    failed = [run("FedDPC", [0.1, 0.2, np.nan]), run("FedCM", [np.nan])]
    for each in failed:
        each.history.loc[each.history.index[-1], "diverged"] = True
    assert all(curves.windows(each).failed for each in failed)
    drawn = curves.svg(Results(find("feddpc-table2"), {"": [run("FedAvg", [0.3, 0.4]), *failed]}, {}, fast=False))
    assert b"FedAvg  40.0" in drawn
    assert b"FedDPC" not in drawn  # its dotted line has no name
    assert b"FedCM" not in drawn


def test_all_runs_may_have_failed_before_they_were_evaluated() -> None:
    failed = run("FedDPC", [np.nan])
    failed.history["diverged"] = True
    found = Results(find("feddpc-table2"), {"": [failed]}, {}, fast=False)
    assert b"Test accuracy" in curves.svg(found)
    assert curves.window_rounds(found) == 1


def test_names_are_kept_apart_and_where_they_belong() -> None:
    assert curves._spread_out([0.1, 0.5], 0.1) == pytest.approx([0.1, 0.5])
    assert curves._spread_out([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert curves._spread_out([0.1, 0.5, 0.52, 0.55], 0.1) == pytest.approx([0.1, 0.42333, 0.52333, 0.62333], abs=1e-4)
    assert curves._spread_out([0.98, 0.99, 1.0], 0.1) == pytest.approx([0.8, 0.9, 1.0])
    assert curves._spread_out([0.0, 0.01, 0.99], 0.1) == pytest.approx([0.0, 0.1, 0.99])


def test_every_algorithm_has_a_name_and_every_case_a_panel() -> None:
    cases = {
        case: [run(label, [0.1, 0.2 + place / 10], seed) for place, label in enumerate(labels) for seed in range(2)]
        for case, labels in {"α = 0.2": ["FedAvg", "FedDPC"], "α = 0.6": ["FedAvg", "FedCM"]}.items()
    }
    found = Results(find("feddpc-table2"), cases, {}, fast=False)
    drawn = curves.svg(found)
    text = drawn.decode()
    assert all(each in text for each in ("α = 0.2", "α = 0.6", "FedAvg  20.0", "FedDPC  30.0", "FedCM  30.0"))
    assert curves.svg(found) == drawn
    assert curves.stand_out(found) == ["FedDPC", "FedAvg"]


@pytest.mark.parametrize(("rounds", "scale"), [(20, "linear"), (5, "linear"), (4, "log")])
def test_short_runs_beside_long_ones_are_seen(rounds: int, scale: str) -> None:
    """A panel whose rounds are not those of the others has its own scale."""
    cases = {
        "α = 0.2": [run("FedAvg", [0.1] * 20), run("FedDPC", [0.2] * rounds)],
        "α = 0.6": [run("FedAvg", [0.1] * 40)],
    }
    panels = curves._figure(Results(find("feddpc-table2"), cases, {}, fast=False)).axes
    assert [axes.get_xscale() for axes in panels] == [scale, "linear"]
    assert [axes.get_xlim()[1] for axes in panels] == [20, 40]
    assert [axes.get_ylabel() for axes in panels] == ["Test accuracy (%)", ""]


@pytest.mark.parametrize(("first", "begins"), [(0.1, 89.6), (0.85, 84.35)])
def test_curves_that_rise_at_once_are_drawn_without_the_rise(first: float, begins: float) -> None:
    """But for rises that would be about as high as all that follows."""
    records = [run("FedAvg", [first, *[0.9] * 9]), run("FedDPC", [first, *np.linspace(0.9, 0.98, 9)])]
    (panel,) = curves._figure(Results(find("feddpc-table2"), {"": records}, {}, fast=False)).axes
    assert panel.get_ylim()[0] == pytest.approx(begins, abs=0.1)


@pytest.mark.filterwarnings("error")
def test_curves_at_one_accuracy_keep_a_scale_that_has_a_height() -> None:
    records = [run("FedAvg", [0.1] * 3), run("FedDPC", [0.1] * 3)]
    (panel,) = curves._figure(Results(find("feddpc-table2"), {"": records}, {}, fast=False)).axes
    low, high = panel.get_ylim()
    assert low < 10 < high


def test_a_single_round_is_a_point() -> None:
    records = [run("FedAvg", [0.1]), run("FedDPC", [0.1])]
    (panel,) = curves._figure(Results(find("feddpc-table2"), {"": records}, {}, fast=False)).axes
    assert [line.get_marker() for line in panel.lines] == ["o", "o"]
    assert panel.get_xticks().tolist() == [0, 1]
