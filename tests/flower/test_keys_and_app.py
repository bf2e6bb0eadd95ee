"""Keys and the generated app: complete, readable by those who may read them, and never written over."""

from __future__ import annotations

import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict
from typer.testing import CliRunner

import undrift as ud
from grids import InProcessGrid
from undrift.cli import app as cli
from undrift.flower import keys, messages
from undrift.flower.server import serve


def undrift(*words: str) -> Any:
    return CliRunner().invoke(cli, ["flower", *words])


class TestKeys:
    def test_they_are_what_flower_takes(self, tmp_path: Path) -> None:
        home = keys.make(tmp_path / "keys", 2, ("fl.example.org", "10.0.0.1"))
        authority, server = (
            x509.load_pem_x509_certificate((home / name).read_bytes()) for name in ("ca.crt", "server.pem")
        )
        server.verify_directly_issued_by(authority)
        names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
        assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
        key = load_pem_private_key((home / "server.key").read_bytes(), None)
        assert key.public_key() == server.public_key()
        for number in range(2):
            private = load_ssh_private_key((home / "nodes" / str(number)).read_bytes(), None)
            public = load_ssh_public_key((home / "nodes" / f"{number}.pub").read_bytes())
            assert isinstance(private, ec.EllipticCurvePrivateKey)
            assert private.public_key() == public

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
    def test_private_keys_are_their_owners(self, tmp_path: Path) -> None:
        home = keys.make(tmp_path / "keys", 1)
        private = {"ca.key", "server.key", "0"}
        for path in home.rglob("*"):
            if path.is_file():
                mode = stat.S_IMODE(path.stat().st_mode)
                assert mode & 0o077 == (0 if path.name in private else mode & 0o044), path
        assert stat.S_IMODE(home.stat().st_mode) == 0o700

    def test_the_readme_names_files_that_are_there(self, tmp_path: Path) -> None:
        home = keys.make(tmp_path / "keys")
        words = (home / "README.md").read_text().split()
        named = {word for word in words if word.startswith(str(home)) and "*" not in word and ".db" not in word}
        assert len(named) == 4
        for word in named:
            assert Path(word.strip('"')).exists(), word

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (("--nodes", "0"), "nodes must be at least 1, got 0"),
            (("--host", "a b"), "a host is a name or an address, such as fl.example.org or 10.0.0.1, got 'a b'"),
        ],
    )
    def test_wrong_input_writes_nothing(self, words: tuple[str, ...], line: str, tmp_path: Path) -> None:
        found = undrift("keys", str(tmp_path / "keys"), *words)
        assert found.exit_code == 2
        assert line in found.stderr
        assert not list(tmp_path.iterdir())

    def test_keys_are_never_overwritten(self, tmp_path: Path) -> None:
        assert undrift("keys", str(tmp_path / "keys")).exit_code == 0
        before = (tmp_path / "keys" / "ca.key").read_bytes()
        found = undrift("keys", str(tmp_path / "keys"))
        assert found.exit_code == 2
        assert "keys are never overwritten" in found.stderr
        assert (tmp_path / "keys" / "ca.key").read_bytes() == before


class TestApp:
    def test_it_trains_at_once_with_the_numbers_of_a_simulation(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = ("-a", "scaffold", "-m", "softmax", "--partition", "dirichlet:1", "--clients", "3", "--rounds", "2")
        assert undrift("new", str(tmp_path / "my-app"), *words, "--set", "local.epochs=2").exit_code == 0
        monkeypatch.setattr(messages, "POLL", 0.0)
        monkeypatch.syspath_prepend(str(tmp_path / "my-app"))
        from my_app import client_app, data  # type: ignore[import-not-found]

        project = tomllib.loads((tmp_path / "my-app" / "pyproject.toml").read_text("utf-8"))
        config = flatten_dict(project["tool"]["flwr"]["app"]["config"]) | {"federation.wait": 0}
        assert project["tool"]["flwr"]["app"]["components"]["clientapp"] == "my_app.client_app:app"
        grid = InProcessGrid(client_app.app, 3, config, tmp_path / "clients")
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
        run = serve(grid, config, data.test_samples(context))
        federation = ud.data.load("digits", "dirichlet:1", 3)
        same = ud.simulate("scaffold", "softmax", federation, rounds=2, epochs=2, engine="sequential")
        assert run.history["loss"].tolist() == same.history["loss"].tolist()
        assert run.out == tmp_path / "my-app" / "runs" / "my_app"

    def test_it_is_formatted_and_checked_like_the_library(self, tmp_path: Path) -> None:
        undrift("new", str(tmp_path / "app1"))
        for command in (["check", "--isolated", "--line-length=120"], ["format", "--check", "--line-length=120"]):
            ruff = [sys.executable, "-m", "ruff", *command, "."]
            subprocess.run(ruff, cwd=tmp_path / "app1", check=True, capture_output=True)

    @pytest.mark.parametrize(
        ("name", "words", "line"),
        [
            ("1app", (), "a letter first, got '1app'"),
            ("torch", (), "an app cannot be called 'torch'"),
            ("app1", ("-a", "fedhbn"), "unknown algorithm 'fedhbn'; did you mean"),
            ("app1", ("-m", "lenet55"), "model must be one of"),
            ("app1", ("-d", "digitz"), "digits"),
            (
                "app1",
                ("--partition", "classes:2", "--clients", "2"),
                "2 clients of 2 classes cannot hold all 10 classes",
            ),
            ("app1", ("--set", "local.lrr=1"), "unknown key 'local.lrr'"),
            ("app1", ("--set", "run.cohort=[[0]]"), "run.cohort=[[0]] cannot stand in the configuration"),
            ("app1", ("--set", "data.name=mnist"), "data and model are given by -d, --partition and -m"),
        ],
    )
    def test_wrong_input_writes_nothing(self, name: str, words: tuple[str, ...], line: str, tmp_path: Path) -> None:
        found = undrift("new", str(tmp_path / name), *words)
        assert found.exit_code == 2
        assert line in found.stderr
        assert not list(tmp_path.iterdir())

    def test_only_an_app_is_overwritten_and_other_files_stay(self, tmp_path: Path) -> None:
        home = tmp_path / "app1"
        assert undrift("new", str(home)).exit_code == 0
        (home / "app1" / "data.py").write_text("mine")
        (home / "notes.txt").write_text("mine")
        refused = undrift("new", str(home))
        assert refused.exit_code == 2
        assert "--overwrite replaces the files of an app there" in refused.stderr
        assert (home / "app1" / "data.py").read_text() == "mine"
        assert undrift("new", str(home), "-a", "fedhbm", "--overwrite").exit_code == 0
        assert "Samples" in (home / "app1" / "data.py").read_text()
        assert (home / "notes.txt").read_text() == "mine"
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "file").write_text("")
        assert "holds no Flower app" in undrift("new", str(tmp_path / "other"), "--overwrite").stderr
