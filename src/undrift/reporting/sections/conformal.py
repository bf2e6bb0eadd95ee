"""How large prediction sets must be to hold the true class: mean size against coverage, a curve per method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from undrift.reporting.conformal import can_be_made, frame
from undrift.reporting.figures import by_label
from undrift.reporting.record import Record
from undrift.reporting.sections.section import Section, rendered
from undrift.reporting.wording import percent_text
from undrift.statistics.conformal import Conformal

_WIDTH, _HEIGHT = 360, 260  # of the drawing, which is scaled to the page
_LEFT, _TOP, _RIGHT, _BOTTOM = 34, 8, 350, 222  # of the curves
_SHOWN = (0.8, 0.9)  # levels in the table

_NOTE = (
    "Threshold sets of the final model, calibrated on one half of the test samples and tested on the other. A level is "
    "the coverage that is aimed at; coverage is the share of sets that hold the true class. Smaller sets at the same "
    "coverage are better."
)


def conformal(records: Sequence[Record]) -> Section | None:
    if not can_be_made(records):
        return None
    table = frame(records, None, Conformal(), per_class=False)
    numbers = {label: number for number, label in enumerate(by_label(records))}
    plot = _Plot(table)
    levels = [level for level in _SHOWN if (table["level"] == level).any()]
    curves = [
        _Curve(str(label), numbers[str(label)], plot.points(rows), [_cells(rows, level) for level in levels])
        for label, rows in table.groupby("label", sort=False)
    ]
    html = rendered(
        "conformal.html",
        curves=curves,
        plot=plot,
        levels=[percent_text(level) for level in levels],
        size=(_WIDTH, _HEIGHT),
        frame=(_LEFT, _TOP, _RIGHT, _BOTTOM),
    )
    seeds = " Figures are means over seeds." if (table["seeds"] > 1).any() else ""
    return Section("Conformal prediction", html, _NOTE + seeds)


@dataclass(frozen=True)
class _Curve:
    label: str
    number: int  # of its colour
    points: list[tuple[str, str]]
    cells: list[tuple[str, str]]  # coverage and size of every level that is shown


def _cells(rows: pd.DataFrame, level: float) -> tuple[str, str]:
    row = rows[rows["level"] == level].iloc[0]
    return percent_text(row["coverage"]), f"{row['size']:.2f}"


class _Plot:
    """From coverage and size to places on the drawing."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.low = min(0.9, math.floor(10 * table["coverage"].min()) / 10)
        self.step = _step(table["size"].max())
        self.high = self.step * math.ceil(max(1.0, table["size"].max()) / self.step)

    def x(self, coverage: float) -> str:
        return f"{_LEFT + (coverage - self.low) / (1 - self.low) * (_RIGHT - _LEFT):.1f}"

    def y(self, size: float) -> str:
        return f"{_BOTTOM - size / self.high * (_BOTTOM - _TOP):.1f}"

    def points(self, rows: pd.DataFrame) -> list[tuple[str, str]]:
        return [(self.x(coverage), self.y(size)) for coverage, size in zip(rows["coverage"], rows["size"], strict=True)]

    @property
    def x_ticks(self) -> list[tuple[str, str]]:
        count = round((1 - self.low) / 0.1)
        step = 0.1 if count <= 5 else 0.2
        ticks = [1 - step * number for number in range(math.floor((1 - self.low) / step + 1e-9) + 1)]
        return [(self.x(value), f"{100 * value:.0f}%") for value in ticks]

    @property
    def y_ticks(self) -> list[tuple[str, str]]:
        return [
            (self.y(self.step * number), f"{self.step * number:g}")
            for number in range(round(self.high / self.step) + 1)
        ]


def _step(largest: float) -> float:
    """A round distance between at most six lines."""
    steps = [digit * 10.0**power for power in range(7) for digit in (0.5, 1, 2)]
    return next(step for step in steps if largest <= 5 * step)
