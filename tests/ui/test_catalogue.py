"""A folder with finished, broken, running and foreign runs shows what there is, and names what is missing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from folders import CONFIG, append_rows, write_run
from undrift.reporting.record import FAILURE_COLUMNS
from undrift.storage import files
from undrift.storage.directory import RunDirectory
from undrift.ui.catalogue import Catalogue, UnknownRunError
from undrift.ui.jobs import Jobs, RefusedError


def shown(root: Path) -> dict[str, dict[str, Any]]:
    catalogue = Catalogue(root)
    catalogue.refresh()
    return {run["name"]: run for run in catalogue.changes(0)["runs"]}


def test_states_of_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "finished", [0.5] * 10)
    write_run(tmp_path / "deep" / "down" / "stopped", [0.5] * 3)
    append_rows(write_run(tmp_path / "diverged", [0.5]), [None], diverged=True)
    options = CONFIG["options"] | {"target": 0.4}
    write_run(tmp_path / "reached", [0.3, 0.5], options=options)
    found = shown(tmp_path)
    states = {name: (run["status"], run["rounds"]) for name, run in found.items()}
    assert states == {
        "finished": ("finished", 10),
        os.path.join("deep", "down", "stopped"): ("stopped", 3),
        "diverged": ("diverged", 1),
        "reached": ("finished", 2),
    }
    assert found["diverged"]["reason"] == "in round 2"
    assert found["diverged"]["failed"]
    assert found["finished"]["accuracy"] == 0.5
    assert (found["finished"]["data"], found["finished"]["model"]) == ("digits", "softmax")


def test_failures_of_clients_are_named_where_there_were_some(tmp_path: Path) -> None:
    """As in the folder of a run on Flower, whose rounds count every kind of failure."""
    file = write_run(tmp_path / "run", [0.1, 0.2]) / "rounds.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    none = dict.fromkeys(FAILURE_COLUMNS, 0.0) | {"asked": 3.0, "attempts": 1.0}
    counted = [none, none | {"unanswered": 1.0}]
    file.write_text("".join(json.dumps(row | more) + "\n" for row, more in zip(rows, counted, strict=True)))
    titles = {each["name"]: each["title"] for each in shown(tmp_path)["run"]["columns"]}
    assert {name: title for name, title in titles.items() if name in FAILURE_COLUMNS} == {
        "asked": "Clients asked",
        "unanswered": "Clients without an answer",
    }


def test_every_failure_has_a_title() -> None:
    assert all(each.title for each in FAILURE_COLUMNS.values())


def test_what_is_broken_or_missing_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "edited", [0.5])
    config = json.loads((tmp_path / "edited" / "config.json").read_text())
    (tmp_path / "edited" / "config.json").write_text(json.dumps(config | {"label": "Other"}))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text('{"model_type": "bert"}')
    write_run(tmp_path / "garbage", [0.5])
    with (tmp_path / "garbage" / "rounds.jsonl").open("a") as file:
        file.write("garbage\n")
    (write_run(tmp_path / "headless", [0.5]) / "config.json").unlink()
    (write_run(tmp_path / "bare", [0.5]) / "environment.json").unlink()
    (write_run(tmp_path / "empty", []) / "rounds.jsonl").unlink()
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.json")
    found = shown(tmp_path)
    reasons = {name: run["reason"] for name, run in found.items() if run["status"] == "broken"}
    assert reasons == {
        "edited": "config.json is damaged or was edited: its content does not match its checksum",
        "foreign": "it is not a run directory: its config.json is another program's",
        "garbage": "rounds.jsonl is damaged: line 2 is not as it was written",
        "headless": "it is not a run directory: it has no config.json",
        "pipe": "it is not a run directory: it has no config.json",
    }
    assert found["garbage"]["accuracy"] == 0.5
    assert found["bare"]["missing"] == [
        "environment.json is missing",
        "there is no checkpoint, so that it can only start again",
    ]
    assert found["empty"]["missing"] == ["rounds.jsonl is missing"]


def test_changes_are_told_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.5])
    write_run(tmp_path / "b", [0.5])
    catalogue = Catalogue(tmp_path)
    catalogue.refresh()
    before = catalogue.changes(0)
    catalogue.refresh()
    assert catalogue.changes(before["version"])["runs"] == []
    append_rows(tmp_path / "b", [0.6])
    catalogue.refresh()
    after = catalogue.changes(before["version"])
    assert [(run["name"], run["accuracy"]) for run in after["runs"]] == [("b", 0.6)]
    for file in (tmp_path / "b").iterdir():
        file.rmdir() if file.is_dir() else file.unlink()
    catalogue.look_again()
    catalogue.refresh()
    gone = catalogue.changes(after["version"])["gone"]
    assert gone == [after["runs"][0]["id"]]
    with pytest.raises(UnknownRunError):
        catalogue.find(gone[0])


def test_a_large_folder_is_listed_before_it_is_read(tmp_path: Path) -> None:
    for number in range(3):
        write_run(tmp_path / str(number), [0.5, 0.6])
    catalogue = Catalogue(tmp_path)
    catalogue.refresh(budget=0)
    first = catalogue.changes(0)["runs"]
    assert [(run["loading"], run["rounds"], run["accuracy"]) for run in first] == [(True, 2, 0.6)] * 3
    catalogue.refresh()
    assert not any(run["loading"] for run in catalogue.changes(0)["runs"])


def test_hostile_names_are_texts(tmp_path: Path) -> None:
    names = [
        "<img src=x onerror=alert(1)>",
        "\"quotes' & <b>",
        "a\nb",
        "..",
        "x" * 200,
        b"\xff\xfe".decode("utf-8", "surrogateescape"),
    ]
    labels = ["<script>alert(1)</script>", "a\x1b[31m\n\u202ered", "long " * 500]
    for name, label in zip(names, [*labels, *labels], strict=True):
        write_run(tmp_path / f"run{name}", [0.5], label=label)
    found = shown(tmp_path)
    text = json.dumps(list(found.values()), ensure_ascii=False)
    text.encode()  # no halves of characters
    assert text.isprintable()
    assert all(len(run["label"]) <= 300 and len(run["name"]) <= 300 for run in found.values())
    assert all(set(run["id"]) <= set("0123456789abcdef") for run in found.values())


def test_runs_that_differ_in_the_seed_belong_together(tmp_path: Path) -> None:
    for seed in (0, 1):
        data = CONFIG["data"] | {"seed": seed}
        write_run(tmp_path / f"seed-{seed}", [0.5], seed=seed, data=data)
    write_run(tmp_path / "other-rate", [0.5], options=CONFIG["options"] | {"lr": 0.3})
    write_run(tmp_path / "other-label", [0.5], label="Mine")
    found = shown(tmp_path)
    assert found["seed-0"]["group"] == found["seed-1"]["group"]
    assert len({run["group"] for run in found.values()}) == 3


def test_a_run_of_another_program_is_running_and_not_stopped_from_here(tmp_path: Path) -> None:
    home = write_run(tmp_path / "run", [0.5])
    catalogue, jobs = Catalogue(tmp_path), Jobs(tmp_path)
    with RunDirectory.open(home).writing():
        catalogue.refresh()
        run = next(iter(catalogue.runs.values()))
        assert run.summary["status"] == "running"
        assert run.holder is not None
        assert run.holder.pid == os.getpid()
        assert "program or notebook" in run.summary["refusal"]
        with pytest.raises(RefusedError, match="program or notebook"):
            jobs.stop(run)
        with pytest.raises(RefusedError, match="running already"):
            jobs.resume(run, None)
    catalogue.refresh()
    assert run.summary["status"] == "stopped"
    with pytest.raises(RefusedError, match="no process on this machine"):
        jobs.stop(run)


def test_looking_never_takes_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that begins while the page looks would be refused."""
    home = write_run(tmp_path / "run", [0.5])
    monkeypatch.setattr("filelock.FileLock.acquire", lambda *_, **__: pytest.fail("the lock was tried"))
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    Catalogue(tmp_path).refresh()
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


def test_a_run_that_grows_without_a_process_here_is_on_another_machine(tmp_path: Path) -> None:
    home = write_run(tmp_path / "run", [0.5])
    catalogue = Catalogue(tmp_path)
    catalogue.refresh()
    append_rows(home, [0.6])
    catalogue.refresh()
    (run,) = catalogue.changes(0)["runs"]
    assert (run["status"], run["reason"], run["held"]) == ("running", "on another machine", False)


def test_a_large_configuration_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    with (tmp_path / "large" / "config.json").open("wb") as file:
        file.truncate(1 << 40)  # a hole: nothing is written
    assert "another program's" in shown(tmp_path)["large"]["reason"]


def test_old_runs_without_checksums_are_shown(tmp_path: Path) -> None:
    home = write_run(tmp_path / "old", [0.5])
    config = {key: value for key, value in files.read_json(home / "config.json").items() if key != "format"}
    (home / "config.json").write_text(json.dumps(config | {"format": 2}))
    assert shown(tmp_path)["old"]["status"] == "stopped"
