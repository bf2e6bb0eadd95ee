"""A package that brings its own algorithm, installed as a user would install it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "undrift-friend"

PROGRAM = """
import torch, undrift as ud
from typer.testing import CliRunner
from undrift.cli import app
from undrift_friend import FedFriend

torch.manual_seed(0)
data = [(torch.randn(8, 3), torch.randint(2, (8,))) for _ in range(3)]
model = torch.nn.Linear(3, 2)
given = {"rounds": 3, "steps": 4, "lr": 0.5}  # with one step of everybody, the pulls of the clients cancel
named = ud.simulate("fedfriend", model, data, **given)
made = ud.simulate(FedFriend(mu=0.1), model, data, engine="sequential", **given)
assert all(torch.allclose(v, made.parameters[k], atol=1e-6) for k, v in named.parameters.items())
neutral, plain = ud.simulate(FedFriend(mu=0.0), model, data, **given), ud.simulate("fedavg", model, data, **given)
assert all(torch.equal(v, plain.parameters[k]) for k, v in neutral.parameters.items())
assert any(not torch.allclose(v, plain.parameters[k], atol=1e-4) for k, v in named.parameters.items())
page = CliRunner().invoke(app, ["explain", "fedfriend"]).stdout
assert "Clients stay near their own last model" in page
assert "mu" in page
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(home)]
    subprocess.run([*pip, *options, str(EXAMPLE)], check=True, capture_output=True)
    return os.environ | {"PYTHONPATH": str(home)}


def test_it_is_known_by_name_explained_and_obeys_its_neutral_element(environment: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True)


def test_it_is_listed(environment: dict[str, str]) -> None:
    undrift = [sys.executable, "-m", "undrift"]
    listed = subprocess.run(
        [*undrift, "list", "algorithms"], env=environment, capture_output=True, text=True, check=True
    )
    assert "fedfriend" in listed.stdout
