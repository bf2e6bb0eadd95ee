"""A full disk or a read-only folder ends a run in one line; its last checkpoint stays, and it goes on from there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.testing import assert_close
from typer.testing import CliRunner

import undrift as ud
from laws import classified, mlp
from undrift.cli import app
from undrift.core.files import StorageError
from undrift.reporting.record import TIMES
from undrift.storage import checkpoint

pytestmark = pytest.mark.usefixtures("networks_are_tried_once")
RUN = ("run", "-a", "scaffold", "-m", "softmax", "--clients", "10", "--rounds", "4", "--set", "run.cohort=2")
PLACES: dict[str, tuple[str, ...]] = {"local": (), "messages": ("--set", "run.faults=dropout=0.0")}
SETTINGS: dict[str, Any] = {"rounds": 6, "cohort": 2, "batch_size": 4, "lr": 0.1}


def undrift(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="undrift")


def full_after(count: int) -> Callable[..., None]:
    """Writes so many files; then the disk is full in the middle of one."""
    left = count

    def write(tensors: dict[str, Any], file: Path) -> None:
        nonlocal left
        left -= 1
        save_file(tensors, file)
        if left < 0:
            os.truncate(file, file.stat().st_size // 2)
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    return write


@pytest.mark.parametrize("place", PLACES)
def test_the_command_line(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, words = tmp_path / "run", (*RUN, *PLACES[place])
    with monkeypatch.context() as full:
        full.setattr(checkpoint, "save_file", full_after(1))
        result = undrift(*words, "--out", out)
    assert result.exit_code == 1
    assert result.stderr.startswith("undrift: error: the checkpoint of round ")
    assert f"cannot be written to {out}/checkpoints: " in result.stderr
    assert result.stderr.endswith(
        f"No space left on device (os error 28); once it can, resume with: undrift resume {out}\n"
    )
    assert result.stderr.count("\n") == 1
    assert os.listdir(out / "checkpoints") == ["000001"]
    assert undrift("resume", out).exit_code == 0
    assert undrift(*words, "--out", tmp_path / "whole").exit_code == 0
    one, other = ud.Comparison.from_directories([out, tmp_path / "whole"]).records
    assert one.history.drop(columns=TIMES).equals(other.history.drop(columns=TIMES))
    models = [load(tmp_path / name) for name in ("run", "whole")]
    assert_close(*models, rtol=0, atol=0)


def load(out: Path) -> dict[str, Any]:
    return next(iter(checkpoint.read(out / "checkpoints/000004").parts()))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("file", ["rounds.jsonl", "details.jsonl"])
def test_rows_that_cannot_be_written(file: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    objects: dict[str, Any] = {"model": mlp(), "data": classified(), "test": classified((20,))[0]}
    settings: dict[str, Any] = {"metrics": ["confusion"]} | SETTINGS

    def fill(row: dict[str, Any], run: ud.Run) -> None:
        if row["round"] == 3:
            run.save()
            (out / file).rename(tmp_path / "aside")
            (out / file).symlink_to("/dev/full")

    with pytest.raises(StorageError, match=rf"{out}/{file} cannot be written: No space left on device; once") as caught:
        ud.simulate("scaffold", **objects, out=out, callbacks=[fill], **settings)
    assert "once it can, resume with: ud.resume(" in str(caught.value)
    (tmp_path / "aside").replace(out / file)
    resumed, whole = ud.resume(out, **objects), ud.simulate("scaffold", **objects, **settings)
    assert_close(resumed.parameters, whole.parameters, rtol=0, atol=0)
    assert resumed.history.drop(columns=TIMES).equals(whole.history.drop(columns=TIMES))


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any, *args: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    result = undrift(*RUN, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert result.stderr == f"undrift: error: {tmp_path / 'run'} cannot be written: Read-only file system\n"


def test_a_report_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is complete, and stays."""

    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", refuse)
        result = undrift(*RUN, "--out", tmp_path / "run")
    assert result.exit_code == 1
    path = tmp_path / "run" / "report.html"
    assert result.stderr == f"undrift: error: the report cannot be written to {path}: No space left on device\n"
    assert undrift("report", tmp_path / "run").exit_code == 0
