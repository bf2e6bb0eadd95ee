"""A client's own memory survives a kill at any moment, and damage is told."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from undrift.core import tree
from undrift.core.files import StorageError
from undrift.storage import client_disk
from undrift.storage.client_disk import ClientDisk, Kept, Version
from undrift.storage.files import DamageError

OWNER: dict[str, str | int] = {"run": "abc", "client": 3}


def state(value: float) -> dict[str, Any]:
    """With a name that has a slash, an empty branch, a number, an empty tensor, and names out of order."""
    leaves: dict[str, Tensor] = {"b/~.w": torch.full((2, 2), value), "a": torch.tensor(7)}
    return {"z": leaves, "none": {}, "e": torch.zeros(0, 3), "h": torch.tensor([value], dtype=torch.bfloat16)}


def version(round: int, phase: int = 0) -> Version:
    return Version(round, phase, state(round + phase / 8))


def same(a: Kept, b: Kept) -> bool:
    mine, theirs = ([v for v in (k.own, *k.drafts) if v is not None] for k in (a, b))
    return (a.own is None) == (b.own is None) and len(mine) == len(theirs) and all(map(_same, mine, theirs))


def _same(a: Version, b: Version) -> bool:
    left, right = tree.entries(a.state), tree.entries(b.state)
    return (
        a[:2] == b[:2]
        and list(left) == list(right)
        and all(
            x is y if x is None or y is None else x.dtype == y.dtype and torch.equal(x, y)
            for x, y in zip(left.values(), right.values(), strict=True)
        )
    )


def test_what_is_written_is_read_in_order(tmp_path: Path) -> None:
    disk = ClientDisk(tmp_path / "3", OWNER)
    kept = Kept(version(4), (version(5, 0), version(5, 1)))
    with disk.locked():
        assert same(disk.read(), Kept(None))
        disk.write(kept)
    with ClientDisk(tmp_path / "3", OWNER).locked():
        assert same(ClientDisk(tmp_path / "3", OWNER).read(), kept)


def test_a_draft_becomes_kept_without_being_written_again(tmp_path: Path) -> None:
    disk = ClientDisk(tmp_path, OWNER)
    disk.write(Kept(version(4), (version(5, 0), version(5, 1))))
    found = ClientDisk(tmp_path, OWNER)
    memory = found.read()
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("*.safetensors")}
    found.write(Kept(memory.drafts[-1]))
    after = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("*.safetensors")}
    assert len(after) == 1
    assert after.items() <= before.items()
    assert same(ClientDisk(tmp_path, OWNER).read(), Kept(version(5, 1)))


class Killed(BaseException):
    """Instead of a signal: nothing after it is done."""


@pytest.mark.parametrize("torn", [False, True])
def test_a_kill_at_any_moment_leaves_the_memory_before_or_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    old, new = Kept(version(4), (version(5, 0),)), Kept(version(5, 0), (version(6, 0), version(6, 1)))
    outcomes = set()
    for moment in range(100):
        home = tmp_path / str(moment)
        home.mkdir()
        ClientDisk(home, OWNER).write(old)
        left = moment

        def dying(real: Callable[..., Any], writes: bool = False) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    if torn and writes:
                        args[-1].write_bytes(b"half a file")
                    raise Killed
                return real(*args, **options)

            return call

        with monkeypatch.context() as patch:
            for owner, name in ((client_disk, "save_file"), (client_disk, "sync"), (os, "replace"), (os, "fsync")):
                patch.setattr(owner, name, dying(getattr(owner, name), name == "save_file"))
            patch.setattr(Path, "unlink", dying(Path.unlink))
            try:
                ClientDisk(home, OWNER).write(new)
            except Killed:
                finished = False
            else:
                finished = True
        found = ClientDisk(home, OWNER).read()
        assert same(found, old) or same(found, new), moment
        outcomes.add(same(found, new))
        ClientDisk(home, OWNER).write(new)  # and goes on
        assert same(ClientDisk(home, OWNER).read(), new)
        assert len(list(home.glob("*.safetensors"))) == 3
        if finished:
            break
    assert finished
    assert outcomes == {False, True}


@pytest.mark.parametrize("file", ["state", "memory.json"])
def test_a_full_disk_leaves_the_memory_before(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Kept(version(4), (version(5, 0),)), Kept(version(5, 0), (version(6, 0),))
    ClientDisk(tmp_path, OWNER).write(old)
    before = sorted(tmp_path.iterdir())

    def full(*args: Any) -> None:
        if file == "state":
            args[-1].write_bytes(b"half a file")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(*((client_disk, "save_file", full) if file == "state" else (os, "fsync", full)))
        with pytest.raises(StorageError, match=r"cannot be written.*No space left on device") as caught:
            ClientDisk(tmp_path, OWNER).write(new)
    assert "\n" not in str(caught.value)
    assert same(ClientDisk(tmp_path, OWNER).read(), old)
    assert not list(tmp_path.glob(".*.new*"))  # which would take the room that is missing
    if file == "state":
        assert sorted(tmp_path.iterdir()) == before
    ClientDisk(tmp_path, OWNER).write(new)  # there is room again
    assert same(ClientDisk(tmp_path, OWNER).read(), new)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def _damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_damaged_draft_is_left_out_and_a_damaged_state_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ClientDisk(tmp_path, OWNER).write(Kept(version(4), (version(5, 0), version(5, 1))))
    _damage(next(tmp_path.glob("000005-0-*")))
    assert same(ClientDisk(tmp_path, OWNER).read(), Kept(version(4)))
    assert "does not match its checksum; this draft is left out" in caplog.text
    _damage(next(tmp_path.glob("000004-*")))
    with pytest.raises(DamageError, match=r"000004-0-.* is damaged: it does not match its checksum"):
        ClientDisk(tmp_path, OWNER).read()
    (tmp_path / "memory.json").write_text("{")
    with pytest.raises(DamageError, match=r"memory\.json is damaged"):
        ClientDisk(tmp_path, OWNER).read()


def test_a_folder_of_another_client_or_run_is_refused(tmp_path: Path) -> None:
    ClientDisk(tmp_path, OWNER).write(Kept(version(1)))
    with pytest.raises(ValueError, match="belongs to client 3 of run abc, not to client 4 of run abc"):
        ClientDisk(tmp_path, OWNER | {"client": 4}).read()


def test_two_processes_do_not_answer_for_one_client(tmp_path: Path) -> None:
    with (
        ClientDisk(tmp_path, OWNER).locked(),
        pytest.raises(ValueError, match="is in use"),
        ClientDisk(tmp_path, OWNER).locked(),
    ):
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file/3 cannot be written"), ClientDisk(tmp_path / "file" / "3", OWNER).locked():
        pass
