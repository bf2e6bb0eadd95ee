"""Records of runs, read from their directories."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from undrift.core.log import warning
from undrift.reporting.choices import Choices
from undrift.reporting.record import Record, history_frame
from undrift.reporting.task import by_task
from undrift.simulation.describe import read_options
from undrift.storage import comparison, files, predictions
from undrift.storage.directory import RunDirectory
from undrift.storage.files import DamageError
from undrift.storage.tuning import FILE as TUNING
from undrift.storage.tuning import part_of_tuning


class Stored(NamedTuple):
    """Runs, and what the comparison that they are of was measured by; None where there are several that differ."""

    records: list[Record]
    targets: Any
    last_k: int | None


def read_runs(paths: Iterable[str | Path]) -> Stored:
    """The runs in these directories, or in directories that hold some, in the order in which they were compared.

    Runs of one label and task are told apart by their directories.
    """
    found: list[_Run] = []
    compared: list[comparison.Kept] = []
    for path in map(Path, paths):
        homes = [home.parent for home in sorted(path.rglob("config.json"))]
        if not homes:
            raise ValueError(f"{str(path)!r} is not a run directory and holds none")
        stored = _with_choices([_Run(path, home, read_record(RunDirectory.open(home))) for home in homes])
        kept = {folder: comparison.read(folder) for folder in dict.fromkeys(each.folder for each in stored)}
        found += sorted(_with_predictions(stored), key=lambda each: each.position(kept))
        compared += [each for folder, each in kept.items() if each.labels and folder.is_relative_to(path)]
    return Stored(
        _told_apart(found),
        _common([each.targets for each in compared]),
        _common([each.last_k for each in compared]),
    )


def _common(values: Sequence[Any]) -> Any:
    return values[0] if values and all(each == values[0] for each in values) else None


def read_record(directory: RunDirectory) -> Record:
    config, options = directory.config, read_options(directory)
    rows = history_frame(directory.rows())
    config = config | {"options": asdict(options)}
    detail = directory.detail()
    return Record(config["label"], options.seed, rows, config, directory.environment, detail=detail)


class _Run(NamedTuple):
    """A run that was read from its directory."""

    given: Path
    home: Path
    record: Record

    @property
    def folder(self) -> Path:
        """The folder of the comparison, if the run is of one: it is then in FOLDER/LABEL/seed-S."""
        return self.home.parent.parent

    @property
    def place(self) -> Path:
        """What tells it apart from a run of the same label and seed."""
        return self.folder if self.home.name == f"seed-{self.record.seed}" else self.home

    def position(self, kept: Mapping[Path, comparison.Kept]) -> tuple[str, int, str, int]:
        """By comparison, label and seed; runs of no comparison, or of one without an order, by their directories."""
        order = kept[self.folder].labels
        if not order:
            return str(self.folder), 0, str(self.home), 0
        label = self.record.label
        return str(self.folder), order.index(label) if label in order else len(order), "", self.record.seed


def _told_apart(found: Sequence[_Run]) -> list[Record]:
    """The records, with a directory in their labels where runs of one task would have the same label and seed."""
    records = [each.record for each in found]
    for directories in ([each.given for each in found], [each.place for each in found]):
        if all(len({(r.label, r.seed) for r in task}) == len(task) for task in by_task(records)):
            break
        pairs = zip(found, directories, strict=True)
        records = [each.record._replace(label=f"{each.record.label} ({path})") for each, path in pairs]
    return records


def _with_choices(stored: Sequence[_Run]) -> list[_Run]:
    """With what a tuning chose, and without its trials where the comparison of the winners is there."""
    parts = {folder: part_of_tuning(folder) for folder in dict.fromkeys(each.folder for each in stored)}
    compared = {part.home for part in parts.values() if part is not None and not part.trials}
    chosen = {home: _choices(home) for home in dict.fromkeys(part.home for part in parts.values() if part is not None)}
    found = []
    for each in stored:
        part = parts[each.folder]
        if part is None:
            found.append(each)
        elif not (part.trials and part.home in compared):
            config = each.record.config | {"tuning": chosen[part.home]}
            found.append(each._replace(record=each.record._replace(config=config)))
    return found


def _choices(home: Path) -> Choices | None:
    """None of a tuning that has not ended."""
    path = home / TUNING
    try:
        content = files.read_json(path).get("choices")
        return None if content is None else Choices.read(content)
    except DamageError as problem:
        warning(f"{problem}; how the settings were chosen is not shown")
    except (ValueError, TypeError, KeyError, AttributeError):
        warning(f"{path} was written by another version of undrift; how the settings were chosen is not shown")
    return None


def _with_predictions(stored: Sequence[_Run]) -> list[_Run]:
    """With what their directories hold of predictions; files that should be there and are not are named."""
    found, problems = [], []
    for each in stored:
        record = each.record
        try:
            if len(record.history) and not record.diverged:
                kept = predictions.read(each.home, int(record.history["round"].iloc[-1]))
                record = record._replace(predictions=kept)
        except DamageError as problem:
            if _is_complete(record) or (each.home / predictions.FILE).exists():
                problems.append(str(problem))
        found.append(each._replace(record=record))
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        warning(f"{problems[0]}{more}; tests on the test samples leave such runs out, resuming one writes it again")
    return found


def _is_complete(record: Record) -> bool:
    """Whether a run of class numbers has all its rounds; others, and trials, have no predictions by right."""
    last, options = record.history.iloc[-1], record.config["options"]
    return bool(last["round"] == options["rounds"]) and math.isfinite(last["accuracy"]) and not record.trial
