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
        "Round of best",
        "Final F1",
        "Final test loss",
        "Rounds to 80.0 %",
        "Speed-up",
        "Traffic to 80.0 %",
        "Traffic",
        "Training time",
    ]


def test_columns_without_values_are_left_out() -> None:
    shown = columns([record("FedAvg", [NAN] * 2, f1=[NAN] * 2)])
    assert [each.heading for each in shown] == ["Method", "Final test loss", "Traffic", "Training time"]


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


def test_figures_to_a_target() -> None:
    """Mean and standard deviation, and a dash where none arrived."""
    runs = [record("A", [0.1, end, 0.9], seed=seed) for seed, end in enumerate((0.1, 0.9))]
    runs += [record("B", [0.9] * 3, seed=seed) for seed in range(2)]
    runs += [record("C", [0.1] * 3, seed=seed) for seed in range(2)]
    found = {each.name: each for each in columns(runs, 0.8)}
    shown = {
        name: [cell.replace("\u00a0", " ") for cell in found[name].cells] for name in ("rounds", "speed_up", "bytes")
    }
    assert shown["rounds"] == ["2.5 ± 0.7", "1 ± 0", "–"]
    assert shown["speed_up"] == ["1.00 ×", "2.50 ×", "–"]
    assert shown["bytes"] == ["375 ± 106 B", "150 ± 0 B", "–"]
    assert (found["rounds"].best, found["bytes"].best) == ({1}, {1})


def test_several_targets_have_their_own_columns() -> None:
    headings = [
        each.heading.replace("\u00a0", " ") for each in columns([record("A", FEDAVG), record("B", FEDHBM)], [0.6, 0.7])
    ]
    assert [each for each in headings if each.endswith("60.0 %")] == [
        "Rounds to 60.0 %",
        "Speed-up to 60.0 %",
        "Traffic to 60.0 %",
    ]
    assert "Rounds to 70.0 %" in headings


def test_chosen_columns() -> None:
    runs = [record("A", FEDAVG, drift=DRIFT), record("B", FEDHBM, drift=DRIFT)]
    assert [each.name for each in columns(runs, chosen=["time", "drift"])] == ["method", "time", "drift"]
    with pytest.raises(ValueError, match=r"must be one of .*, got 'acuracy'.*'accuracy'"):
        columns(runs, chosen=["acuracy"])
    with pytest.raises(TypeError, match="columns must be a list of names, got 'time'"):
        columns(runs, chosen="time")
