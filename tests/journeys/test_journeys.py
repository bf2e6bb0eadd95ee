"""The first hour of new users, to a right result: a comparison for a paper, a choice for five sites, a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app

ROOT = Path(__file__).parents[2]


def undrift(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, prog_name="undrift")
    assert result.exit_code == 0, result.output
    return result.output


def test_a_comparison_for_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    settings = ["-d", "digits", "-m", "mlp", "--seeds", "2", "--rounds", "30", "--out", "paper"]
    said = " ".join(undrift("compare", "-a", "fedavg,fedhbm,fedbn", *settings).split())
    assert "FedHBM ended highest of 3 methods" in said
    page = Path("paper/report.html").read_bytes()
    table = ud.Comparison.from_directories(["paper"]).table().set_index("label")
    assert list(table.index) == ["FedAvg", "FedHBM", "FedBN"], "in the order given"
    assert set(table["weighting"]) == {"samples"}, "on equal terms"
    final = {str(label): float(value) for label, value in table["accuracy"].items()}
    assert final["FedHBM"] > final["FedAvg"] + 0.05
    assert final["FedBN"] == final["FedAvg"], "without any BatchNorm they are the same"
    undrift("report", "paper")
    assert Path("paper/report.html").read_bytes() == page
    undrift("export", "paper/fedhbm/seed-0", "best.safetensors")
    assert load_file("best.safetensors")


def hospital(rng: np.random.Generator, patients: int, ill: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
    y = (rng.random(patients) < ill).astype("int64")
    x = rng.normal(size=(patients, 6)) + 1.5 * (2 * y - 1)[:, None] * np.array([1, 0.5, 0, 0, 0, 0]) + shift
    return x.astype("float32"), y


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def test_a_choice_for_five_sites(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    facts = {
        "aachen": (120, 0.5, 0.0),
        "bern": (60, 0.2, 0.3),
        "cork": (90, 0.8, -0.3),
        "delft": (40, 0.3, 0.5),
        "evora": (70, 0.5, -0.5),
    }
    data = ud.FederatedData.from_clients({name: hospital(rng, *fact) for name, fact in facts.items()}).hold_out(0.25)
    torch.manual_seed(0)
    comparison = ud.compare(["fedavg", "scaffold", "fedprox(mu=0.1)"], network(), data, seeds=2, rounds=15, lr=0.1)
    table = comparison.table().set_index("label")
    assert {n for record in comparison.records for n in record.history["participants"]} == {5}, "all take part"
    assert table["accuracy"].min() > 0.8
    chosen = {"FedAvg": "fedavg", "SCAFFOLD": "scaffold"}.get(str(table["accuracy"].idxmax()), "fedprox(mu=0.1)")
    run = ud.simulate(chosen, network(), data, rounds=15, lr=0.1, out=tmp_path / "run")
    assert list(run.clients.index) == list(facts)
    assert run.clients["accuracy"].between(0.5, 1).all()
    assert run.fairness["worst_tenth"] <= run.fairness["mean"]
    # Later, a fresh network of the same architecture continues.
    longer = ud.resume(tmp_path / "run", 20, model=network(), data=data)
    assert longer.rounds == 20
    longer.export(tmp_path / "model.safetensors")
    plain = network()
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    x = torch.from_numpy(hospital(rng, 10, 0.5, 0.0)[0])
    assert_close(plain.eval()(x), longer.predict(x))


def test_a_wheel_has_all_that_it_needs(tmp_path: Path) -> None:
    """The package as it would be installed, without the repository around it."""
    pytest.importorskip("hatchling")
    build = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
    wheel = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    path = str(tmp_path / wheel.stdout.split()[-1])
    unpacked = tmp_path / "unpacked"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", path, str(unpacked)], check=True)
    page = ROOT / "src" / "undrift" / "ui" / "static"
    assert {each.name for each in (unpacked / "undrift" / "ui" / "static").iterdir()} == set(os.listdir(page))
    environment = os.environ | {"PYTHONPATH": str(unpacked), "OMP_NUM_THREADS": "1"}
    program = "import undrift.cli, sys; sys.argv[0] = 'undrift'; print(undrift.__file__); undrift.cli.main()"
    command = [sys.executable, "-c", program, "compare", "-a", "fedavg,fedprox", "--rounds", "2", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(unpacked))
    assert (tmp_path / "out" / "report.html").is_file()
