"""Folders that something has damaged, as the live page sees them: one bad run never hides the others."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from folders import CONFIG, append_rows, write_run
from mutations import mutated
from undrift.storage import files
from undrift.ui.catalogue import Catalogue, plain_config
from undrift.ui.curves import curve_of

VALUES: list[Any] = [None, True, -1, 10**400, 1e308, "", "<b>", "\ud800", [], {}, {"name": 7}, [[[]]], "x" * 10_000]


def look(root: Path) -> dict[str, dict[str, Any]]:
    """Everything the page asks for, as the JSON that it gets."""
    catalogue = Catalogue(root)
    catalogue.refresh(0)
    json.dumps(catalogue.changes(0), allow_nan=False).encode()
    catalogue.refresh()
    for run in catalogue.runs.values():
        for column in (*run.history.names(), "accuracy"):
            json.dumps(curve_of([run.history, run.history], column), allow_nan=False)
        json.dumps(plain_config(run), allow_nan=False).encode()
    found = json.loads(json.dumps(catalogue.changes(0), allow_nan=False))["runs"]
    return {run["name"]: run for run in found}


@pytest.mark.attack(short=15, long=1000)
def test_damaged_files(rng: Random, tmp_path: Path) -> None:
    write_run(tmp_path / "good", [0.1, 0.2])
    home = write_run(tmp_path / "bad", [0.1, None, 0.3, 0.4])
    path = home / rng.choice(["rounds.jsonl", "rounds.jsonl", "config.json"])
    pieces = (b"\n", b"{}", b"NaN", b"1e999", b"9" * 400, b"null", b'"', b"\x00", b"[" * 2000, b"\xff")
    path.write_bytes(mutated(rng, path.read_bytes(), pieces))
    found = look(tmp_path)
    assert found["good"]["accuracy"] == 0.2
    assert found["bad"]["status"] in ("broken", "stopped")
    append_rows(home, [0.5])
    assert look(tmp_path)["good"]["rounds"] == 2


@pytest.mark.attack(short=10, long=500)
def test_odd_configurations_with_a_checksum(rng: Random, tmp_path: Path) -> None:
    write_run(tmp_path / "good", [0.1, 0.2])
    home = write_run(tmp_path / "bad", [0.1])
    config: dict[str, Any] = CONFIG | {"options": dict(CONFIG["options"]), "data": dict(CONFIG["data"])}
    for _ in range(rng.randrange(1, 4)):
        part = rng.choice([config, config["options"], config["data"]])
        if isinstance(part, dict):
            part[rng.choice([*part, "new"])] = rng.choice(VALUES)
    files.write_json(home / "config.json", config)
    found = look(tmp_path)
    assert found["good"]["accuracy"] == 0.2
    assert "bad" in found
