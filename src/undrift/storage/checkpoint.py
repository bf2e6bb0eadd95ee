"""A checkpoint: a folder named after its round, with the states in one or more files and a manifest of them.

manifest.json         round, checksums of the state files, of the rows up to this round and of the configuration
state.safetensors     large states continue in state-1.safetensors, state-2.safetensors, ...
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from undrift.core import tree
from undrift.core.files import StorageError, sha256, sync
from undrift.core.tree import Tree
from undrift.protocol import State
from undrift.storage import files
from undrift.storage.files import DamageError

_MANIFEST = "manifest.json"
_NAME = re.compile(r"[0-9]{6,}", re.ASCII)
_DRAFT = re.compile(r"\.[0-9]{6,}", re.ASCII)
_STATE = re.compile(r"state(-[1-9][0-9]*)?\.safetensors", re.ASCII)


@dataclass(frozen=True)
class Checkpoint:
    """What a manifest says. Before format 3 it said nothing of rows and configuration."""

    path: Path
    round: int
    states: dict[str, str]  # checksums of the state files, in their order
    ended: bool = False  # whether the run was ended before its last round
    rows: str | None = None  # checksum of the rows up to this round
    config: str | None = None  # checksum of what must not change in the configuration
    names: dict[str, str] | None = None  # those of the model's state_dict, and what they stand for; None: not known

    def check_files(self) -> None:
        """Raise `DamageError` unless the state files are those that were written."""
        try:
            there = {entry.name for entry in self.path.iterdir() if _STATE.fullmatch(entry.name)}
        except OSError as error:
            raise DamageError(f"{self.path} cannot be read: {error.strerror or error}") from None
        for name in sorted(there ^ self.states.keys()):
            raise DamageError(f"{self.path / name} is {'not in the manifest' if name in there else 'missing'}")
        for name, digest in self.states.items():
            try:
                found = sha256(self.path / name)
            except OSError as error:
                raise DamageError(f"{self.path / name} cannot be read: {error.strerror or error}") from None
            if found != digest:
                raise DamageError(f"{self.path / name} is damaged: it does not match its checksum")

    def parts(self) -> Iterator[State]:
        """The states that were written, one at a time."""
        for name in self.states:
            try:
                yield tree.unflatten(load_file(self.path / name))
            except (SafetensorError, OSError) as error:
                raise DamageError(f"{self.path / name} cannot be read: {error}") from None


def numbered(home: Path) -> list[tuple[int, Path]]:
    """What is named like a checkpoint, by round; whatever else is in the folder is not touched."""
    try:
        entries = list(home.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DamageError(f"{home} cannot be read: {error.strerror or error}") from None
    return sorted((int(e.name), e) for e in entries if _NAME.fullmatch(e.name) and e.name == name(int(e.name)))


def name(round: int) -> str:
    return f"{round:06d}"


def read(path: Path) -> Checkpoint:
    """The checkpoint in a folder; raises `DamageError` if its manifest is. Its files are not read."""
    source = path / _MANIFEST
    content = files.read_json(source)
    old = content["format"] < files.FORMAT
    if content["format"] < files.FORMAT - 1:
        raise ValueError(f"{source} was written by another version of undrift (format {content['format']})")
    round, states = content.get("round"), content.get("sha256" if old else "states")
    if type(round) is not int or name(round) != path.name:
        raise DamageError(f"{source} is damaged: it is of round {round!r}, but in the folder {path.name}")
    if not isinstance(states, dict) or not states or not all(map(_STATE.fullmatch, states)):
        raise DamageError(f"{source} is damaged: it lists no state files")
    if not all(isinstance(digest, str) for digest in states.values()):
        raise DamageError(f"{source} is damaged: it lacks checksums")
    if old:
        return Checkpoint(path, round, states)
    ended, rows, config = (content.get(key) for key in ("ended", "rows", "config"))
    if not isinstance(ended, bool) or not isinstance(rows, str) or not isinstance(config, str):
        raise DamageError(f"{source} is damaged: it lacks checksums")
    names = content.get("names")
    if names is not None and not (isinstance(names, dict) and all(isinstance(v, str) for v in names.values())):
        raise DamageError(f"{source} is damaged: its names of tensors are no names")
    return Checkpoint(path, round, states, ended=ended, rows=rows, config=config, names=names)


def write(path: Path, parts: Iterable[State], rows: Path, manifest: dict[str, Any]) -> None:
    """Write a part a file, under a name that is no checkpoint's until all of it is on the disk."""
    home, draft = path.parent, path.with_name(f".{path.name}")
    try:
        for entry in home.glob(".*"):
            if _DRAFT.fullmatch(entry.name):
                remove(entry)  # of a run that was killed
        draft.mkdir(parents=True)
        states = {}
        for number, part in enumerate(parts):
            file = draft / (f"state-{number}.safetensors" if number else "state.safetensors")
            save_file(separate(tree.flatten(part)), file)
            sync(file)
            states[file.name] = sha256(file)
        files.write_json(draft / _MANIFEST, manifest | {"states": states})
        sync(draft)
        sync(rows)  # a checkpoint is useless without the rows before it
        remove(path)
        os.replace(draft, path)
        sync(home)
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"the checkpoint of round {manifest['round']} cannot be written to {home}: {error}"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a checkpoint, or what has taken its name; the manifest first, so that nothing incomplete looks whole."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        if (path / _MANIFEST).is_file():
            (path / _MANIFEST).unlink()
        shutil.rmtree(path)


def discard(path: Path) -> None:
    """Remove the files of a damaged checkpoint; others that somebody put there stay."""
    if path.is_symlink():
        path.unlink()
    if not path.is_dir():
        return
    for entry in sorted(path.iterdir(), key=lambda entry: entry.name != _MANIFEST):
        if entry.name == _MANIFEST or _STATE.fullmatch(entry.name):
            remove(entry)
    if not any(path.iterdir()):
        path.rmdir()


def separate(flat: Tree) -> Tree:
    """On the CPU, without shared memory, as safetensors demands."""
    seen: set[int] = set()
    out: Tree = {}
    for key, value in flat.items():
        copy: Tensor = value.detach().cpu().contiguous()
        if copy.untyped_storage().data_ptr() in seen or copy.untyped_storage().nbytes() != copy.nbytes:
            copy = copy.clone()
        seen.add(copy.untyped_storage().data_ptr())
        out[key] = copy
    return out
