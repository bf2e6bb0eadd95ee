"""Drift diagnostics in the report, as a picture and as a table."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import undrift as ud
from records import record
from undrift.cli import app
from undrift.reporting import drift, drift_picture
from undrift.reporting.record import Record
from undrift.reporting.report import render
from undrift.reporting.sections import sections_of


def watched(label: str = "FedAvg", seed: int = 0, rounds: int = 20, scale: float = 1.0) -> Record:
    """A run whose distance is the round's number, and a tenth and two tenths of it in two layers."""
    plain = record(label, [0.1] * rounds, seed=seed)
    figures = scale * np.arange(1.0, rounds + 1)
    added = {"client_distance/mean": figures, "client_distance/mean/<b>": figures / 10}
    added |= {"client_distance/mean/fc": figures / 5, "client_distance/max": 2 * figures}
    cosine = np.where(figures == figures[0], np.nan, 0.5)
    return plain._replace(history=plain.history.assign(**added, **{"global_cosine/value": cosine}))


def test_curves() -> None:
    first, second = drift.panels([watched(), watched(seed=1, scale=3), watched("SCAFFOLD")])
    assert (first.column, first.title, first.layers) == ("client_distance/mean", "Client distance: mean", ["<b>", "fc"])
    assert [curve.label for curve in first.over_rounds] == ["FedAvg", "SCAFFOLD"]
    assert first.over_rounds[0].y[:2] == [2, 4], "the mean over seeds"
    assert first.by_layer[1].y == pytest.approx([1.95, 3.9]), "of rounds 19 and 20"
    assert second.title == "Global cosine"
    assert second.over_rounds[0].x[0] == 2, "the first round has none"
    assert not second.by_layer


def test_failed_runs_are_left_out() -> None:
    bad = watched(seed=1, scale=100)
    bad.history.loc[19, "diverged"] = True
    assert drift.panels([watched(), bad])[0].over_rounds[0].y[-1] == 20
    assert drift.panels([bad])[0].over_rounds[0].y[-1] == 2000


def test_long_runs_are_thinned() -> None:
    curve = drift.panels([watched(rounds=3000)])[0].over_rounds[0]
    assert len(curve.x) == 500
    assert curve.x[-1] == 3000


def test_final_figures() -> None:
    table = drift.final_figures([watched(), watched("SCAFFOLD", scale=2)], ["client_distance/mean"])
    assert table.to_dict("records") == [
        {"figure": "client_distance/mean", "of": "whole model", "FedAvg": 19.5, "SCAFFOLD": 39},
        {"figure": "client_distance/mean", "of": "mean over layers", "FedAvg": pytest.approx(2.925), "SCAFFOLD": 5.85},
    ]


def test_refused() -> None:
    with pytest.raises(ValueError, match=r"none of these runs has diagnostics; train with --set run.diagnostics="):
        drift.panels([record("FedAvg", [0.1])])
    with pytest.raises(ValueError, match="no run has the diagnostic 'client_distance/men'; did you mean"):
        drift.panels([watched()], ["client_distance/men"])
    with pytest.raises(ValueError, match=r"a picture ends in .svg, .png, .pdf, got '.jpg'"):
        drift_picture.rendered([watched()], ".jpg")


def test_the_section_of_the_report() -> None:
    (section,) = [each for each in sections_of([watched(), watched("SCAFFOLD", scale=50)]) if each.title == "Drift"]
    assert section.html.count('class="drift" viewBox') == 3, "global_cosine has no layers"
    assert "log scale" in section.html
    assert "&lt;b&gt;" in section.html
    assert "<b>" not in section.html
    assert (
        'aria-label="Client distance: mean as a line chart: FedAvg ends at 20; SCAFFOLD ends at 1e+03."' in section.html
    )
    assert not [each for each in sections_of([record("FedAvg", [0.1])]) if each.title == "Drift"]


@pytest.mark.parametrize("values", [[1.0] * 3, [0.0] * 3, [np.nan] * 3, [1e-30, 1.0, 1e30], [-0.5, 0.2, 0.9]], ids=str)
def test_any_values_can_be_drawn(values: Sequence[float]) -> None:
    plain = record("FedAvg", [0.1] * 3)
    for name in ("x/value", "x/value/a"):
        plain.history[name] = values
    page = render([plain._replace(history=plain.history.assign(**{"x/value/b": 1.0}))])
    assert "nan" not in page.partition("<h2>Drift</h2>")[2].partition("</section>")[0]


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_the_picture(suffix: str) -> None:
    runs = [watched(), watched("SCAFFOLD")]
    content = drift_picture.rendered(runs, suffix)
    assert content == drift_picture.rendered(runs, suffix), "the same bytes again"
    if suffix == ".svg":
        assert b"SCAFFOLD" in content


def test_from_run_directories(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 2, "diagnostics": ["gradient_norm"], "cohort": 2}
    runs = [
        ud.simulate("fedavg", "mlp", ud.data.load("digits", partition=partition), out=tmp_path / name, **options)
        for name, partition in (("even", "iid"), ("skewed", "classes:2"))
    ]
    comparison = ud.Comparison.from_directories([tmp_path])
    table = comparison.diagnostics(["gradient_norm/max"])
    assert len(table.columns) == 4, "two tasks, told apart"
    assert sorted(table.iloc[0, 2:]) == pytest.approx(sorted(run.history["gradient_norm/max"].iloc[-1] for run in runs))
    assert comparison.draw_diagnostics(tmp_path / "new" / "d.svg").read_bytes().startswith(b"<?xml")
    assert json.loads((tmp_path / "even" / "config.json").read_text())["options"]["diagnostics"] == ["gradient_norm"]


def test_the_command(tmp_path: Path) -> None:
    ud.simulate("fedavg", "mlp", "digits", rounds=1, cohort=2, diagnostics="client_distance", out=tmp_path / "run")
    picture = tmp_path / "d.svg"
    shown = CliRunner().invoke(app, ["show", "diagnostics", str(tmp_path / "run"), "-o", str(picture)])
    assert re.search(r"client_distance/max +whole model +0\.\d+", shown.stdout)
    assert picture.is_file()
    given = ["show", "diagnostics", str(tmp_path / "run"), "-c", "client_distance/max", "-o", str(picture), "--json"]
    figures = json.loads(CliRunner().invoke(app, given).stdout)["figures"]
    assert [row["of"] for row in figures] == ["whole model", "mean over layers"]
    refused = CliRunner().invoke(app, [*given[:-1], "-c", "drift/mean"])
    assert refused.exit_code == 2
    assert "no run has the diagnostic 'drift/mean'; allowed: 'client_distance/mean'" in refused.stderr
