"""All runs of a folder, whatever state they are in, and what has changed since somebody looked."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from undrift.core.log import printable
from undrift.reporting.facts import data_name
from undrift.reporting.record import COLUMNS, FAILURE_COLUMNS, column, exploded
from undrift.storage import checkpoint, files
from undrift.storage.directory import RunDirectory
from undrift.ui.curves import outline
from undrift.ui.history import History
from undrift.ui.holders import Holder, find_holders

_CONFIG, _ROUNDS, _CHECKPOINTS = "config.json", "rounds.jsonl", "checkpoints"
_MOST_CONFIG = 16 << 20  # bytes; larger ones are not ours
_LONGEST = 300  # characters of a text that the page shows
_SPARK = 40  # points of the small picture
_ELSEWHERE = 30.0  # seconds that a run counts as training after it has grown without a process here that holds it
_WALK_SHARE = 20  # looking for new runs may take this part of the time
_Stamp = tuple[int, int, int]
_UNSEEN: _Stamp = (-1, -1, -1)

# What the page can draw, where a history has it.
CHARTS = {each.name: each for each in COLUMNS if each.chart}


class UnknownRunError(LookupError):
    """There is no run of this name."""


@dataclass
class FollowedRun:
    """A directory that holds a run, or what is left of one."""

    id: str  # says nothing about the path, and is all that a page can name
    home: Path
    name: str
    history: History
    config: dict[str, Any] | None = None
    problem: str = ""  # with the configuration
    group: str = ""  # equal for runs that differ in their seed only
    read: bool = False  # whether all rows that there were have been read
    holder: Holder | None = None
    stopping: bool = False  # its process was told to
    together: int = 0  # runs that the process trains
    ended: bool = False  # before its last round, on purpose
    checkpoints: int = 0
    notes: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    seen: object = None  # what the summary was made of
    version: int = 0  # of the catalogue when the summary changed last
    grown: float = -math.inf  # when it has grown without a holder
    _config_stamp: _Stamp | None = _UNSEEN
    _checkpoint_stamp: _Stamp | None = _UNSEEN

    def look(self, holder: Holder | None, deadline: float) -> None:
        """Read what is new, up to a moment of `time.monotonic`."""
        self._look_at_config()
        before, known = len(self.history), self.read
        self.follow(math.inf if known else deadline)
        if known and holder is None and self.holder is None and len(self.history) > before:
            self.grown = time.monotonic()
        self.holder = holder
        if holder is None:
            self._look_at_checkpoints()

    def follow(self, deadline: float) -> None:
        """Read rows up to a moment; where there is no time for any, the last one."""
        if not self.read and not len(self.history) and time.monotonic() >= deadline:
            self.history.peek()
            return
        more = True
        while more and time.monotonic() < deadline:
            more = self.history.follow()
        self.read = not more

    @property
    def state(self) -> object:
        """What a summary depends on; equal as long as it says the same."""
        process = self.holder, self.stopping, self.together, self._elsewhere
        rows = self.history.generation, self.history.last("round"), self.history.problem, self.read
        return self._config_stamp, self._checkpoint_stamp, process, rows

    @property
    def _elsewhere(self) -> bool:
        return time.monotonic() - self.grown < _ELSEWHERE

    def _look_at_config(self) -> None:
        if (stamp := _stamp(self.home / _CONFIG)) == self._config_stamp:
            return
        self._config_stamp = stamp
        try:
            if stamp is not None and stamp[2] > _MOST_CONFIG:
                raise ValueError(f"its {_CONFIG} is another program's")
            config = RunDirectory.open(self.home).config
            self.config, self.problem, self.group = config, "", _group(config)
        except (ValueError, OSError, RecursionError) as error:
            self.config, self.problem, self.group = None, self._shortened(error), self.id

    def _look_at_checkpoints(self) -> None:
        if (stamp := _stamp(self.home / _CHECKPOINTS)) == self._checkpoint_stamp:
            return
        self._checkpoint_stamp, self.notes = stamp, []
        try:
            found = checkpoint.numbered(self.home / _CHECKPOINTS)
            self.checkpoints = len(found)
            self.ended = bool(found) and checkpoint.read(found[-1][1]).ended
        except ValueError as error:
            self.ended = False
            self.notes.append(self._shortened(error))
        if not (self.home / "environment.json").is_file():
            self.notes.append("environment.json is missing")

    def _shortened(self, error: Exception) -> str:
        """What is wrong, without the path that the page shows anyway."""
        return str(error).replace(f"{self.home}{os.sep}", "").replace(repr(str(self.home)), "it")

    @property
    def options(self) -> Mapping[str, Any]:
        options = (self.config or {}).get("options")
        return options if isinstance(options, Mapping) else {}

    @property
    def total(self) -> int | None:
        rounds = self.options.get("rounds")
        return rounds if isinstance(rounds, int) else None

    @property
    def label(self) -> str:
        return _text((self.config or {}).get("label") or self.home.name)

    @property
    def diverged(self) -> bool:
        return self.history.last("diverged") == 1

    @property
    def exploded(self) -> bool:
        losses = self.history.column("train_loss")
        return bool(len(losses) and exploded(float(np.fmax.reduce(losses)), float(losses[0])))

    @property
    def done(self) -> int:
        return int(self.history.last("round") or 0) - self.diverged

    def status(self) -> tuple[str, str]:
        """One word, and what there is to say about it."""
        if self.holder is not None:
            if self.config is None:
                return "starting", ""
            return "running", "stopping after this round" if self.stopping else self.history.problem
        if self.config is None:
            return "broken", self.problem
        if self.history.problem:
            return "broken", self.history.problem
        if self._elsewhere and not self.complete:
            return "running", "on another machine"
        if self.diverged:
            return "diverged", f"in round {self.done + 1}"
        if self.complete:
            return "finished", ""
        if self.ended:
            return "finished", "ended early"
        return "stopped", ""

    @property
    def complete(self) -> bool:
        target, total = self.options.get("target"), self.total
        reached = isinstance(target, float) and bool((self.history.column("accuracy") >= target).any())
        return reached or (total is not None and self.done >= total)

    def missing(self) -> list[str]:
        """What a run of this kind should have and has not."""
        found = list(self.notes)
        if self.config is not None and self.read and not len(self.history) and self.holder is None:
            found.append(f"{_ROUNDS} has no rounds" if (self.home / _ROUNDS).exists() else f"{_ROUNDS} is missing")
        elif len(self.history) and not self.checkpoints and self.holder is None:
            found.append("there is no checkpoint, so that it can only start again")
        if self.exploded:
            found.append("its training loss exploded")
        return [_text(each) for each in found]

    def summarise(self) -> dict[str, Any]:
        """What the page shows of it in its list."""
        status, reason = self.status()
        config = self.config or {}
        algorithm = config.get("algorithm")
        recipe = config.get("data")
        model = config.get("model")
        partition = recipe.get("partition") if isinstance(recipe, Mapping) else None
        return {
            "id": self.id,
            "name": self.name,
            "label": self.label,
            "algorithm": _text(algorithm.get("name", "") if isinstance(algorithm, Mapping) else ""),
            "data": _text(data_name(config)),
            "partition": _text(partition or ""),
            "model": _text(model if isinstance(model, str) else "own model" if model else ""),
            "seed": self.options.get("seed") if isinstance(self.options.get("seed"), int) else None,
            "lr": _number(self.options.get("lr")),
            "group": self.group,
            "status": status,
            "reason": _text(reason),
            "missing": self.missing(),
            "failed": self.diverged or self.exploded,
            "loading": not self.read,
            "rounds": self.done,
            "total": self.total,
            "stamp": [self.history.generation, len(self.history)],
            "columns": [
                {
                    "name": name,
                    "title": column(name).chart or column(name).title or _text(name),
                    "percent": column(name).percent,
                }
                for name in self.history.names()
                if (name in CHARTS or name not in _PLAIN) and not self._has_none_of(name)
            ],
            "accuracy": self.history.last("accuracy"),
            "loss": self.history.last("loss"),
            "spark": outline(self.history.column(self._shown_in_list), _SPARK),
            "held": self.holder is not None,
            "refusal": "" if self.holder is None else self.holder.refusal,
            "together": self.together,
        }

    def _has_none_of(self, failure: str) -> bool:
        """Whether a failure has not occurred in any round, so that there is nothing to draw."""
        usual = 1 if failure == "attempts" else 0
        return failure in FAILURE_COLUMNS and bool((self.history.column(failure) == usual).all())

    @property
    def _shown_in_list(self) -> str:
        return "accuracy" if np.isfinite(self.history.column("accuracy")).any() else "train_loss"


_PLAIN = {each.name for each in COLUMNS}


class Catalogue:
    """The runs below a folder. Nothing is watched by itself: `refresh` looks, as often as somebody asks."""

    def __init__(self, root: Path, is_stopping: Callable[[Holder], bool] = lambda holder: False) -> None:
        self.root = root.resolve()
        self._is_stopping = is_stopping
        self.version = 0
        self.runs: dict[str, FollowedRun] = {}
        self.gone: dict[str, int] = {}  # the version since when
        self.unreadable: list[str] = []
        self._walk_due = -math.inf

    def refresh(self, budget: float = math.inf) -> None:
        """Look at everything; rows are read for about `budget` seconds, and the rest of them the next time."""
        deadline = time.monotonic() + budget
        if time.monotonic() >= self._walk_due:
            self._find()
        holders = find_holders(run.home for run in self.runs.values())
        # Those that are known first: reading what is new in them takes no time.
        trained = Counter(holder.pid for holder in holders.values())
        for run in sorted(self.runs.values(), key=lambda run: not run.read):
            holder = holders.get(run.home)
            run.look(holder, deadline)
            run.stopping = holder is not None and self._is_stopping(holder)
            run.together = 0 if holder is None else trained[holder.pid]
            if (state := run.state) == run.seen:
                continue
            run.seen = state
            if (summary := run.summarise()) != run.summary:
                self.version += 1
                run.summary, run.version = summary, self.version

    @property
    def reading(self) -> bool:
        """Whether there are rows that nobody has read yet."""
        return any(not run.read for run in self.runs.values())

    def look_again(self) -> None:
        """The next refresh finds new directories at once."""
        self._walk_due = -math.inf

    def find(self, id: str) -> FollowedRun:
        if id not in self.runs:
            raise UnknownRunError("there is no such run in the folder any more")
        return self.runs[id]

    def changes(self, since: int) -> dict[str, Any]:
        """Summaries that changed after a version; after 0, all of them."""
        runs = [run.summary for run in self.runs.values() if run.version > since]
        gone = [id for id, version in self.gone.items() if version > since]
        return {"version": self.version, "runs": runs, "gone": gone}

    def _find(self) -> None:
        started = time.monotonic()
        self.unreadable = []
        homes = {id_of(path, self.root): path for path in self._homes()}
        for id in self.runs.keys() - homes.keys():
            del self.runs[id]
            self.version += 1
            self.gone[id] = self.version
        for id, home in homes.items():
            if id not in self.runs:
                name = _text(os.fspath(home.relative_to(self.root)) if home != self.root else home.name)
                self.runs[id] = FollowedRun(id, home, name, History(home))
                self.gone.pop(id, None)
        self.runs = {id: self.runs[id] for id in homes}
        self._walk_due = time.monotonic() + max(1.0, _WALK_SHARE * (time.monotonic() - started))

    def _homes(self) -> Iterator[Path]:
        def note(error: OSError) -> None:
            self.unreadable.append(_text(f"{error.filename}: {error.strerror}"))

        for folder, folders, names in os.walk(self.root, onerror=note):
            folders.sort()
            if _CONFIG in names or _ROUNDS in names or (_CHECKPOINTS in folders and ".lock" in names):
                yield Path(folder)
                if _CHECKPOINTS in folders:
                    folders.remove(_CHECKPOINTS)


def id_of(home: Path, root: Path) -> str:
    return hashlib.sha256(os.fsencode(home.relative_to(root))).hexdigest()[:16]


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _text(value: object) -> str:
    """What a page may show of a text from a file: in one line, not too long, without controls."""
    line = printable(" ".join(str(value).split()))
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _number(value: Any) -> float | None:
    return value if isinstance(value, float) and math.isfinite(value) else None


def _group(config: Mapping[str, Any]) -> str:
    """A checksum of all but the seed."""
    options = {k: v for k, v in config["options"].items() if k not in ("seed", "engine", "device")}
    data = config.get("data")
    recipe = {k: v for k, v in data.items() if k != "seed"} if isinstance(data, Mapping) and "name" in data else None
    rest = {k: v for k, v in config.items() if k not in ("options", "data", "group", "split", "test")}
    return files.digest({"options": options, "data": recipe, **rest})[:16]


def plain_config(run: FollowedRun) -> dict[str, str]:
    """The configuration in one level, without the many numbers of a split."""
    flat: dict[str, str] = {}

    def walk(content: Mapping[str, Any], prefix: str) -> None:
        for key, value in content.items():
            if isinstance(value, Mapping) and value:
                walk(value, f"{prefix}{key}.")
            else:
                flat[_text(f"{prefix}{key}")] = _text(value if isinstance(value, str) else json.dumps(value))

    walk({key: value for key, value in (run.config or {}).items() if key != "split"}, "")
    return flat
