"""Code of users on the command line: models, data and algorithms in files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app
from undrift.cli.own_code import _executed

Undrift = Callable[..., Result]

CODE = """
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

import undrift as ud
from undrift import tree
from undrift.correction import Correction

open("executed", "a").write("x")


class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes))

    def forward(self, x):
        return self.layers(x)


def of_classes(classes, width=4):
    return nn.Sequential(nn.Linear(6, width), nn.Linear(width, classes))


def plain(width=4):
    return nn.Linear(6, 3)


instance = nn.Linear(6, 3)


def picky(width):
    return nn.Linear(6, 3)


def broken():
    return nn.Linear(6, "three")


number = 3


def load(seed):
    draw = torch.Generator().manual_seed(seed)
    return {name: (torch.randn(8, 6, generator=draw), torch.arange(8) % 3) for name in ("Ulm", "Bonn")}


def nothing():
    return None


@dataclass(frozen=True)
class Mine(ud.Algorithm):
    mu: float = 0.1

    def corrections(self, setting):
        return (Pull(self.mu),)


@dataclass(frozen=True)
class Pull(Correction):
    mu: float

    def step(self, grad, client, at):
        return tree.add(grad, tree.sub(at.params, at.anchor), self.mu), client


class FedAvg(ud.Algorithm):
    pass
"""


@pytest.fixture
def undrift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Undrift:
    """Runs a command in a directory with the file own.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own.py").write_text(CODE, encoding="utf-8")
    _executed.cache_clear()
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args], prog_name="undrift")


def refused(result: Result, message: str) -> None:
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert message in result.stderr, result.stderr


QUICK = ("--rounds", "2", "--set", "local.lr=0.1", "--set", "run.cohort=1.0")
OWN = ("-d", "own.py:load", "-m", "own.py:Net", "-a", "own.py:Mine(mu=0.3)")


def executions() -> int:
    return len(Path("executed").read_text()) if Path("executed").exists() else 0


def losses(out: str) -> list[float]:
    return [json.loads(line)["train_loss"] for line in Path(out, "rounds.jsonl").read_text().splitlines()]


def test_a_run_of_own_code_is_resumed_with_the_same_options(undrift: Undrift) -> None:
    first = undrift("run", *OWN, *QUICK, "--json")
    assert first.exit_code == 0, first.stderr
    assert executions() == 1, "the file is run once"
    figures = json.loads(first.stdout)
    assert figures["label"] == "Mine(mu=0.3)"
    assert figures["out"] == "runs/mine-own-1"
    config = json.loads(Path(figures["out"], "config.json").read_text())
    assert (config["model"], config["data"]["name"]) == ("own.py:Net", "own.py:load")

    whole = undrift("run", *OWN, *QUICK, "--rounds", "4", "--json")
    code = [word.removesuffix("(mu=0.3)") for word in OWN]
    resumed = undrift("resume", figures["out"], "--rounds", "4", *code, "--json")
    assert resumed.exit_code == 0, resumed.stderr
    assert losses(json.loads(resumed.stdout)["out"]) == losses(json.loads(whole.stdout)["out"])


