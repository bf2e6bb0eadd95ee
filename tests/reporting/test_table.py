"""The summary table: columns, texts and best rows."""

from __future__ import annotations

import pytest

from records import FEDAVG, FEDHBM, NAN, record
from undrift.reporting.record import NAMED_METRICS, HistoryColumn
from undrift.reporting.table import columns

DRIFT = [4.0, 3.0, 2.0, 1.0]


def test_headings_in_order() -> None:
    runs = [record(label, FEDAVG, seed=seed, f1=FEDAVG) for label in ("FedAvg", "FedHBM") for seed in range(2)]
    assert [each.heading.replace("\u00a0", " ") for each in columns(runs)] == [
        "Method",
        "Seeds",
        "Final accuracy",
        "Best accuracy",
        "Final F1",
        "Final test loss",
        "Rounds to 80.0 %",
        "Traffic",
        "Time",
    ]


def test_columns_without_values_are_left_out() -> None:
    shown = columns([record("FedAvg", [NAN] * 2, f1=[NAN] * 2)])
    assert [each.heading for each in shown] == ["Method", "Final test loss", "Traffic", "Time"]


def test_one_unit_for_all_rows() -> None:
    small, large = record("FedAvg", FEDAVG), record("FedHBM", FEDHBM)
    large.history["bytes_down"] *= 1000
    traffic = next(each for each in columns([small, large]) if each.heading == "Traffic")
    assert [cell.replace("\u00a0", " ") for cell in traffic.cells] == ["0.600 kB", "400 kB"]


def test_a_metric_of_unknown_direction_has_no_best(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [record("FedAvg", FEDAVG, seed=seed, drift=DRIFT) for seed in range(2)]
    runs += [record("FedHBM", FEDHBM, seed=seed, drift=FEDHBM) for seed in range(2)]
    drift = next(each for each in columns(runs) if each.heading == "Final drift")
    assert (drift.cells, drift.best) == (["1.00", "0.950"], set())
    declared = HistoryColumn("drift", "float64", "Distance.", heading="Drift", percent=True, better="lower")
    monkeypatch.setitem(NAMED_METRICS, "drift", declared)
    drift = next(each for each in columns(runs) if each.heading == "Drift")
    assert [cell.replace("\u00a0", " ") for cell in drift.cells] == ["100.0 ± 0.0 %", "95.0 ± 0.0 %"]
    assert drift.best == {1}
