"""Experiments whose data were not at hand run on small files of the same schema."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

import hub_files
import undrift as ud
from undrift.data.catalogue import CATALOGUE, Images
from undrift.reproduce import page, stored
from undrift.reproduce.experiment import find, names
from undrift.reproduce.plan import plan
from undrift.reproduce.run import run

MISSING = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "reproduction" / "report.py"))["missing_data"]
ONE_STEP = {"local.steps": 1, "local.epochs": 1, "local.batch_size": 4, "run.rounds": 1, "run.cohort": 2}


@pytest.mark.parametrize("name", [name for name in names() if MISSING(find(name)) and not find(name).runs_of])
def test_runs_on_small_data(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the short version, of two algorithms in a case."""
    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "cache"))
    experiment = find(name)
    (data,) = experiment.data_sets
    entry = CATALOGUE[data]
    large = isinstance(entry.content, Images) and entry.content.resized
    ud.data.get(data, hub_files.write_all(data, tmp_path / "source", 20 if large else 4 * min(entry.classes, 200)))
    short = plan(experiment, fast=True, seeds=1)
    labels = list(short.algorithms)[:2]
    one_class_each = experiment.settings_of(short.cases[0])["data.partition"].startswith("dirichlet-client")
    changed = {**short.changed, **ONE_STEP, "data.clients": entry.classes if one_class_each else 4}
    algorithms = {label: short.algorithms[label] for label in labels}
    results = run(replace(short, cases=short.cases[:1], algorithms=algorithms, changed=changed), tmp_path / name)
    stored.write(results, tmp_path / name)
    text = page.markdown(stored.read(tmp_path / name))
    assert all(f"\n| {label} | `" in text for label in labels)
    assert "Runs: " in text
