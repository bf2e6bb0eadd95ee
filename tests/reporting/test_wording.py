"""Numbers and units as text."""

from __future__ import annotations

import math

import pytest

from undrift.reporting.wording import decimal_text, number_text, percent_text, unit_of_time, unit_of_traffic


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([], (1, "B")),
        ([999], (1, "B")),
        ([1, 1000], (1e3, "kB")),
        ([999_999.9, math.nan], (1e3, "kB")),
        ([1e6], (1e6, "MB")),
        ([3e13], (1e9, "GB")),
    ],
)
def test_unit_of_traffic(values: list[float], unit: tuple[float, str]) -> None:
    assert unit_of_traffic(values) == unit


@pytest.mark.parametrize(("seconds", "unit"), [(299, (1, "s")), (300, (60, "min")), (7200, (3600, "h"))])
def test_unit_of_time(seconds: float, unit: tuple[float, str]) -> None:
    assert unit_of_time([1, seconds]) == unit


def test_numbers() -> None:
    assert [decimal_text(value) for value in (0, 1.2345, 1234.5, math.nan)] == ["0.00", "1.23", "1,234", "–"]
    assert [number_text(value) for value in (0.5, 123, 1e-9, math.inf)] == ["0.500", "123", "1.00e-09", "–"]
    assert percent_text(0.5, 0.01).replace("\u00a0", " ") == "50.0 ± 1.0 %"
