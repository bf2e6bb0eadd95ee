"""What papers report of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from undrift.reporting.record import Record
from undrift.reproduce.experiment import Experiment, read
from undrift.reproduce.measures import measure_named
from undrift.statistics.predictions import Predictions


def run(
    accuracy: list[float], predictions: Predictions | None = None, columns: Mapping[str, list[float]] | None = None
) -> Record:
    rounds = range(1, len(accuracy) + 1)
    history = pd.DataFrame({"round": rounds, "accuracy": accuracy, **(columns or {})})
    return Record("FedAvg", 0, history, {}, {}, predictions)


def test_mean_of_a_short_run_is_that_of_its_second_half() -> None:
    measure = measure_named("mean of last rounds")
    assert measure.of(run([0.0, 0.1, math.nan, 0.7])) == pytest.approx(0.7)
    assert measure.of(run([0.0] * 200 + [0.4, 0.6] * 50)) == pytest.approx(0.5)
    assert measure.of(run([0.3])) == pytest.approx(0.3)


def test_deviation_of_a_short_run_is_that_of_its_second_half() -> None:
    measure = measure_named("deviation of last rounds")
    assert measure.of(run([0.0, 0.1, 0.5, 0.7])) == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert measure.of(run([0.0] * 200 + [0.4, 0.6] * 50)) == pytest.approx(np.std([0.4, 0.6] * 50, ddof=1))
    assert not measure.higher_is_better


def test_last_value_of_a_column() -> None:
    several = run([0.1, 0.2, math.nan], columns={"accuracy_best": [0.3, 0.4, math.nan]})
    assert measure_named("last, best model").of(several) == 0.4
    assert math.isnan(measure_named("last, mean of models").of(several))


def test_gradient_norms_are_averaged_over_layers_at_the_end() -> None:
    norms = {
        "gradient_norm/mean": [9.0] * 10,  # of the whole model
        "gradient_norm/mean/conv": [1.0] * 9 + [6.0],
        "gradient_norm/mean/hidden": [1.0] * 9 + [2.0],
        "gradient_norm/mean/head": [1.0] * 9 + [4.0],
    }
    found = run([0.5] * 10, columns=norms)
    assert measure_named("mean gradient norm").of(found) == 4
    assert measure_named("mean gradient norm of last layers").of(found) == 3
    assert math.isnan(measure_named("maximum gradient norm").of(found))


@pytest.mark.parametrize(
    ("measure", "text"),
    [("mean gradient norm", "0.937"), ("rounds to 60 %", "1"), ("set size at 90 %", "0.94"), ("best", "93.70")],
)
def test_figures_have_the_digits_of_their_kind(measure: str, text: str) -> None:
    found = measure_named(measure)
    assert f"{0.937 * (100 if found.percent else 1):.{found.digits}f}" == text


def test_conformal_sets() -> None:
    targets = np.arange(40) % 2
    sure = np.where(targets[:, None] == np.arange(3), 0.8, 0.1).astype(np.float32)
    found = run([1.0], Predictions(targets, targets, sure))
    assert measure_named("set size at 90 %").of(found) == 1
    assert measure_named("coverage at 90 %").of(found) == 1
    assert math.isnan(measure_named("set size at 90 %").of(run([1.0])))


def test_unknown_measure() -> None:
    with pytest.raises(ValueError, match="did you mean 'set size at 90 %'"):
        measure_named("set size at 90")


EXPERIMENT = """
paper = "A paper"
table = "Table 1"
title = "An experiment"
[algorithms]
FedAvg = { run = "fedavg", note = "" }
FedDPC = { run = "feddpc", note = "" }
[cases.IID]
[cases.non-IID]
[[claims]]
text = "A claim"
measure = "best"
better = "FedDPC"
"""


def claimed(further: str) -> Experiment:
    return read("test", EXPERIMENT + further)


def test_claims_that_nothing_differs_or_across_cases() -> None:
    plain = claimed("").claims[0]
    assert (plain.than, plain.cases, plain.equal, plain.than_case) == (("FedAvg",), ("IID", "non-IID"), False, "")
    assert claimed("equal = true").claims[0].equal
    assert claimed("no_better = true").claims[0].no_better
    across = claimed('cases = ["IID"]\nthan_case = "non-IID"').claims[0]
    assert (across.than, across.cases, across.than_case) == (("FedDPC",), ("IID",), "non-IID")


@pytest.mark.parametrize(
    ("further", "message"),
    [
        ("equal = 1", "equal must be true or false"),
        ('than_case = "iid"', "unknown case"),
        ("no_beter = true", "unknown key of a claim 'no_beter'; did you mean 'no_better'"),
        ('than = "FedAvg"', "than must be a list of names, got 'FedAvg'"),
        ("than = []", r"than must be a list of names, got \[\]"),
        ('than = ["FedAvg", "FedDPC"]', "than must not name FedDPC, which is better"),
        ('cases = "IID"', "cases must be a list of names, got 'IID'"),
    ],
)
def test_claims_that_are_refused(further: str, message: Any) -> None:
    with pytest.raises(ValueError, match=message):
        claimed(further)
