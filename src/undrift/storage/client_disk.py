"""What one client keeps on its own disk between the messages of a run.

    memory.json                     which states count, with their checksums, and whose they are
    000007-0-5d41402abc.safetensors a state: that after phase 0 of round 7, and the beginning of its checksum
    .lock                           held while a message is answered

A state that has been computed is a draft. It becomes the client's own when a later message says that the server counted
the round, so that both sides agree on what happened even if a reply was lost. States are written first, under names
that no other state has; renaming the new ``memory.json`` over the old one is the moment at which they count. A client
killed at any moment is therefore as it was before the message or after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from undrift.core import check, tree
from undrift.core.files import StorageError, sha256, sync
from undrift.core.log import warning
from undrift.core.tree import State
from undrift.storage import files
from undrift.storage.checkpoint import separate
from undrift.storage.files import DamageError
from undrift.storage.lock import exclusive

_MEMORY = "memory.json"
_STATES = "*-*-*.safetensors"


class Version(NamedTuple):
    """A client's state after a phase of a round."""

    round: int
    phase: int
    state: State


class Kept(NamedTuple):
    """All that a client remembers."""

    own: Version | None  # of the last round that the server counted; None: it has not taken part
    drafts: tuple[Version, ...] = ()  # of the phases of a later round

    def settled(self, heard: int, last: int, round: int) -> Kept:
        """The same when the server, which has counted this client's answer of round `heard`, asks it in `round`.

        A draft of that earlier round, if complete (of the `last` phase), is the client's own from now on; all drafts
        but those of the current round are forgotten.
        """
        newest = self.drafts[-1] if self.drafts else None
        counted = newest is not None and newest.round == heard != round and newest.phase == last
        return Kept(newest if counted else self.own, tuple(draft for draft in self.drafts if draft.round == round))


class EarlierRun(NamedTuple):
    """What clients of a machine still keep of a run. Whether the server will continue it is not known here."""

    name: str
    size: int  # bytes
    used: float  # when last, as `time.time` counts


def earlier_runs(home: Path, run: str) -> list[EarlierRun]:
    """The other runs in a folder that holds those of a machine, the least recently used first."""
    found = []
    for folder in home.iterdir() if home.is_dir() else ():
        if folder.name != run and (memories := list(folder.glob(f"*/{_MEMORY}"))):
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            found.append(EarlierRun(folder.name, size, max(memory.stat().st_mtime for memory in memories)))
    return sorted(found, key=lambda each: each.used)


class ClientDisk:
    """The memory of one client, in a folder of its own. Use it while it is `locked`."""

    def __init__(self, path: Path, owner: Mapping[str, str | int]) -> None:
        self.path, self._owner = path, dict(owner)
        self._there: list[tuple[Version, dict[str, Any]]] = []  # states that are on disk, and their entries

    @contextmanager
    def locked(self) -> Iterator[None]:
        """During the block no other process answers for this client; refused while one does."""
        with files.writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with exclusive(self.path):
            yield

    def read(self) -> Kept:
        """What is remembered. A damaged draft is left out, as its phase can be computed again."""
        if not (self.path / _MEMORY).exists():
            return Kept(None)
        content = files.read_json(self.path / _MEMORY)
        if content.get("owner") != self._owner:
            theirs, ours = _words(content.get("owner")), _words(self._owner)
            raise ValueError(f"{self.path} belongs to {theirs}, not to {ours}; give another folder")
        own, drafts = content.get("own"), content.get("drafts")
        if not isinstance(drafts, list):
            raise DamageError(f"{self.path / _MEMORY} is damaged: it lists no drafts")
        found = []
        for entry in drafts:
            try:
                found.append(self._version(entry))
            except DamageError as problem:
                warning(f"{problem}; this draft is left out")
                break  # later phases start from it
        return Kept(None if own is None else self._version(own), tuple(found))

    def write(self, kept: Kept) -> None:
        """Remember this, and nothing else."""
        own = None if kept.own is None else self._written(kept.own)
        drafts = [self._written(draft) for draft in kept.drafts]
        sync(self.path)
        files.write_json(self.path / _MEMORY, {"owner": self._owner, "own": own, "drafts": drafts})
        sync(self.path)
        needed = {entry["file"] for entry in (own, *drafts) if entry is not None}
        self._there = [(version, entry) for version, entry in self._there if entry["file"] in needed]
        for path in self.path.glob(_STATES):
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def _written(self, version: Version) -> dict[str, Any]:
        """The entry of a state, which is written unless it is there already."""
        for known, entry in self._there:
            if known is version:
                return entry
        entries = tree.entries(version.state)
        tensors = {str(number): leaf for number, leaf in enumerate(entries.values()) if leaf is not None}
        new = self.path / ".new.safetensors"
        try:
            save_file(separate(tensors), new)
            digest = sha256(new)
            name = f"{version.round:06d}-{version.phase}-{digest[:10]}.safetensors"
            sync(new)
            os.replace(new, self.path / name)
        except (OSError, SafetensorError) as error:
            new.unlink(missing_ok=True)  # half a state would take the room that is missing
            raise StorageError(f"the client's state cannot be written to {self.path}: {error}") from error
        # Paths in their order, as a sum over names is exact in one order only; None marks a branch without tensors.
        paths = [[path, leaf is not None] for path, leaf in entries.items()]
        entry = {"round": version.round, "phase": version.phase, "file": name, "sha256": digest, "paths": paths}
        self._there.append((version, entry))
        return entry

    def _version(self, entry: Any) -> Version:
        """A state as its entry describes it."""
        memory = self.path / _MEMORY
        try:
            path, paths = self.path / Path(entry["file"]).name, [(str(p), bool(full)) for p, full in entry["paths"]]
            round, phase, digest = int(entry["round"]), int(entry["phase"]), str(entry["sha256"])
        except (TypeError, KeyError, ValueError):
            raise DamageError(f"{memory} is damaged: {check.shown(entry)} is no state") from None
        try:
            if sha256(path) != digest:
                raise DamageError(f"{path} is damaged: it does not match its checksum")
            tensors = load_file(path)
        except (SafetensorError, OSError) as error:
            raise DamageError(f"{path} cannot be read: {error}") from None
        # Copies are aligned as those of a client that never stopped, on which the last bit of a product may depend.
        entries = {p: tensors[str(number)].clone() if full else None for number, (p, full) in enumerate(paths)}
        version = Version(round, phase, tree.from_entries(entries))
        self._there.append((version, entry))
        return version


def _words(owner: Any) -> str:
    if not isinstance(owner, Mapping):
        return "nobody"
    return f"client {owner.get('client')} of run {owner.get('run')}"
