"""Records of runs, read from their directories."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from undrift.core.log import warning
from undrift.reporting.record import Record, history_frame
from undrift.reporting.task import by_task
from undrift.simulation.describe import read_options
from undrift.storage import predictions
from undrift.storage.comparison import read_order
from undrift.storage.directory import RunDirectory
from undrift.storage.files import DamageError


def read_records(paths: Iterable[str | Path]) -> list[Record]:
    """The runs in these directories, or in directories that hold some, in the order in which they were compared.

    Runs of one label and task are told apart by their directories.
    """
    found: list[_Stored] = []
    for path in map(Path, paths):
        homes = [home.parent for home in sorted(path.rglob("config.json"))]
        if not homes:
            raise ValueError(f"{str(path)!r} is not a run directory and holds none")
        stored = [_Stored(path, home, read_record(RunDirectory.open(home))) for home in homes]
        orders = {folder: read_order(folder) for folder in dict.fromkeys(each.folder for each in stored)}
        found += sorted(_with_predictions(stored), key=lambda each: each.position(orders))
    return _told_apart(found)


def read_record(directory: RunDirectory) -> Record:
    config, options = directory.config, read_options(directory)
    rows = history_frame(directory.rows())
    config = config | {"options": asdict(options)}
    detail = directory.detail()
    return Record(config["label"], options.seed, rows, config, directory.environment, detail=detail)


class _Stored(NamedTuple):
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

    def position(self, orders: Mapping[Path, Sequence[str]]) -> tuple[str, int, str, int]:
        """By comparison, label and seed; runs of no comparison, or of one without an order, by their directories."""
        order = orders[self.folder]
        if not order:
            return str(self.folder), 0, str(self.home), 0
        label = self.record.label
        return str(self.folder), order.index(label) if label in order else len(order), "", self.record.seed


def _told_apart(found: Sequence[_Stored]) -> list[Record]:
    """The records, with a directory in their labels where runs of one task would have the same label and seed."""
    records = [each.record for each in found]
    for directories in ([each.given for each in found], [each.place for each in found]):
        if all(len({(r.label, r.seed) for r in task}) == len(task) for task in by_task(records)):
            break
        pairs = zip(found, directories, strict=True)
        records = [each.record._replace(label=f"{each.record.label} ({path})") for each, path in pairs]
    return records


def _with_predictions(stored: Sequence[_Stored]) -> list[_Stored]:
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