def test_the_hint_after_an_interruption_names_the_code(undrift: Undrift, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt("interrupted after round 3; resume with: undrift resume x")

    monkeypatch.setattr("undrift.cli.run.train", interrupted)
    told = undrift("run", *OWN, *QUICK, "--out", "x").stderr
    assert told.endswith("resume with: undrift resume x -a own.py:Mine -d own.py:load -m own.py:Net\n")
    assert undrift("run", "-a", "fedavg", *QUICK, "--out", "x").stderr.endswith("undrift resume x\n")


class TestARunBegunInPython:
    """`undrift resume` takes code for the objects; weights come from the run directory."""

    @staticmethod
    def begin(out: str, rounds: int, *tested: str) -> None:
        own = _executed(Path("own.py").resolve(), "own.py")
        torch.manual_seed(7)  # other weights than those of the command
        clients = own.load(0)
        test = clients[tested[0]] if tested else None
        ud.simulate("fedavg", own.Net((6,), 3), clients, test, rounds=rounds, cohort=1.0, lr=0.1, out=out)

    def test_is_resumed_with_code(self, undrift: Undrift) -> None:
        self.begin("x", 2)
        self.begin("whole", 4)
        resumed = undrift("resume", "x", "--rounds", "4", "-m", "own.py:Net", "-d", "own.py:load")
        assert resumed.exit_code == 0, resumed.stderr
        assert "on own data" in resumed.stdout
        assert losses("x") == losses("whole")

    def test_named_data_need_no_code(self, undrift: Undrift) -> None:
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        ud.simulate("fedavg", model, "digits", rounds=1, out="x")
        code = "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))"
        Path("flat.py").write_text(code, encoding="utf-8")
        assert undrift("resume", "x", "--rounds", "2", "-m", "flat.py:net").exit_code == 0
        refused(undrift("resume", "x", "--rounds", "3", "-m", "own.py:Net"), "the given model is not the one this run")
        message = "-d own.py:load does not belong to this run: its data is 'digits'; leave -d out"
        refused(undrift("resume", "x", "--rounds", "3", "-m", "flat.py:net", "-d", "own.py:load"), message)

    def test_what_is_missing_is_said(self, undrift: Undrift) -> None:
        self.begin("x", 1)
        begun = "this run was begun in Python with objects for "
        how = "name code that makes them: -m FILE.py:NAME -d FILE.py:NAME"
        refused(undrift("resume", "x"), f"{begun}model and data; {how}")
        refused(undrift("resume", "x", "-m", "own.py:Net"), f"{begun}data; {how}")
        self.begin("y", 1, "Ulm")
        how = "continue it there: ud.resume('y', model=model, data=data, test=test)"
        refused(undrift("resume", "y", "-m", "own.py:Net", "-d", "own.py:load"), f"{begun}test; {how}")
        refused(undrift("resume", "x", "-m", "own.py:instance", "-d", "own.py:load"), "the given model is not the one")

    def test_the_hint_after_an_interruption_names_the_code(
        self, undrift: Undrift, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*args: Any) -> None:
            raise KeyboardInterrupt("interrupted after round 3; resume with: ud.resume('x', model=model, data=data)")

        self.begin("x", 1)
        monkeypatch.setattr("undrift.cli.resume.train", interrupted)
        told = undrift("resume", "x", "-m", "own.py:Net", "-d", "own.py:load").stderr
        assert told.endswith("after round 3; resume with: undrift resume x -d own.py:load -m own.py:Net\n")


@pytest.mark.parametrize("model", ["of_classes", "plain", "instance"])
def test_models_may_be_made_in_many_ways(undrift: Undrift, model: str) -> None:
    assert undrift("run", "-a", "fedavg", "-d", "own.py:load", "-m", f"own.py:{model}", *QUICK).exit_code == 0


def test_compare(undrift: Undrift) -> None:
    result = undrift("compare", "-a", "fedavg,own.py:Mine", "-d", "own.py:load", "-m", "own.py:Net", *QUICK, "--json")
    assert result.exit_code == 0, result.stderr
    assert [row["label"] for row in json.loads(result.stdout)["table"]] == ["FedAvg", "Mine"]


def test_a_stored_run_executes_nothing(undrift: Undrift) -> None:
    """A run directory may be a stranger's: only the command itself may name code."""
    out = json.loads(undrift("run", *OWN, *QUICK, "--json").stdout)["out"]
    before = executions()
    _executed.cache_clear()
    for registry in ("undrift.models._OWN", "undrift.data.datasets._OWN", "undrift.algorithms._OWN"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(registry, {})
            refused(undrift("resume", out, "--rounds", "4"), "add -")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("undrift.models._OWN", {})
        message = "the model 'own.py:Net' is code, which is only run if the command itself names it; add -m own.py:Net"
        refused(undrift("resume", out, "--rounds", "4"), message)
        Path("stored.toml").write_text('algorithm = "fedavg"\n[data]\nname = "digits"\n[model]\nname = "own.py:Net"\n')
        refused(undrift("run", "stored.toml"), message)
    assert undrift("report", out).exit_code == 0
    assert undrift("export", out, "m.safetensors").exit_code == 0
    assert executions() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-m", "none.py:Net"), "there is no file 'none.py'"),
        (("-m", "own.py:Nett"), "own.py has no model 'Nett'; did you mean 'Net'?"),
        (("-m", "own.py:number"), "own.py:number must be a module, or a class or function that makes one, got 3"),
        (
            ("-m", "own.py:picky"),
            "own.py:picky: TypeError: it must take (shape, classes) or nothing, but",
        ),
        (("-m", "own.py:broken"), "own.py:broken: TypeError: "),
        (("-m", "own.py:load"), "own.py:load: "),
        (("-d", "own.py:nothing", "-m", "mlp"), "own.py:nothing must give a FederatedData, or a list or dict"),
        (("-d", "own.py:load"), "model is missing; give a torch.nn.Module or a name"),
        (("-d", "own.py:load", "-m", "mlp", "--clients", "3"), "clients=3 is for named data sets"),
        (("-a", "own.py:Net"), "own.py:Net must be a subclass of undrift.Algorithm"),
        (("-a", "own.py:FedAvg"), "there is an algorithm 'fedavg' already; give FedAvg another name"),
        (("-a", "own.py:Mine(nu=1)"), "Mine has no option 'nu'"),
        (("-m", "bad.py:Net"), "bad.py: ZeroDivisionError: division by zero (line 2 of bad.py)"),
        (("-m", "syntax.py:Net"), "syntax.py: SyntaxError: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(undrift: Undrift, options: tuple[str, ...], message: str) -> None:
    Path("bad.py").write_text("import sys\n1 / 0\n", encoding="utf-8")
    Path("syntax.py").write_text("def f(:\n", encoding="utf-8")
    given = options if "-a" in options else (*options, "-a", "fedavg")
    refused(undrift("run", *given, *QUICK), message)
    assert not Path("runs").exists()


def test_resume_takes_code_only(undrift: Undrift) -> None:
    refused(undrift("resume", "runs/x", "-m", "mlp"), "-m names code that the run was started with, as in net.py:Net")


def test_own_data_is_shown_like_a_named_set(undrift: Undrift) -> None:
    shown = undrift("data", "show", "-d", "own.py:load")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.startswith("own.py:load: 2 clients share 16 samples\n")
    assert "Ulm" in Path("own.html").read_text(encoding="utf-8"), "the picture is named after the file"
    figures = json.loads(undrift("data", "show", "-d", "own.py:load", "--out", "x.html", "--json").stdout)
    assert (figures["data"], figures["partition"], figures["pictures"]) == ("own.py:load", None, ["x.html"])
    message = "partition='iid' is for named data sets; own.py:load says itself who has what"
    refused(undrift("data", "show", "-d", "own.py:load", "--partition", "iid"), message)
    refused(undrift("data", "show", "-d", "own.py:lod"), "own.py has no data 'lod'; did you mean 'load'?")
