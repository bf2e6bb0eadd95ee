"""The files of the picture."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app

SVG = "{http://www.w3.org/2000/svg}"


def test_svg_has_a_panel_for_every_algorithm(tmp_path: Path) -> None:
    found = ud.draw_drift(["fedavg", ud.algorithms.FedProx(mu=0.5)], tmp_path / "new" / "a.svg", rounds=2, steps=3)
    root = ElementTree.parse(found).getroot()
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert {"FedAvg", "FedProx(mu=0.5)"} <= set(texts)
    assert "2 rounds of 3 local steps" in str(texts[1])
    lines = [each.get("points", "").split() for each in root.iter(f"{SVG}polyline")]
    assert sum(len(points) == 1 + 4 for points in lines) == 2 * 2 * 2  # panels, clients, rounds
    assert sum(len(points) == 3 for points in lines) == 2  # the server's


def test_command(tmp_path: Path) -> None:
    options = ["--rounds", "2", "--steps", "2", "--lr", "0.1"]
    found = CliRunner().invoke(app, ["show", "drift", "-a", "fedavg,scaffold", *options, "--out", f"{tmp_path}/a.svg"])
    assert found.exit_code == 0, found.output
    assert f"picture: {tmp_path}/a.svg" in found.stdout
    assert "SCAFFOLD" in (tmp_path / "a.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("algorithms", "name", "message"),
    [
        ("fedavg", "a.gif", r"\.svg.*got 'a.gif'"),
        ("", "a.svg", "needs algorithms"),
        ("fedavgg", "a.svg", "fedavg"),
        ("moon", "a.svg", "representation|features"),
    ],
)
def test_what_cannot_be_drawn_is_said(algorithms: str, name: str, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ud.draw_drift(algorithms, name, rounds=1, steps=1)
