"""Imported data sets on disk: plain arrays that are memory-mapped.

    ~/.cache/undrift/mnist/          (set the environment variable UNDRIFT_CACHE for another directory)
        train_x.npy, train_y.npy, ...
        manifest.json                shapes, checksums, where the data came from

A data set is written to a temporary directory and renamed when it is complete, so that an incomplete one is never read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_FORMAT = 1
_ABANDONED = 24 * 3600  # seconds after which an unfinished import is considered dead


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
        return np.lib.format.open_memmap(self.path / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)

    def put(self, name: str, values: Array) -> None:
        self.names.append(name)
        np.save(self.path / f"{name}.npy", values, allow_pickle=False)


@contextmanager
def writing(name: str, facts: dict[str, Any]) -> Iterator[Draft]:
    """A draft that becomes the data set `name` when the block succeeds, and is deleted when it fails."""
    home().mkdir(parents=True, exist_ok=True)
    _remove_leftovers(name)
    path = _temporary(name)
    path.mkdir()
    try:
        draft = Draft(path)
        yield draft
        arrays = {part: _describe(path / f"{part}.npy") for part in draft.names}
        manifest = {"format": _FORMAT, "name": name, **facts, "arrays": arrays}
        (path / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        for file in path.iterdir():
            _sync(file)
        _install(path, home() / name)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def manifest(name: str) -> dict[str, Any] | None:
    """The manifest of a data set; None if it is not in the cache, or was written by an incompatible version."""
    try:
        found: dict[str, Any] = json.loads((home() / name / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if found.get("format") == _FORMAT else None


def arrays(name: str) -> dict[str, Array]:
    """All arrays of a data set, memory-mapped copy-on-write: the files never change."""
    found = manifest(name)
    assert found is not None
    mapped = {}
    for part, facts in found["arrays"].items():
        file = home() / name / f"{part}.npy"
        try:
            values = np.load(file, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ValueError(f"{file} is damaged ({error}); get it again with: undrift data get {name}") from error
        if list(values.shape) != facts["shape"] or str(values.dtype) != facts["dtype"]:
            raise ValueError(f"{file} is not what was imported; get it again with: undrift data get {name}")
        mapped[part] = values
    return mapped


def intact(name: str) -> bool:
    """Whether a data set is in the cache and all its checksums are right."""
    found = manifest(name)
    return found is not None and all(
        (file := home() / name / f"{part}.npy").is_file() and sha256(file) == facts["sha256"]
        for part, facts in found["arrays"].items()
    )


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _describe(file: Path) -> dict[str, Any]:
    values = np.load(file, mmap_mode="r", allow_pickle=False)
    return {"shape": list(values.shape), "dtype": str(values.dtype), "sha256": sha256(file)}


def _install(draft: Path, target: Path) -> None:
    """Rename a finished draft; an older data set is moved away first, as directories cannot be replaced."""
    old = _temporary(target.name)
    if target.exists():
        os.replace(target, old)
    os.replace(draft, target)
    shutil.rmtree(old, ignore_errors=True)
    _sync(target.parent)


def _temporary(name: str) -> Path:
    return home() / f".{name}.{uuid.uuid4().hex[:8]}"


def _remove_leftovers(name: str) -> None:
    """Delete temporary directories of imports that were killed."""
    for leftover in home().glob(f".{name}.*"):
        if time.time() - leftover.stat().st_mtime > _ABANDONED:
            shutil.rmtree(leftover, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
