"""Run directories that something has damaged.

Whatever it is, `resume` and `compare` refuse in one line and leave every byte as it is, or they give the bits of a run
that nobody damaged; reading refuses in one line or shows the rounds as they were recorded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest
import torch
from torch.testing import assert_close

import undrift as ud
from laws import classified, mlp
from undrift.reporting.record import TIMES
from undrift.storage.lock import LOCK

ALGORITHMS = ("fedavg", "scaffold", "fedvarp")  # stateless, with states of clients, with a ledger
SETTINGS: dict[str, Any] = {"rounds": 6, "cohort": 2, "batch_size": 4, "lr": 0.1, "engine": "batched"}
SETTINGS |= {"weighting": "samples"}  # as comparisons have it
OBJECTS: dict[str, Any] = {"model": mlp(), "data": classified(), "test": classified((20,))[0]}
MADE = ("killed", "early", "finished", "older")  # with rows after its checkpoint; before its first one; of format 2


class _Stop(Exception):  # noqa: N818
    pass


@pytest.fixture(scope="module", params=ALGORITHMS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ud.Comparison]:
    """Directories of one run in several conditions, and the comparison that it is all of."""
    home, algorithm = tmp_path_factory.mktemp("made"), request.param

    def interrupt(row: dict[str, Any], run: ud.Run) -> None:
        if row["round"] in (2, 4):
            run.save()
        if row["round"] == 5:
            raise _Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ud.Run, "save_if_due", lambda self: None)
        for name in ("killed", "early"):
            with pytest.raises(_Stop):
                ud.compare([algorithm], **OBJECTS, out=home / name, callbacks=[interrupt], **SETTINGS)
        shutil.rmtree(next((home / "early").rglob("checkpoints")))
        whole = ud.compare([algorithm], **OBJECTS, out=home / "finished", **SETTINGS)
        shutil.copytree(home / "killed", home / "older")
        _as_format_2(next((home / "older").rglob("config.json")).parent)
    return home, whole


def _as_format_2(run: Path) -> None:
    """As undrift wrote it before files carried checksums."""
    for name in ("config.json", "environment.json"):
        content = json.loads((run / name).read_text())
        for key in ("format", "checksum", "group"):
            content.pop(key, None)
        (run / name).write_text(json.dumps(content, indent=2) + "\n")
    for manifest in run.glob("checkpoints/*/manifest.json"):
        content = json.loads(manifest.read_text())
        old = {"format": 2, "round": content["round"], "sha256": content["states"]}
        manifest.write_text(json.dumps(old, indent=2) + "\n")


def content(home: Path) -> dict[str, bytes | None]:
    """All there is, but for the lock, which has no content that counts."""
    found = sorted(path for path in home.rglob("*") if path.name != LOCK)
    return {str(path.relative_to(home)): path.read_bytes() if path.is_file() else None for path in found}


@contextmanager
def refused_or_equal(home: Path) -> Iterator[None]:
    """A refusal is one line that names the directory, and nothing has changed."""
    before = content(home)
    refusal = ""
    try:
        yield
    except ValueError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
        assert str(home) in refusal
        assert content(home) == before


# Damages: functions of the run directory


def _files(run: Path, rng: Random) -> Path:
    return rng.choice(sorted(path for path in run.rglob("*") if path.is_file() and path.name != LOCK))


def flip(run: Path, rng: Random) -> None:
    path = _files(run, rng)
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 3))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def truncate(run: Path, rng: Random) -> None:
    path = _files(run, rng)
    path.write_bytes(path.read_bytes()[: rng.choice((0, rng.randrange(path.stat().st_size)))])


def lengthen(run: Path, rng: Random) -> None:
    path = _files(run, rng)
    path.write_bytes(path.read_bytes() + rng.choice((b"\n", b"x", b"{}\n", b"\0" * 100, rng.randbytes(50))))


def overwrite(run: Path, rng: Random) -> None:
    junk = (b"", b"null", b"[]", b"{}", b"[" * 100_000, b"\xff\xfe", b'{"round": 1}\n', b'{"format": 3}', b"1e999999")
    _files(run, rng).write_bytes(rng.choice(junk))


def delete(run: Path, rng: Random) -> None:
    victim = rng.choice(sorted(path for path in run.rglob("*") if path.name != LOCK))
    shutil.rmtree(victim) if victim.is_dir() else victim.unlink()


def replace_by_folder(run: Path, rng: Random) -> None:
    path = _files(run, rng)
    path.unlink()
    path.mkdir()
    if rng.random() < 0.5:
        (path / "inside").write_text("x")


def replace_by_link(run: Path, rng: Random) -> None:
    path = _files(run, rng)
    other = rng.choice((path.name, "nowhere", "/dev/null", str(_files(run, rng))))
    path.unlink()
    path.symlink_to(other)


def swap_files(run: Path, rng: Random) -> None:
    one, other = _files(run, rng), _files(run, rng)
    a, b = one.read_bytes(), other.read_bytes()
    one.write_bytes(b)
    other.write_bytes(a)


def lines(run: Path, rng: Random) -> None:
    log = run / "rounds.jsonl"
    rows = log.read_bytes().splitlines(keepends=True)
    number = rng.randrange(len(rows))
    kind = rng.choice(("lost", "doubled", "swapped", "garbled", "shifted", "repeated", "blank", "cut"))
    if kind == "lost":
        del rows[number]
    elif kind == "doubled":
        rows.insert(number, rows[number])
    elif kind == "swapped":
        other = rng.randrange(len(rows))
        rows[number], rows[other] = rows[other], rows[number]
    elif kind == "garbled":
        rows[number] = bytes(rng.sample(rows[number], len(rows[number])))
    elif kind == "shifted":
        rows = [json.dumps(json.loads(row) | {"round": n + 2}).encode() + b"\n" for n, row in enumerate(rows)]
    elif kind == "repeated":
        rows += rows[number:]
    elif kind == "blank":
        rows.insert(number, b"\n")
    else:
        rows[-1] = rows[-1][: rng.randrange(len(rows[-1]))]
    log.write_bytes(b"".join(rows))


_VALUES: tuple[Any, ...] = (None, 0, 1, -1, 0.5, 2**70, "x", "", True, [], {}, [[]], {"x": 1}, "000002", 1e308)


def edit_row(run: Path, rng: Random) -> None:
    log = run / "rounds.jsonl"
    rows = [json.loads(row) for row in log.read_text().splitlines()]
    _edit(rng.choice(rows), rng)
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))


def edit_json(run: Path, rng: Random) -> None:
    path = rng.choice(sorted(run.rglob("*.json")))
    content = json.loads(path.read_text())
    for _ in range(rng.choice((1, 1, 2))):
        _edit(content, rng)
    path.write_text(json.dumps(content, indent=2) + "\n")


def _edit(content: dict[str, Any], rng: Random) -> None:
    """Change, remove, add or rename a value, however deep."""
    while nested := [value for value in content.values() if isinstance(value, dict) and value]:
        if rng.random() < 0.4:
            break
        content = rng.choice(nested)
    key = rng.choice(sorted(content))
    kind = rng.choice(("change", "change", "nudge", "remove", "rename", "add"))
    if kind == "change":
        content[key] = rng.choice(_VALUES)
    elif kind == "nudge" and isinstance(content[key], int | float):
        content[key] += rng.choice((1, -1, 1e-9))
    elif kind == "rename":
        content[key + "x"] = content.pop(key)
    elif kind == "add":
        content["new"] = rng.choice(_VALUES)
    else:
        del content[key]


def stray(run: Path, rng: Random) -> None:
    home = rng.choice([run, *(path for path in run.rglob("*") if path.is_dir())])
    like_ours = ("000003", "999999", "0000099", "000000", ".000009", "state-1.safetensors", ".manifest.json.new")
    others = ("notes.txt", ".DS_Store", "٠٠٠٠٠٧", "\udcff\udcfe", "state-x.safetensors", "-1", "000002.old")
    path = home / rng.choice((*like_ours, *others))
    if path.exists():
        return
    kind = rng.choice(("file", "folder", "copy", "link"))
    checkpoints = sorted(run.glob("checkpoints/*"))
    if kind == "folder":
        path.mkdir()
    elif kind == "copy" and checkpoints:
        shutil.copytree(rng.choice(checkpoints), path)
    elif kind == "link":
        path.symlink_to(rng.choice([".", "nowhere", *(each.name for each in checkpoints)]))
    else:
        path.write_bytes(rng.randbytes(20))


def rename_checkpoint(run: Path, rng: Random) -> None:
    for path in rng.sample(found := sorted(run.glob("checkpoints/*")), min(1, len(found))):
        path.rename(path.with_name(rng.choice(("000001", "000003", "000005", "000009", "4", "x"))))


DAMAGES: tuple[Callable[[Path, Random], None], ...] = (
    flip,
    truncate,
    lengthen,
    overwrite,
    delete,
    replace_by_folder,
    replace_by_link,
    swap_files,
    lines,
    edit_row,
    edit_json,
    edit_json,
    stray,
    rename_checkpoint,
)


@pytest.mark.attack(short=6, long=250)
def test_damage(rng: Random, made: tuple[Path, ud.Comparison], tmp_path: Path) -> None:
    templates, whole = made
    condition = rng.choice(MADE)
    home = tmp_path / "out"
    shutil.copytree(templates / condition, home)
    run = next(home.rglob("config.json")).parent
    # What had no checksum can be edited into another run of another result; damage to bytes of states is noticed.
    damages = rng.sample(DAMAGES, rng.choice((1, 1, 1, 2)))
    for damage in damages:
        if condition == "older" and damage in (flip, overwrite, swap_files, edit_row, edit_json):
            continue
        with suppress(
            OSError, ValueError, IndexError, AttributeError
        ):  # the first damage may leave nothing for the second
            damage(run, rng)
    with refused_or_equal(home):
        shown = ud.Comparison.from_directories([home]).records[0].history
        if condition in ("killed", "finished") and len(damages) == 1:
            assert_recorded(shown, whole)
    with refused_or_equal(home):
        if rng.random() < 0.7:
            resumed = ud.resume(run, **OBJECTS)
            assert_equal(resumed.history, whole)
            assert_close(resumed.parameters, parameters()[whole.records[0].label], rtol=0, atol=0)
        else:
            again = ud.compare([str(whole.records[0].config["algorithm"]["name"])], **OBJECTS, out=home, **SETTINGS)
            assert_equal(again.records[0].history, whole)
        # What was continued is whole again.
        assert_equal(ud.Comparison.from_directories([run]).records[0].history, whole)
        assert_equal(ud.resume(run, **OBJECTS).history, whole)


@cache
def parameters() -> dict[str, dict[str, torch.Tensor]]:
    runs = (ud.simulate(algorithm, **OBJECTS, **SETTINGS) for algorithm in ALGORITHMS)
    return {run.label: run.parameters for run in runs}


def assert_equal(history: pd.DataFrame, whole: ud.Comparison) -> None:
    expected = whole.records[0].history.drop(columns=TIMES)
    pd.testing.assert_frame_equal(history.drop(columns=TIMES), expected, check_exact=True)


def assert_recorded(history: pd.DataFrame, whole: ud.Comparison) -> None:
    """The rounds up to the last checkpoint are as they were; the rows after it have no checksum yet."""
    expected = whole.records[0].history.drop(columns=TIMES)
    covered = min(len(history), 4)
    pd.testing.assert_frame_equal(history.drop(columns=TIMES).head(covered), expected.head(covered), check_exact=True)
