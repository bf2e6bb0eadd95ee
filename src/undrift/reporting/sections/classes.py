"""Which classes the methods know, where accuracies of classes or confusion matrices were asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from undrift.reporting.facts import class_names
from undrift.reporting.figures import by_label, final_of
from undrift.reporting.record import Record
from undrift.reporting.sections.section import Section, rendered
from undrift.reporting.wording import percent_text

MOST_CLASSES = 30  # of a drawing; of more, CSV and run directory have the figures
_SIDE = 216  # pixels of a confusion matrix
_LONGEST = 12  # letters of a name

Matrix = np.ndarray[Any, np.dtype[np.float64]]


def classes(records: Sequence[Record]) -> Section | None:
    """A table of the accuracy on every class, and a heat map of the confusion of every method."""
    groups = by_label(records)
    columns = _columns(records)
    matrices = {label: _confusion(runs) for label, runs in groups.items()}
    count = len(columns) or max((len(matrix) for matrix in matrices.values() if matrix is not None), default=0)
    if not 0 < count <= MOST_CLASSES:
        return None
    names = _names(records[0], count)
    rows = [
        _Row(label, number, [_Cell(final_of(runs, column).mean) for column in columns])
        for number, (label, runs) in enumerate(groups.items())
    ]
    maps = [_Map(label, matrix, names) for label, matrix in matrices.items() if matrix is not None]
    html = rendered("classes.html", names=names, rows=rows if columns else [], maps=maps, side=_SIDE)
    return Section("Classes", html, _note(bool(columns), bool(maps)))


def _note(accuracies: bool, maps: bool) -> str:
    notes = ["Accuracy on the test samples of each class, in the last evaluated round."] if accuracies else []
    if maps:
        notes.append("Confusion: a row is a true class, a column the answer; the shade is the share of the row.")
    return " ".join(notes)


def _columns(records: Sequence[Record]) -> list[str]:
    """The columns of the accuracies of classes, in the order of their numbers."""
    found = {str(name) for record in records for name in record.history}
    numbers = sorted(int(match[1]) for name in found if (match := re.fullmatch(r"accuracy_class_(\d+)", name)))
    return [f"accuracy_class_{number}" for number in numbers]


def _names(record: Record, count: int) -> list[str]:
    known = class_names(record)
    if len(known) != count:
        known = tuple(map(str, range(count)))
    return [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in known]


def _confusion(runs: Sequence[Record]) -> Matrix | None:
    """Counts of all seeds together, as shares of their rows."""
    found = [np.array(run.detail["confusion"]) for run in runs if run.detail and "confusion" in run.detail]
    if not found:
        return None
    total = np.sum(found, axis=0, dtype=np.float64)
    shares: Matrix = total / np.maximum(total.sum(1, keepdims=True), 1)
    return shares


@dataclass(frozen=True)
class _Cell:
    share: float

    @property
    def text(self) -> str:
        return percent_text(self.share)

    @property
    def shade(self) -> str:
        """Per cent of the colour that shows the value."""
        return f"{0 if math.isnan(self.share) else 55 * self.share:.0f}%"


@dataclass(frozen=True)
class _Row:
    label: str
    number: int  # of its colour
    cells: list[_Cell]


class _Map:
    """The squares of a confusion matrix; those that would not be seen are left out."""

    def __init__(self, label: str, shares: Matrix, names: Sequence[str]) -> None:
        self.label, self.step = label, _SIDE / len(shares)
        self.squares = [
            (
                f"{column * self.step:.1f}",
                f"{row * self.step:.1f}",
                f"{share:.2f}",
                f"{names[row]} as {names[column]}: {percent_text(share)}",
            )
            for row, line in enumerate(shares.tolist())
            for column, share in enumerate(line)
            if share >= 0.005
        ]
        self.ticks = [(f"{(number + 0.5) * self.step:.1f}", name) for number, name in enumerate(names)]
        self.words = f"right answers on the diagonal: {percent_text(float(np.diag(shares).mean()))} on average"
