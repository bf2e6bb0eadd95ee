"""`undrift tune` and `undrift compare --vary`: what they print, and mistakes in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from undrift.cli import app

QUICK = ("-m", "softmax", "--clients", "10", "--rounds", "2", "--set", "run.cohort=2")
Undrift = Callable[..., Result]


@pytest.fixture
def undrift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Undrift:
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args], prog_name="undrift")


def test_tune_and_compare(undrift: Undrift) -> None:
    command = ("tune", "-a", "fedavg,fedprox", *QUICK, "--grid", "lr=0.01,0.5", "--compare", "--seeds", "2")
    result = undrift(*command, "--out", "tuned")
    assert result.exit_code == 0, result.stderr
    assert "fedavg(lr=0." in result.stdout
    assert "Held-out" in result.stdout
    assert "report: tuned/report.html" in result.stdout
    assert Path("tuned/comparison/fedavg/seed-2/config.json").exists()  # seed 0 was used in the tuning
    assert "How the settings were chosen" in Path("tuned/report.html").read_text(encoding="utf-8")
    page = Path("tuned/report.html").read_bytes()
    assert undrift("report", "tuned").exit_code == 0
    assert Path("tuned/report.html").read_bytes() == page
    again = json.loads(undrift(*command, "--out", "tuned", "--json").stdout)
    assert again["report"] == "tuned/report.html"
    assert len(again["comparison"]["table"]) == 2


def test_json(undrift: Undrift) -> None:
    result = undrift("tune", "-a", "fedavg", *QUICK, "--grid", "local.lr=0.01,0.5", "--json")
    found = json.loads(result.stdout)
    assert found["best"].keys() == {"FedAvg"}
    assert [row["lr"] for row in found["table"]] == [0.01, 0.5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-a", "fedavg", "--grid", "lr"), "unknown grid 'lr'"),
        (("-a", "fedavg", "--grid", "lr="), "--grid is written NAME=VALUE,VALUE"),
        (("-a", "fedavg", "--grid", "feddpc", "--grid", "lr=1"), "--grid is either one name or settings with values"),
        (("-a", "fedavg", "--grid", "lr=fast"), "lr must be a number, got 'fast'"),
        (("-a", "fedavg", "--grid", "lr=1", "--grid", "local.lr=2"), "--grid has local.lr twice"),
        (("-a", "fedavg", "--seeds", "2"), "--seeds is for --compare"),
        (("-a", "fedavg", "--tuning-seeds", "two"), "--tuning-seeds must be a count"),
        ((), "tune needs algorithms"),
    ],
)
def test_mistakes(undrift: Undrift, arguments: tuple[str, ...], message: str) -> None:
    result = undrift("tune", *QUICK, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("runs").exists()


def test_vary(undrift: Undrift) -> None:
    result = undrift("compare", "-a", "fedavg", *QUICK, "--vary", 'data.partition=["iid", "classes:2"]', "--out", "v")
    assert result.exit_code == 0, result.stderr
    assert "partition" in result.stdout
    assert "classes:2" in result.stdout
    assert "report: v/report.html" in result.stdout
    result = undrift("compare", "-a", "fedavg", *QUICK, "--vary", "run.cohort=2,3", "--json")
    assert [row["cohort"] for row in json.loads(result.stdout)["table"]] == [2, 3]
    result = undrift("compare", "-a", "fedavg", *QUICK, "--vary", "run.cohrt=2,3")
    assert result.exit_code == 2
