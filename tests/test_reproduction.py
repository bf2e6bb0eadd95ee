"""The script that measured `docs/readings.md` works, and knows all that is stored."""

from __future__ import annotations

import runpy
from pathlib import Path

import pandas as pd
import pytest

from undrift.algorithms.text import parse

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "reproduction" / "readings.py"))
FORMS: dict[str, str] = {form: text for forms in SCRIPT["FORMS"].values() for form, text in forms.items()}


def test_readings_are_algorithms() -> None:
    assert all(parse(text) for text in FORMS.values())


def test_what_is_stored_is_known() -> None:
    stored = pd.read_csv(SCRIPT["FILE"])
    assert list(stored) == SCRIPT["COLUMNS"]
    assert set(stored.task) <= set(SCRIPT["TASKS"] | SCRIPT["CONVEX"])
    assert set(stored.form) <= set(FORMS)


@pytest.mark.parametrize("form", ["FedAvg", "MA-FSVRG, by default"])
def test_a_reading_is_measured_at_every_rate_with_every_seed(form: str) -> None:
    SCRIPT["TASKS"]["tiny"] = SCRIPT["Task"]("digits", "softmax", 10, 5)
    rows = SCRIPT["measure"](SCRIPT["Job"]("tiny", form, FORMS[form], "cpu"))
    assert list(rows) == SCRIPT["COLUMNS"]
    assert sorted(zip(rows.lr, rows.seed, strict=True)) == [(lr, seed) for lr in SCRIPT["RATES"] for seed in range(3)]
