"""Systems other than Linux, as far as they can be imitated here."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path, PureWindowsPath
from typing import Any

import pytest
import torch

import undrift as ud
from laws import classified, mlp
from undrift.core.files import sync
from undrift.core.wide import widest
from undrift.simulation.prepare import find_device
from undrift.storage import arena, memory
from undrift.storage.comparison import folders_of


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories cannot be opened, and only files that are open for writing can be flushed to the disk."""
    real_open, real_fsync = os.open, os.fsync

    def open_file(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if not isinstance(path, int) and os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_open(path, flags, *args, **options)

    def fsync(handle: int) -> None:
        fcntl = pytest.importorskip("fcntl")
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real_fsync(handle)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(shutil, "_use_fd_functions", False, raising=False)  # which open directories
    for name in ("fork", "killpg", "geteuid", "sysconf", "sched_getaffinity", "O_DIRECTORY"):
        monkeypatch.delattr(os, name, raising=False)


@pytest.mark.usefixtures("windows")
def test_a_run_is_saved_and_resumed_on_windows(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "lr": 0.1}
    whole = ud.simulate("scaffold", mlp(), classified(), rounds=4, **settings)
    ud.simulate("scaffold", mlp(), classified(), rounds=2, out=tmp_path / "run", **settings)
    again = ud.resume(tmp_path / "run", 4, model=mlp(), data=classified())
    torch.testing.assert_close(again.parameters, whole.parameters, rtol=0, atol=0)


@pytest.mark.usefixtures("windows")
def test_a_file_is_flushed_on_windows(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    sync(tmp_path / "file")
    sync(tmp_path)
    assert (tmp_path / "file").read_bytes() == b"content"
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "missing")


@pytest.mark.parametrize(("number", "told"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_that_cannot_flush_directories(
    number: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(handle: int) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(os, "fsync", fsync)
    if told:
        with pytest.raises(OSError, match="refused"):
            sync(tmp_path)
    else:
        sync(tmp_path)


def test_folders_have_names_that_windows_allows() -> None:
    labels = ["nul", "NUL.5", "Con", "com1", "console", "a:b?", "FedAvg", "fedavg", "tail. ", "../up", "run-nul"]
    folders = folders_of(labels)
    assert len({folder.lower() for folder in folders.values()}) == len(labels)
    for folder in folders.values():
        assert re.fullmatch(r"[a-z0-9.-]*[a-z0-9]", folder)
        assert folder.split(".")[0] not in ("con", "nul", "com1")
        assert PureWindowsPath(folder).parts == (folder,)
    assert folders["console"] == "console"


# Apple's GPUs


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 8 << 30)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 1 << 30)


@pytest.mark.usefixtures("apple")
def test_an_apple_gpu_is_used_when_asked_for() -> None:
    assert find_device("mps") == torch.device("mps")
    assert find_device(None).type != "mps"
    assert memory.device_left(torch.device("mps")) == 7 << 30
    assert arena.available(torch.device("mps")) == 7 << 28
    assert widest(torch.device("mps")) is torch.float32


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="has one")
def test_an_apple_gpu_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="device='mps' was asked for, but no Apple GPU is available"):
        ud.simulate("fedavg", mlp(), classified(), device="mps")
    with pytest.raises(ValueError, match="device must be 'cpu', 'cuda' or 'mps', got 'tpu'"):
        ud.simulate("fedavg", mlp(), classified(), device="tpu")


@pytest.mark.usefixtures("apple")
def test_float64_is_refused_on_an_apple_gpu() -> None:
    with pytest.raises(ValueError, match="device='mps' has no float64, but dtype='float64' was asked for"):
        ud.simulate("fedavg", mlp(), classified(), device="mps", dtype="float64")
    with pytest.raises(ValueError, match=r"device='mps' has no float64, but the model's '.*weight' is float64"):
        ud.simulate("fedavg", mlp().double(), classified(), device="mps")
