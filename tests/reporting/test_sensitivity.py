"""Accuracy against the one setting in which runs differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from records import record
from undrift.reporting.notebook import write_figures
from undrift.reporting.record import Record
from undrift.reporting.sections.sensitivity import accuracy_against
from undrift.reporting.sensitivity import draw, sensitivity_of


def run(accuracy: float, seed: int = 0, *, name: str = "fedavg", label: str = "", **options: Any) -> Record:
    config = {"algorithm": {"name": name, "options": {}}, "options": {"lr": 0.1, "seed": seed} | options}
    return record(label or name, [accuracy / 2, accuracy], seed=seed, config=config)


RUNS = [run(0.5, 0, lr=1.0), run(0.7, 1, lr=1.0), run(0.8, 0, lr=0.1), run(0.9, 1, lr=0.1)]


def test_points_are_means_over_seeds() -> None:
    found = sensitivity_of(RUNS)
    assert found is not None
    assert (found.key, found.values, found.logarithmic) == ("lr", [0.1, 1.0], True)
    (line,) = found.lines
    assert [(p.value, round(p.mean, 9), p.low, p.high) for p in line.points] == [
        (1.0, 0.6, 0.5, 0.7),
        (0.1, 0.85, 0.8, 0.9),
    ]


def test_seeds_that_failed_are_left_out() -> None:
    failed = run(0.1, 2, lr=1.0)
    failed.history.loc[1, "diverged"] = True
    found = sensitivity_of([*RUNS, failed])
    assert found is not None
    assert found.lines[0].points[0].accuracies == (0.5, 0.7)


def test_runs_that_differ_in_nothing_or_in_more_have_none() -> None:
    assert sensitivity_of([run(0.5, 0), run(0.6, 1), run(0.7, name="scaffold", lr=3.0)]) is None
    assert sensitivity_of([run(0.5), run(0.6, lr=1.0, momentum=0.9)]) is None
    assert sensitivity_of([record("A", [0.1, 0.2]), record("B", [0.1, 0.2])]) is None


def test_the_section_is_escaped() -> None:
    hostile = [each._replace(label="<script>alert(1)</script>") for each in RUNS]
    section = accuracy_against(hostile)
    assert section is not None
    assert section.title == "Accuracy against lr"
    assert "<script>" not in section.html
    assert section.html.count("<circle") == 2
    assert "is best at 0.1" in section.html


def test_the_picture_of_matplotlib(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    found = sensitivity_of([*RUNS, run(0.3, name="scaffold", label="SCAFFOLD")])
    assert found is not None
    axes = draw(found)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.1", "1"]
    assert axes.get_xlabel() == "lr"
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines) == ["fedavg", "SCAFFOLD"]
    written = write_figures(RUNS, tmp_path, None, ["svg"])
    assert [path.name for path in written][-1] == "accuracy-lr.svg"
