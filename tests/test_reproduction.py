"""The scripts that measured `docs/readings.md` and `docs/robustness.md` work, and know all that is stored."""

from __future__ import annotations

import runpy
from pathlib import Path

import pandas as pd
import pytest

from undrift.algorithms.text import parse

HOME = Path(__file__).parents[1] / "docs" / "reproduction"
SCRIPT = runpy.run_path(str(HOME / "readings.py"))
ATTACKS = runpy.run_path(str(HOME / "attacks.py"))
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


def test_every_attack_was_measured() -> None:
    stored = pd.read_csv(ATTACKS["FILE"], keep_default_na=False, na_values={"accuracy": [""]})
    cases = [(*case, seed) for case in ATTACKS["cases"]() for seed in range(ATTACKS["SEEDS"])]
    assert list(zip(stored.rule, stored.attack, stored.share, stored.seed, strict=True)) == cases
    assert ATTACKS["table"]().count("\n") == 1 + len(ATTACKS["RULES"])
