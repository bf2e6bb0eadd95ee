"""What commands print besides the table: the data set's defaults, and metrics as JSON."""

from __future__ import annotations

import json
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


def test_defaults_of_the_data_set_are_shown() -> None:
    assert undrift("run", *QUICK).endswith("\ndefaults for digits: model.name=cnn, local.lr=0.1\n")


def test_defaults_that_are_overridden_are_not() -> None:
    assert undrift("run", *QUICK, "-m", "softmax").endswith("\ndefaults for digits: local.lr=0.1\n")
    assert undrift("compare", *QUICK, "--lr", "0.2,0.5").endswith("\ndefaults for digits: model.name=cnn\n")
    assert "defaults" not in undrift("run", *QUICK, "-m", "softmax", "--set", "local.lr=0.2")


def test_metrics_are_among_the_figures() -> None:
    figures = json.loads(undrift("run", *QUICK, "-m", "softmax", "--set", "run.metrics=f1", "--json"))
    assert 0 <= figures["f1"] <= 1
