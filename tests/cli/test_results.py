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


COMPARED = ("compare", "-a", "fedavg,fedhbm", "-m", "softmax", "--clients", "10", "--rounds", "2", "--out", "out")


def test_a_table_in_another_format_is_all_that_is_printed() -> None:
    latex = undrift(*COMPARED, "--centralised", "--targets", "0.05,50%", "--format", "latex")
    assert latex.startswith("\\begin{tabular}")
    assert latex.endswith("\\end{tabular}\n")
    assert latex.count(" \\\\\n") == 4  # headings, two methods, a reference
    assert Path("out/report.html").exists()
    assert undrift("report", "out", "--targets", "0.05,50%", "--format", "latex") == latex
    columns = undrift("report", "out", "--format", "csv").splitlines()[0].split(",")
    assert {"label", "best_round", "last_k_accuracy_std", "rounds_to_0.05", "training_seconds"} <= set(columns)
    figures = json.loads(undrift("report", "out", "--targets", "0.05,50%", "--json"))
    assert [row["label"] for row in figures["table"]] == ["FedAvg", "FedHBM", "Centralised"]
    assert figures["targets"]["50%"] == pytest.approx(figures["table"][2]["accuracy"] / 2)
    assert figures["table"][0]["rounds_to_0.05"] in (None, 1, 2)
    chosen = undrift("report", "out", "--columns", "best_round", "--last", "1")
    assert re.match(r" +Round of\nMethod +best\n", chosen)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--format", "word"), "--format must be one of 'text', 'csv', 'markdown', 'latex', got 'word'"),
        (("--format", "csv", "--columns", "accuracy"), "csv and JSON have all columns"),
        (("--json", "--format", "latex"), "give --json or --format latex, not both"),
        (("--columns", "acurracy"), "did you mean 'accuracy'?"),
        (("--targets", "90%"), "compare with centralised=True (--centralised)"),
        (("--targets", "90"), "between 0 and 1, got '90'; 90 % are 0.9"),
        (("--last", "0"), "last_k must be at least 1, got 0"),
        (("--set", "compare.centralised=3"), "centralised must be True or written as"),
        (("--set", "compare.tagets=0.5"), "did you mean 'targets'?"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_trains(words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, [*COMPARED, *words])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("out").exists()
