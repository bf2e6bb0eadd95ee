"""A run directory: configuration, environment, a JSON line per round, checkpoints.

    config.json              what was run, and fingerprints of what was given as an object
    environment.json         where it was run
    rounds.jsonl             one line per round
    checkpoints/000120/      manifest.json and state.safetensors after round 120; the last two are kept. Large states
                             continue in state-1.safetensors, state-2.safetensors, ...

Every file is written under a temporary name and renamed, so that a run killed at any moment can be resumed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from undrift.core import tree
from undrift.core.tree import Tree
from undrift.core.version import __version__
from undrift.protocol import State

_KEPT = 2
_FORMAT = 2


class RunDirectory:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path, config: dict[str, Any], environment: dict[str, Any]) -> RunDirectory:
        self = cls(path)
        if self.path.exists() and (not self.path.is_dir() or not _unfinished(self.path)):
            raise ValueError(f"out={str(path)!r} exists and is not empty; resume it or choose another directory")
        (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        write_json(self.path / "environment.json", environment)
        write_json(self.path / "config.json", config)  # last: a directory with a configuration is a run
        return self

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        self = cls(path)
        if not (self.path / "config.json").is_file():
            raise ValueError(f"{str(path)!r} is not a run directory: it has no config.json")
        if not {"label", "algorithm", "options"} <= self.config.keys():
            raise ValueError(f"{str(path)!r} is not a run directory: its config.json is another program's")
        return self

    @property
    def config(self) -> dict[str, Any]:
        return read_json(self.path / "config.json")

    @property
    def environment(self) -> dict[str, Any]:
        return read_json(self.path / "environment.json")

    # rounds

    @property
    def _log(self) -> Path:
        return self.path / "rounds.jsonl"

    def append(self, row: dict[str, Any]) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(_plain(row)) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Complete rows; a line cut off by a crash is ignored."""
        rows = []
        if self._log.exists():
            for line in self._log.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    continue
                rows.append({k: math.nan if v is None else v for k, v in row.items()})
        return rows

    def rewind(self, round: int) -> list[dict[str, Any]]:
        """Drop the rows after a round, which will be computed again."""
        rows = [row for row in self.rows() if row["round"] <= round]
        _replace(self._log, "".join(json.dumps(_plain(row)) + "\n" for row in rows).encode())
        return rows

    # checkpoints

    def save(self, round: int, parts: Iterable[State]) -> Path:
        """Everything that the next round depends on, a part a file; generators have no state but the round's number."""
        final = self.checkpoint(round)
        home, draft = final.parent, final.with_name(f".{final.name}")
        if final.exists():
            if _manifest(final):
                return final
            shutil.rmtree(final)
        for abandoned in home.glob(".*"):  # by runs that were killed
            shutil.rmtree(abandoned, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            digests = {}
            for number, part in enumerate(parts):
                file = draft / (f"state-{number}.safetensors" if number else "state.safetensors")
                save_file(_separate(tree.flatten(part)), file)
                _sync(file)
                digests[file.name] = _sha256(file)
            write_json(draft / "manifest.json", {"format": _FORMAT, "round": round, "sha256": digests})
            _sync(self._log)  # a checkpoint is useless without the rows before it
            os.replace(draft, final)
            _sync(home)
        except (OSError, SafetensorError) as error:
            raise OSError(f"the checkpoint of round {round} cannot be written to {home}: {error}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        for old in self.checkpoints()[:-_KEPT]:
            shutil.rmtree(old)
        return final

    def checkpoint(self, round: int) -> Path:
        return self.path / "checkpoints" / f"{round:06d}"

    def checkpoints(self) -> list[Path]:
        home = self.path / "checkpoints"
        return sorted(p for p in home.iterdir() if p.name.isdigit()) if home.exists() else []

    def load(self) -> tuple[int, Iterator[State]] | None:
        """The round of the newest complete checkpoint and its parts, one at a time; None if there is none."""
        for path in reversed(self.checkpoints()):
            manifest = _manifest(path)
            if manifest is None:
                continue
            if manifest["format"] != _FORMAT:
                raise ValueError(f"{path} was written by another version of undrift (format {manifest['format']})")
            return manifest["round"], (tree.unflatten(load_file(path / name)) for name in manifest["sha256"])
        return None


def _unfinished(path: Path) -> bool:
    """Whether a directory holds only what is left of a run that was killed before its first round."""
    left = {"checkpoints", "environment.json", ".environment.json.new", ".config.json.new"}
    return all(entry.name in left for entry in path.iterdir())


def _manifest(checkpoint: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint, or None if the checkpoint is damaged or incomplete."""
    try:
        manifest = read_json(checkpoint / "manifest.json")
        files = manifest["sha256"].items() if manifest["format"] == _FORMAT else ()
        complete = all(digest == _sha256(checkpoint / name) for name, digest in files)
    except (OSError, ValueError, KeyError):
        return None
    return manifest if complete else None


def describe_environment(device: torch.device, engine: str, reason: str) -> dict[str, Any]:
    return {
        "undrift": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "engine": engine,
        "engine_reason": reason,
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    _replace(path, (json.dumps(_plain(content), indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.new")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _separate(flat: Tree) -> Tree:
    """On the CPU, without shared memory, as safetensors demands."""
    seen: set[int] = set()
    out: Tree = {}
    for name, value in flat.items():
        copy: Tensor = value.detach().cpu().contiguous()
        if copy.untyped_storage().data_ptr() in seen or copy.untyped_storage().nbytes() != copy.nbytes:
            copy = copy.clone()
        seen.add(copy.untyped_storage().data_ptr())
        out[name] = copy
    return out


def _plain(value: Any) -> Any:
    """Values that JSON has; NaN becomes null."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
