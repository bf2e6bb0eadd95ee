"""Imported data sets on disk: plain arrays that are memory-mapped.

    ~/.cache/undrift/mnist/          (set the environment variable UNDRIFT_CACHE for another directory)
        train_x.npy, train_y.npy, ...
        manifest.json                shapes, checksums, where the data came from

A data set is written to a temporary directory and renamed when it is complete, so that an incomplete one is never read.
An older one is moved away first, to a name from which it comes back if the import was killed at that moment.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from undrift.core.files import sha256, sync
from undrift.data.foreign import first_line, read_npy

Array = np.ndarray[Any, Any]
_FORMAT = 1
_ABANDONED = 24 * 3600  # seconds after which an unfinished import is considered dead
_VERIFIED = 1 << 30  # bytes of an array file up to which its checksum is verified before it is used
_NEEDED = {"train_x", "train_y", "test_x", "test_y"}
_POSSIBLE = _NEEDED | {"train_user", "test_user"}


def home() -> Path:
    return Path(os.environ.get("UNDRIFT_CACHE") or Path.home() / ".cache" / "undrift")


class Draft:
    """A data set that is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array on disk, to be filled."""
        self.names.append(name)
        size, free = prod(shape) * np.dtype(dtype).itemsize, shutil.disk_usage(self.path).free
        if size > free:  # a map on a full disk ends the process
            raise ValueError(f"{name} of shape {shape} needs {size:,} bytes, and {self.path.parent} has {free:,} left")
        return np.lib.format.open_memmap(self.path / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)

    def put(self, name: str, values: Array) -> None:
        self.names.append(name)
        np.save(self.path / f"{name}.npy", values, allow_pickle=False)


@contextmanager
def writing(name: str, facts: dict[str, Any]) -> Iterator[Draft]:
    """A draft that becomes the data set `name` when the block succeeds, and is deleted when it fails."""
    home().mkdir(parents=True, exist_ok=True)
    with _locked(name):
        _bring_back(name)
        _remove_leftovers(name)
    path = _temporary(name)
    path.mkdir()
    try:
        draft = Draft(path)
        yield draft
        arrays = {part: _describe(path / f"{part}.npy") for part in draft.names}
        if problem := _problem(arrays):
            raise ValueError(f"{facts.get('source', name)} cannot be imported: {problem}")
        manifest = {"format": _FORMAT, "name": name, **facts, "arrays": arrays}
        (path / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        for file in path.iterdir():
            sync(file)
        with _locked(name):
            _install(path, name)
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Meanwhile, nobody else replaces a data set, or opens its files; the system ends that when a process is killed."""
    lock = FileLock(home() / f".{name}.lock", thread_local=False)
    try:
        lock.acquire()
    except OSError:  # no cache yet, or a read-only one, in which nothing is replaced
        yield
        return
    try:
        yield
    finally:
        lock.release()


def manifest(name: str) -> dict[str, Any] | None:
    """The manifest of a data set; None if it is not in the cache, or was written by an incompatible version."""
    with _locked(name):
        return _read_manifest(name)


def _read_manifest(name: str) -> dict[str, Any] | None:
    _bring_back(name)
    file = home() / name / "manifest.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({first_line(error)}); {_again(name)}") from error
    if isinstance(found, dict) and found.get("format") != _FORMAT:
        return None
    if problem := "it is no table" if not isinstance(found, dict) else _problem(found.get("arrays")):
        raise ValueError(f"{file} is damaged ({problem}); {_again(name)}")
    return dict(found)


def present(name: str) -> bool:
    """Whether a data set is in the cache, as far as its manifest says."""
    try:
        return manifest(name) is not None
    except ValueError:
        return False


def arrays(name: str) -> dict[str, Array]:
    """All arrays of a data set, memory-mapped copy-on-write: the files never change."""
    with _locked(name):
        found = _read_manifest(name)
        assert found is not None
        return {part: _mapped(name, part, facts) for part, facts in found["arrays"].items()}


def intact(name: str) -> bool:
    """Whether a data set is in the cache and all its checksums are right."""
    try:
        with _locked(name):
            found = _read_manifest(name)
            return found is not None and all(
                (file := home() / name / f"{part}.npy").is_file() and sha256(file) == facts["sha256"]
                for part, facts in found["arrays"].items()
            )
    except ValueError:
        return False


def _mapped(name: str, part: str, facts: Mapping[str, Any]) -> Array:
    file = home() / name / f"{part}.npy"
    try:
        state = file.stat()
        if state.st_size <= _VERIFIED:
            known = _sha256_of_state(file, state.st_mtime_ns, state.st_size, state.st_ino)
            if known != facts["sha256"]:
                raise ValueError("its checksum is not that in manifest.json")
        values = read_npy(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is damaged ({first_line(error)}); {_again(name)}") from error
    if list(values.shape) != facts["shape"] or str(values.dtype) != facts["dtype"]:
        raise ValueError(f"{file} is not what manifest.json says; {_again(name)}")
    return values


@lru_cache
def _sha256_of_state(file: Path, *state: int) -> str:
    """The checksum of a file, computed once as long as it is not written."""
    return sha256(file)


def _again(name: str) -> str:
    return f"get it again with: undrift data get {name}"


def _problem(arrays: Any) -> str:
    """What is wrong with the described arrays of a data set; empty if nothing is."""
    if not isinstance(arrays, Mapping) or not _NEEDED <= set(arrays) <= _POSSIBLE:
        return f"it must have {', '.join(sorted(_NEEDED))}"
    for name, facts in arrays.items():
        if not isinstance(facts, Mapping) or not {"shape", "dtype", "sha256"} <= set(facts):
            return f"{name} is not described"
        shape = facts["shape"]
        if not isinstance(shape, list) or not shape or not all(type(n) is int and n > 0 for n in shape):
            return f"{name} has the shape {shape}"
        split = name.partition("_")[0]
        if isinstance(first := arrays[f"{split}_x"], Mapping) and first.get("shape", [0])[:1] != shape[:1]:
            return f"{split}_x and {name} have unequal numbers of rows"
    return ""


def _describe(file: Path) -> dict[str, Any]:
    values = read_npy(file)
    return {"shape": list(values.shape), "dtype": str(values.dtype), "sha256": sha256(file)}


def _install(draft: Path, name: str) -> None:
    """Rename a finished draft. An older data set is moved away first, as directories cannot be replaced, and so is
    that of another import which comes in between."""
    target, moved = home() / name, []
    while True:
        with suppress(FileNotFoundError):
            os.replace(target, old := _temporary(f"{name}.old"))
            moved.append(old)
        try:
            os.replace(draft, target)
            break
        except OSError:
            if not target.exists():
                raise
    for old in moved:
        shutil.rmtree(old, ignore_errors=True)
    sync(target.parent)


def _bring_back(name: str) -> None:
    """Undo an import that was killed after it had moved the older data set away and before it had put its own there."""
    if (home() / name).exists():
        return
    for old in sorted(home().glob(f".{name}.old.*"), key=lambda path: path.stat().st_mtime):
        with suppress(OSError):  # a read-only cache
            os.replace(old, home() / name)


def _temporary(name: str) -> Path:
    return home() / f".{name}.{uuid.uuid4().hex[:8]}"


def _remove_leftovers(name: str) -> None:
    """Delete temporary directories of imports that were killed."""
    for leftover in home().glob(f".{name}.*"):
        with suppress(FileNotFoundError):  # its own import has removed it
            if time.time() - leftover.stat().st_mtime > _ABANDONED:
                shutil.rmtree(leftover, ignore_errors=True)
