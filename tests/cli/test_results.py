"""What commands print besides the table: settings, and metrics as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from undrift.cli import app

QUICK = ("-a", "fedavg", "--clients", "10", "--rounds", "2", "--set", "run.cohort=2")


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def undrift(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_settings_are_shown() -> None:
    """Those in effect, wherever they came from."""
    expected = "Settings +model softmax, lr 0.1, batches of 8, 2 of 10 clients in a round"
    assert re.search(expected, undrift("run", *QUICK, "-m", "softmax", "--set", "local.batch_size=8"))


def test_metrics_are_among_the_figures() -> None:
    figures = json.loads(undrift("run", *QUICK, "-m", "softmax", "--set", "run.metrics=f1", "--json"))
    assert 0 <= figures["f1"] <= 1
