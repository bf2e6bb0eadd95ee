"""Settings that stand with an algorithm, and the weights of a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app
from undrift.storage.directory import RunDirectory

SETTINGS: dict[str, Any] = {"rounds": 2, "lr": 0.1, "engine": "batched", "device": "cpu"}


def unequal(test: bool = True) -> ud.FederatedData:
    """Two clients, one with twice the samples of the other."""
    x = torch.linspace(-1, 1, 24).view(12, 2)
    y = torch.arange(12) % 2
    return ud.FederatedData(x, y, [range(4), range(4, 12)], test=(x, y) if test else None, classes=2)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, 2)


def test_settings_in_a_text_are_those_of_the_run(tmp_path: Path) -> None:
    text = "fedadam(server_lr=0.5, lr=0.03, momentum=0.5, weight_decay=0.1, clip=1.0, lr_decay=0.9)"
    given: dict[str, Any] = {"server_lr": 0.5, "lr": 0.03, "momentum": 0.5, "weight_decay": 0.1, "clip": 1.0}
    one = ud.simulate(text, linear(), unequal(), out=tmp_path / "x", **SETTINGS)
    two = ud.simulate("fedadam", linear(), unequal(), **SETTINGS | given | {"lr_decay": 0.9})
    assert one.config["options"] == two.config["options"]
    assert all(torch.equal(v, two.parameters[k]) for k, v in one.parameters.items())
    assert one.label == text.replace("fedadam", "FedAdam")
    again = ud.resume(tmp_path / "x", rounds=3, model=linear(), data=unequal())
    assert (again.label, again.options.lr, again.options.server_lr) == (one.label, 0.03, 0.5)


def test_a_comparison_has_settings_for_each(tmp_path: Path) -> None:
    algorithms = ["fedavg", "fedprox(mu=0.1, lr=0.3, weighting=uniform)"]
    given = SETTINGS | {"lr": [0.1, 0.2]}
    comparison = ud.compare(algorithms, linear(), unequal(), seeds=2, out=tmp_path, **given)
    found = {(r.label, r.config["options"]["lr"], r.config["options"]["weighting"]) for r in comparison.records}
    own = "FedProx(mu=0.1, lr=0.3, weighting='uniform')"
    assert found == {("FedAvg, lr 0.1", 0.1, "samples"), ("FedAvg, lr 0.2", 0.2, "samples"), (own, 0.3, "uniform")}
    assert len(comparison.records) == 6, "a rate of its own makes one row, not one for every rate"
    last_row = comparison.table().to_dict("records")[-1]
    assert [last_row[key] for key in ("label", "lr", "server_lr", "weighting")] == [own, 0.3, 1.0, "uniform"]
    alone = ud.simulate(algorithms[1], linear(), unequal(), **SETTINGS)
    last = comparison.records[-2].history
    assert last.accuracy.tolist() == alone.history.accuracy.tolist()
    assert last.loss.tolist() == pytest.approx(alone.history.loss.tolist(), rel=1e-5)
    again = ud.compare(algorithms, linear(), unequal(), seeds=2, out=tmp_path, **given)
    assert again.curves().equals(comparison.curves()), "the runs are found again"


def test_a_wrong_setting_is_named_with_its_algorithm() -> None:
    with pytest.raises(ValueError, match=r"FedAvg\(lr=0\): lr must be greater than 0, got 0"):
        ud.compare(["fedavg(lr=0)"], linear(), unequal(), **SETTINGS)
    with pytest.raises(ValueError, match="FedAvg has no option 'learning'"):
        ud.simulate("fedavg(learning=3)", linear(), unequal(), **SETTINGS)


def weights_of(comparison: ud.Comparison) -> list[str]:
    return [record.config["options"]["weighting"] for record in comparison.records]


def test_a_comparison_weights_clients_by_samples() -> None:
    """FedBN's paper weights them equally: without normalisations, that was all it differed in from FedAvg."""
    fair = ud.compare(["fedavg", "fedbn"], linear(), unequal(), **SETTINGS)
    assert weights_of(fair) == ["samples", "samples"]
    assert fair.records[0].history.loss.tolist() == fair.records[1].history.loss.tolist()
    papers = ud.compare(["fedavg", "fedbn"], linear(), unequal(), weighting="paper", **SETTINGS)
    assert weights_of(papers) == ["samples", "uniform"]
    assert papers.records[0].history.loss.tolist() != papers.records[1].history.loss.tolist()
    assert weights_of(ud.compare(["fedavg"], linear(), unequal(), weighting="uniform", **SETTINGS)) == ["uniform"]


@pytest.mark.parametrize("given", [{}, {"weighting": None}, {"weighting": "paper"}], ids=str)
def test_a_single_run_weights_clients_as_its_paper_does(given: dict[str, Any]) -> None:
    assert ud.simulate("fedbn", linear(), unequal(), **SETTINGS, **given).config["options"]["weighting"] == "uniform"


def test_runs_of_version_one_have_the_weights_of_the_paper(tmp_path: Path) -> None:
    """They stored None; a comparison goes on with them only if it asks for the same weights."""
    ud.compare(["fedbn"], linear(), unequal(), out=tmp_path, weighting="paper", **SETTINGS)
    directory = RunDirectory.open(tmp_path / "fedbn/seed-0")
    old = directory.config | {"options": directory.config["options"] | {"weighting": None}}
    for key in [key for key in old if "checksum" in key]:
        del old[key]
    home = tmp_path / "old/fedbn/seed-0"
    with RunDirectory.create(home, old, directory.environment):
        pass
    record = ud.Comparison.from_directories([_trained(home)]).records[0]
    assert record.config["options"]["weighting"] == "uniform"
    with pytest.raises(ValueError, match="was begun with weighting='uniform', not 'samples'"):
        ud.compare(["fedbn"], linear(), unequal(), out=tmp_path / "old", **SETTINGS)
    ud.compare(["fedbn"], linear(), unequal(), out=tmp_path / "old", weighting="paper", **SETTINGS)


def _trained(home: Path) -> Path:
    ud.resume(home, model=linear(), data=unequal())
    return home


def test_a_comparison_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        "[compare]\nseeds = 2\n[compare.algorithms]\nBase = 'fedavg'\nAdam = 'fedadam(server_lr=0.05, lr=0.3)'\n"
        "[data]\nclients = 10\n[model]\nname = 'softmax'\n[local]\nlr = 0.1\n[run]\nrounds = 1\ncohort = 2\n"
    )
    out = tmp_path / "x"
    result = CliRunner().invoke(app, ["compare", str(tmp_path / "c.toml"), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["table"]
    assert [(row["label"], row["runs"], row["lr"], row["server_lr"]) for row in rows] == [
        ("Base", 2, 0.1, 1.0),
        ("Adam", 2, 0.3, 0.05),
    ]
    alone = CliRunner().invoke(app, ["run", str(tmp_path / "c.toml")])
    assert alone.exit_code == 2
    assert "a file with [compare] is for: undrift compare" in alone.stderr
