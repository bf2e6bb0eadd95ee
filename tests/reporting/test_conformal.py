"""Conformal prediction of runs: the table, the picture, the part of the report, the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import undrift as ud
from laws import classified, mlp
from records import record
from undrift.cli import app
from undrift.reporting.sections.conformal import conformal
from undrift.statistics.predictions import Predictions

TEST = classified((60,))[0]


def show(*words: object) -> None:
    result = CliRunner().invoke(app, ["show", "conformal", *map(str, words)], prog_name="undrift")
    assert result.exit_code == 0, result.output


def predicted(label: str, samples: int, seed: int = 0, sharpness: float = 1.0) -> Any:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(samples, 3)) * sharpness
    targets = generator.integers(0, 3, samples)
    logits[np.arange(samples), targets] += 1
    p = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).astype(np.float32)
    found = Predictions(targets, p.argmax(1), p)
    return record(label, [0.5, 0.6], seed=seed)._replace(predictions=found)


def test_means_over_seeds_and_classes() -> None:
    comparison = ud.Comparison([predicted("A", 200, 0), predicted("A", 200, 1), predicted("B", 200, 0)])
    table = comparison.conformal([0.8, 0.9])
    assert table[["label", "seeds", "level"]].to_numpy().tolist() == [
        ["A", 2, 0.8],
        ["A", 2, 0.9],
        ["B", 1, 0.8],
        ["B", 1, 0.9],
    ]
    alone = [ud.Comparison([predicted("A", 200, seed)]).conformal(0.8).iloc[0] for seed in (0, 1)]
    assert table.loc[0, "size"] == pytest.approx(np.mean([each["size"] for each in alone]))
    assert table.loc[0, "coverage_std"] == pytest.approx(np.std([each["coverage"] for each in alone], ddof=1))
    assert (table["size"].diff()[[1, 3]] > 0).all()
    of_classes = comparison.conformal(0.8, "adaptive", per_class=True, randomised=True)
    assert len(of_classes) == 2 * 3
    assert of_classes["class"].tolist() == [0, 1, 2] * 2


def test_only_levels_that_can_be_reached_by_default() -> None:
    few = ud.Comparison([predicted("A", 40)])
    assert few.conformal()["level"].max() == 0.95  # of 20 for calibration
    with pytest.raises(ValueError, match=r"level 0\.99 needs at least 99 samples for calibration"):
        few.conformal([0.99])


def test_bars_are_the_spread_over_seeds() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    axes = ud.Comparison([predicted("A", 200, 0), predicted("A", 200, 1), predicted("B", 200, 0)]).plot_conformal()
    several, one = axes.containers
    assert len(several.get_children()) > len(one.get_children())


def test_refused() -> None:
    with pytest.raises(ValueError, match="needs the class probabilities of a run"):
        ud.Comparison([record("A", [0.5])]).conformal()
    with pytest.raises(TypeError, match="no argument 'randomized'; did you mean 'randomised'"):
        ud.Comparison([predicted("A", 40)]).conformal(randomized=True)
    with pytest.raises(ValueError, match="levels: a level must be greater than 0 and less than 1, got 90"):
        ud.Comparison([predicted("A", 40)]).conformal(90)


def test_the_part_of_the_report() -> None:
    assert conformal([record("A", [0.5])]) is None
    section = conformal([predicted("<A>", 200), record("B", [0.5])])
    assert section is not None
    assert section.html.count("<polyline") == 1
    assert section.html.count("<circle") == 11  # a point per level
    assert "<A>" not in section.html
    assert "Coverage at 90.0\u00a0%" in section.html


def test_the_command_draws_runs(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    given: dict[str, Any] = {"rounds": 2, "lr": 0.1, "batch_size": 4}
    comparison = ud.compare(["fedavg", "fedprox"], mlp(), classified(), TEST, out=runs, **given)
    stored = ud.Comparison.from_directories([runs])
    assert stored.conformal().equals(comparison.conformal())
    for suffix, start in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        show(runs, "--out", tmp_path / f"a.{suffix}")
        assert (tmp_path / f"a.{suffix}").read_bytes().startswith(start)
    assert "FedProx" in (tmp_path / "a.svg").read_text()
    show(runs, "--method", "adaptive", "--levels", "0.5,0.8", "--out", tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_bytes() != (tmp_path / "a.svg").read_bytes()
