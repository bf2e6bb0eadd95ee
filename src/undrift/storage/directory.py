"""A run directory: configuration, environment, a JSON line per round, checkpoints.

    config.json              what was run, and fingerprints of what was given as an object
    environment.json         where it was run
    initial.safetensors      the weights that a user's own module had at the start
    rounds.jsonl             one line per round
    details.jsonl            confusion and clients' accuracies where asked for, one line per evaluated round
    predictions.safetensors  what the final model says of the test samples
    trackers.json            under which names trackers have the run, if it has trackers
    checkpoints/000120/      the states after round 120; the last two are kept
    .lock                    held by the process that writes to the directory

Every file is written under a temporary name and renamed, so that a run killed at any moment can be resumed, and carries
a checksum or is covered by one, so that damage is noticed. One process writes, and any number may read meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from undrift.core.log import warning
from undrift.protocol import State
from undrift.storage import checkpoint, details, files, initial, predictions, tracked
from undrift.storage.checkpoint import Checkpoint
from undrift.storage.details import Detail
from undrift.storage.files import DamageError
from undrift.storage.lock import LOCK, exclusive

_KEPT = 2  # checkpoints

Row = dict[str, Any]


class Found(NamedTuple):
    """What a run can be continued from."""

    checkpoint: Checkpoint | None  # None: from the start
    rows: list[Row]  # up to the checkpoint
    problems: list[str]  # what is wrong with newer checkpoints, or with rows after this one
    dropped: int  # rows after the checkpoint
    detail: Detail | None = None  # of the last evaluated round up to the checkpoint


class RunDirectory:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._writer: int | None = None  # the process that holds the lock through this object
        self._written = hashlib.sha256()  # of the rows this object knows of

    @classmethod
    @contextmanager
    def create(
        cls,
        path: str | Path,
        config: dict[str, Any],
        environment: dict[str, Any],
        module: nn.Module | None = None,
        *,
        overwrite: bool = False,
    ) -> Iterator[RunDirectory]:
        """A new directory, or with `overwrite` that of a run which is replaced; nobody else writes during the block.

        `module` is the user's own.
        """
        self = cls(path)
        self._refuse_content(overwrite)
        with files.writing(self.path):
            (self.path / _CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        with self.writing():
            self._refuse_content(overwrite)  # of a run that was faster
            self._clear()
            self.write_environment(environment)
            if module is not None:
                initial.write(self.path, module)
            files.write_json(self.path / _CONFIG, config)  # last: a directory with a configuration is a run
            yield self

    def _refuse_content(self, overwrite: bool) -> None:
        if not self.path.exists() or (self.path.is_dir() and _unfinished(self.path)):
            return
        if not (self.path / _CONFIG).is_file():
            raise ValueError(f"out={str(self.path)!r} exists, is not empty and holds no run; choose another directory")
        if overwrite:
            RunDirectory.open(self.path)  # refuses what is not a run's
        else:
            raise ValueError(
                f"out={str(self.path)!r} holds a run already: resume=True (--resume) continues it, overwrite=True "
                "(--overwrite) replaces it; or choose another directory"
            )

    def _clear(self) -> None:
        """Remove what a run before left here, and nothing else; its configuration goes when the new one is written."""
        for _, path in reversed(self._numbered()):
            checkpoint.remove(path)
        others = (initial.FILE, predictions.FILE, details.FILE, tracked.FILE)
        for path in (self._log, *(self.path / file for file in others)):
            path.unlink(missing_ok=True)

    @classmethod
    def is_run(cls, path: str | Path) -> bool:
        """Whether a directory holds a run that can be opened, or what is left of one."""
        return (Path(path) / _CONFIG).exists()

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        self = cls(path)
        if not (self.path / _CONFIG).is_file():
            raise ValueError(f"{str(path)!r} is not a run directory: it has no {_CONFIG}")
        config = self.config
        if not isinstance(config.get("label"), str) or not all(
            isinstance(config.get(part), dict) for part in ("algorithm", "options")
        ):
            raise ValueError(f"{str(path)!r} is not a run directory: its {_CONFIG} is another program's")
        return self

    @contextmanager
    def writing(self) -> Iterator[None]:
        """During the block nobody else writes to the directory; refused while somebody does."""
        if self._writer == os.getpid():
            yield
            return
        with exclusive(self.path):
            self._writer = os.getpid()
            try:
                yield
            finally:
                self._writer = None

    @property
    def config(self) -> dict[str, Any]:
        return _without_format(files.read_json(self.path / _CONFIG))

    @property
    def environment(self) -> dict[str, Any]:
        return _without_format(files.read_json(self.path / _ENVIRONMENT))

    def write_environment(self, environment: dict[str, Any]) -> None:
        files.write_json(self.path / _ENVIRONMENT, environment)

    def change_rounds(self, rounds: int) -> None:
        """All that may change in a configuration."""
        config = self.config
        if config["options"].get("rounds") != rounds:
            files.write_json(self.path / _CONFIG, config | {"options": config["options"] | {"rounds": rounds}})

    # rounds

    @property
    def _log(self) -> Path:
        return self.path / "rounds.jsonl"

    def append(self, row: Row) -> None:
        line = (json.dumps(files.as_json(row)) + "\n").encode()
        with files.writing(self._log), self._log.open("ab") as log:
            log.write(line)
        self._written.update(line)

    def append_detail(self, detail: Detail) -> None:
        details.append(self.path, detail)

    def detail(self) -> Detail | None:
        """What the last evaluation found besides numbers; None where nothing was asked for, or it is damaged."""
        try:
            return details.last(self.path)
        except DamageError as problem:
            warning(f"{problem}; it is left out")
            return None

    def rows(self) -> list[Row]:
        """All rows, for reading, also while a run writes them; raises a ValueError if one is not as it was written."""
        while True:
            newest = self._newest_readable()
            lines = self._lines()
            if self._newest_readable() == newest:
                break
        return self._checked(lines, newest)

    def _newest_readable(self) -> Checkpoint | None:
        for _, path in reversed(self._numbered()):
            try:
                return checkpoint.read(path)
            except ValueError:
                continue
        return None

    def _lines(self) -> list[bytes]:
        """Complete lines; one that a crash cut off, or that is being written, has no end."""
        content = files.read(self._log) if os.path.lexists(self._log) else b""
        return [line + b"\n" for line in content.split(b"\n")[:-1]]

    def _checked(self, lines: Sequence[bytes], covered: Checkpoint | None) -> list[Row]:
        """Rows, if they are consecutive and as long as a checkpoint demands, and unchanged up to there."""
        rows = [self._row(number, line) for number, line in enumerate(lines, 1)]
        for number, row in enumerate(rows, 1):
            if row.keys() != rows[0].keys():
                raise DamageError(f"{self._log} is damaged: line {number} has other columns than the first")
        if covered is None:
            return rows
        if len(rows) < covered.round:
            raise DamageError(f"{self._log} is damaged: it ends after {len(rows)} of {covered.round} rounds")
        if covered.rows not in (None, hashlib.sha256(b"".join(lines[: covered.round])).hexdigest()):
            raise DamageError(f"{self._log} was edited: its rounds do not match the checksum in {covered.path}")
        return rows

    def _row(self, number: int, line: bytes) -> Row:
        row = files.parse(line, f"line {number} of {self._log}")
        if type(row.get("round")) is not int or row["round"] != number:
            raise DamageError(f"{self._log} is damaged: line {number} is of round {row.get('round')!r}")
        if not all(_is_figure(value) for value in row.values()):
            raise DamageError(f"{self._log} is damaged: line {number} has a value that is no number")
        return {key: math.nan if value is None else value for key, value in row.items()}

    # checkpoints

    @property
    def _checkpoints(self) -> Path:
        return self.path / _CHECKPOINTS

    def _numbered(self) -> list[tuple[int, Path]]:
        return checkpoint.numbered(self._checkpoints)

    def checkpoint(self, round: int) -> Path:
        return self._checkpoints / checkpoint.name(round)

    def save(
        self, round: int, parts: Iterable[State], *, ended: bool = False, names: dict[str, str] | None = None
    ) -> Path:
        """Everything that the next round depends on, a part a file; generators have no state but the round's number."""
        path = self.checkpoint(round)
        with self.writing():
            self._refuse_other_rows()
            manifest = {
                "round": round,
                "ended": ended,
                "rows": self._written.hexdigest(),
                "config": _fixed(self.config),
                "names": names,
            }
            checkpoint.write(path, parts, self._log, manifest)
            ours = [old for number, old in self._numbered() if number <= round and old.is_dir()]
            for old in ours[:-_KEPT]:
                checkpoint.remove(old)
        return path

    def _refuse_other_rows(self) -> None:
        """A run that lives on after its end may find that the directory was continued by another."""
        if hashlib.sha256(b"".join(self._lines())).hexdigest() != self._written.hexdigest():
            raise ValueError(f"{self.path} has other rounds than this run by now; it was continued meanwhile")

    def find(self) -> Found:
        """What the run can be continued from: the newest checkpoint of which everything is good. Changes nothing."""
        lines, problems, fixed = self._lines(), [], _fixed(self.config)
        for _, path in reversed(self._numbered()):
            try:
                found = checkpoint.read(path)
                if found.config not in (None, fixed):
                    raise DamageError(f"{self.path / _CONFIG} is not the configuration that {path} was written with")
                rows = self._checked(lines[: found.round], found)
                found.check_files()
            except DamageError as problem:
                problems.append(str(problem))
                continue
            problems += self._tail_problems(lines)
            try:
                detail = details.last(self.path, found.round)
            except DamageError as problem:
                problems, detail = [*problems, str(problem)], None
            return Found(found, rows, problems, len(lines) - len(rows), detail)
        if problems:
            raise ValueError(f"{problems[0]}; no checkpoint is good; remove {self._checkpoints} to start at round 1")
        return Found(None, [], self._tail_problems(lines), len(lines))

    def _tail_problems(self, lines: Sequence[bytes]) -> list[str]:
        try:
            self._checked(lines, None)
        except DamageError as problem:
            return [str(problem)]
        return []

    def go_back_to(self, found: Found) -> None:
        """Drop what comes after a checkpoint, as it will be computed again."""
        round = 0 if found.checkpoint is None else found.checkpoint.round
        for number, path in reversed(self._numbered()):
            if number > round:
                checkpoint.discard(path)  # before the rows, so that no checkpoint speaks of rows that are gone
        kept = b"".join(self._lines()[:round])
        if not self._log.exists() or self._log.stat().st_size != len(kept):
            files.replace(self._log, kept)
        self._written = hashlib.sha256(kept)
        details.cut(self.path, round)


_CONFIG, _ENVIRONMENT, _CHECKPOINTS = "config.json", "environment.json", "checkpoints"


def _unfinished(path: Path) -> bool:
    """Whether a directory holds only what is left of a run that was killed before its first round."""
    left = {_CHECKPOINTS, _ENVIRONMENT, f".{_ENVIRONMENT}.new", f".{_CONFIG}.new", initial.FILE, initial.DRAFT, LOCK}
    empty = not (path / _CHECKPOINTS).exists() or not any((path / _CHECKPOINTS).iterdir())
    return empty and all(entry.name in left for entry in path.iterdir())


def _without_format(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != "format"}


def _fixed(config: dict[str, Any]) -> str:
    """A checksum of all that must stay as it is in a configuration."""
    return files.digest(config | {"options": {k: v for k, v in config["options"].items() if k != "rounds"}})


def _is_figure(value: Any) -> bool:
    return value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
