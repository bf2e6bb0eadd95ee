"""The columns of a history: their types, their order, and how metrics are declared."""

from __future__ import annotations

import math
from typing import Any

import pytest

from undrift.client.metrics import METRICS, find
from undrift.reporting.record import COLUMNS, NAMED_METRICS, HistoryColumn, column, history_frame

ROW: dict[str, Any] = {
    "round": 1,
    "loss": math.nan,
    "accuracy": math.nan,
    "train_loss": 2.0,
    "bytes_down": 100,
    "bytes_up": 50,
    "participants": 10,
    "seconds": 1.0,
    "evaluation_seconds": 0.5,
    "diverged": False,
}
NAMES = list(ROW)


def test_the_order_of_the_files() -> None:
    assert [each.name for each in COLUMNS] == NAMES


@pytest.mark.parametrize("rows", [[], [ROW]])
def test_types_do_not_depend_on_the_rows(rows: list[dict[str, Any]]) -> None:
    frame = history_frame(rows)
    assert list(frame.columns) == NAMES
    assert [str(kind) for kind in frame.dtypes] == [each.dtype for each in COLUMNS]


def test_metrics_follow_the_declared_columns() -> None:
    frame = history_frame([ROW, {"f1": 1, **ROW, "drift": 3, "round": 2}])
    assert list(frame.columns) == [*NAMES, "f1", "drift"]
    assert frame["f1"].dtype == frame["drift"].dtype == "float64"
    assert frame["drift"].tolist()[1] == 3
    assert math.isnan(frame["drift"][0])


def test_declarations() -> None:
    assert column("loss").better == "lower"
    assert column("f1") is NAMED_METRICS["f1"]
    assert column("client_drift") == HistoryColumn(
        "client_drift",
        "float64",
        "The metric client_drift.",
        chart="Client drift",
        heading="Final client drift",
    )


def test_every_meaning_is_a_sentence() -> None:
    for each in (*COLUMNS, *NAMED_METRICS.values()):
        assert each.meaning.endswith(".")


def test_every_named_metric_says_how_it_is_shown() -> None:
    columns = set(find(list(METRICS)).columns)
    assert columns == set(NAMED_METRICS)
    assert column("accuracy_class_3").percent
    assert column("accuracy_class_3").chart is None  # there may be many


def test_a_history_recorded_before_a_column_existed() -> None:
    """Whole numbers and flags have no NaN."""
    later = ("participants", "evaluation_seconds", "diverged")
    frame = history_frame([{k: v for k, v in ROW.items() if k not in later}] * 2)
    assert frame.evaluation_seconds.isna().all()
    assert frame.participants.tolist() == [0, 0]
    assert not frame.diverged.any()
