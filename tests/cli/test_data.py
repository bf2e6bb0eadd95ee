"""`undrift data`, as it is typed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hub_files
import undrift as ud
from undrift.cli import app

HINT = 'pip install "undrift[plot]"\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def undrift(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result.output


def test_get_and_show(here: Path) -> None:
    hub_files.write_all("cifar10", here / "files")
    assert "20 × 3 × 32 × 32" in undrift("data", "get", "cifar10", "--from", "files")
    shown = undrift("data", "show", "-d", "cifar10", "--partition", "dirichlet-client:0", "--clients", "10")
    assert "cifar10, dirichlet-client:0: 10 clients share 20 samples" in shown
    assert "Jensen–Shannon distance to the whole" in shown
    assert {path.name for path in here.glob("cifar10-*")} == {
        "cifar10-dirichlet-client-0.png",
        "cifar10-dirichlet-client-0.html",
    }


def test_without_a_command_there_is_help() -> None:
    assert "Usage: undrift data" in undrift("data")


def test_names_as_others_write_them(here: Path) -> None:
    hub_files.write_all("fashion-mnist", here / "files")
    got = json.loads(undrift("data", "get", "fmnist", "--from", "files", "--json"))
    assert got["path"] == str(here / "cache" / "fashion-mnist")
    assert "fashion-mnist, iid: 2 clients" in undrift(
        "data", "show", "-d", "Fashion_MNIST", "--partition", "iid", "--clients", "2"
    )


@pytest.fixture
def plain_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra `plot`."""
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"] + ["matplotlib"]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "undrift.data.picture_png", raising=False)
    monkeypatch.delattr("undrift.data.picture_png", raising=False)


@pytest.mark.usefixtures("plain_installation")
def test_a_page_is_drawn_without_the_extra(here: Path) -> None:
    shown = undrift("data", "show")
    assert shown.endswith("no digits-classes-2.png: matplotlib is not installed; get it with: " + HINT)
    assert [path.name for path in here.glob("digits-*")] == ["digits-classes-2.html"]
    result = CliRunner().invoke(app, ["data", "show", "--out", "x/p.png"])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert result.stderr.endswith(HINT)
    assert not (here / "x").exists()


@pytest.mark.usefixtures("plain_installation")
def test_curves_need_the_extra() -> None:
    run = ud.simulate("fedavg", "softmax", "digits", rounds=1)
    with pytest.raises(ImportError, match=re.escape(HINT.rstrip())):
        run.plot()


def test_json(here: Path) -> None:
    hub_files.write_all("mnist", here / "files")
    got = json.loads(undrift("data", "get", "mnist", "--from", "files", "--json"))
    assert got["arrays"]["test_y"]["shape"] == [20]
    assert got["path"] == str(here / "cache" / "mnist")
    options = ("--partition", "classes:1", "--clients", "10", "--out", "p.png", "--json")
    shown = json.loads(undrift("data", "show", *options))
    assert shown["data"] == "digits"
    assert shown["per_client"]["classes"] == {"min": 1, "mean": 1, "max": 1}
    assert shown["pictures"] == ["p.png"]
    assert not (here / "p.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["get", "mnst"], "unknown data set 'mnst'; did you mean 'mnist'?"),
        (["get", "mnist", "--from", "nowhere"], "'nowhere' is not a directory"),
        (["show", "-d", "mnist"], "get it with: undrift data get mnist, or from files"),
        (["show", "--partition", "dirichlet:-1"], "must be greater than 0, got -1.0"),
        (["show", "--out", "picture.gif"], "is a .png or a .html"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["data", *words])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_files_that_lie_are_one_line_and_exit_code_two(here: Path) -> None:
    hub_files.write_all("mnist", here / "good")
    undrift("data", "get", "mnist", "--from", "good")
    columns = hub_files.table("mnist", "train", 3)
    columns["image"][1] = {"bytes": None, "path": "/etc/passwd"}
    for name in ("train", "test"):
        hub_files.write(here / "bad" / f"{name}.parquet", columns)
    result = CliRunner().invoke(app, ["data", "get", "mnist", "--from", "bad"])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "bad/train.parquet: row 1 of the split 'train' is not a readable image: there is only the" in result.stderr
    assert "20 clients share 20 samples" in undrift(
        "data", "show", "-d", "mnist", "--partition", "iid", "--clients", "20"
    )
    (here / "cache" / "mnist" / "train_y.npy").write_bytes(b"no array")
    result = CliRunner().invoke(app, ["data", "show", "-d", "mnist", "--partition", "iid"])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "train_y.npy is damaged (its checksum is not that in manifest.json); get it again with:" in result.stderr
