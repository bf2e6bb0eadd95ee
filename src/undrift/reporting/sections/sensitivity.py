"""How the accuracy depends on the one setting in which runs differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undrift.reporting.colours import Colour, hue
from undrift.reporting.figures import apart
from undrift.reporting.record import Record
from undrift.reporting.sections.section import Section, rendered
from undrift.reporting.sensitivity import Line, Point, Sensitivity, sensitivity_of, value_text
from undrift.reporting.wording import percent_text

if TYPE_CHECKING:
    from markupsafe import Markup

NOTE = "Points are means over seeds, bands reach from the lowest to the highest seed; seeds that failed are left out."
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 16, 12, 44  # margins, in pixels
_WIDTH, _HEIGHT = 560, 260  # of the plot


def accuracy_against(records: Sequence[Record]) -> Section | None:
    """Of a tuning's trials, the choices show it."""
    found = None if any(record.trial for record in records) else sensitivity_of(apart(records)[0])
    return None if found is None else Section(f"Accuracy against {found.key}", picture(found), NOTE)


def accuracy_across(tasks: Sequence[Sequence[Record]]) -> Section | None:
    """The same for a setting whose values make different tasks."""
    return accuracy_against([record for task in tasks for record in task])


def picture(found: Sensitivity) -> Markup:
    """The drawing and its legend as HTML."""
    return rendered("sensitivity.html", picture=_Picture(found))


@dataclass(frozen=True)
class _Mark:
    x: str
    y: str
    text: str


@dataclass(frozen=True)
class _Curve:
    number: int
    label: str
    colour: Colour
    line: str  # the points of a polyline
    band: str  # of a polygon
    marks: tuple[_Mark, ...]


class _Picture:
    """Coordinates of the drawing."""

    width, height = _LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM
    left, right, top, bottom = _LEFT, _LEFT + _WIDTH, _TOP, _TOP + _HEIGHT

    def __init__(self, found: Sensitivity) -> None:
        self.found = found
        places = [found.place(value) for value in found.values]
        self._first, self._span = places[0], (places[-1] - places[0]) or 1.0
        known = [each for line in found.lines for p in line.points for each in p.accuracies]
        low, high = min(known), max(known)
        step = next(size for size in (0.01, 0.02, 0.05, 0.1, 0.2) if high - low <= 5 * size or size == 0.2)
        self._low = max(0.0, math.floor(low / step) * step)
        self._high = min(1.0, max(math.ceil(high / step) * step, self._low + step))
        self._step = step

    @property
    def key(self) -> str:
        return self.found.key

    @property
    def quantity(self) -> str:
        return self.found.quantity

    @property
    def description(self) -> str:
        """For screen readers."""
        best = [
            f"{line.label} is best at {value_text(top.value)} with {percent_text(top.mean)}"
            for line in self.found.lines
            if not line.constant and (top := max(line.points, key=_mean)).accuracies
        ]
        return f"{self.quantity} against {self.key}: {'; '.join(best)}."

    @property
    def ticks(self) -> list[tuple[str, str]]:
        return [(self._x(value), value_text(value)) for value in self.found.values]

    @property
    def levels(self) -> list[tuple[str, str]]:
        count = round((self._high - self._low) / self._step)
        levels = [self._low + number * self._step for number in range(count + 1)]
        return [(self._y(level), f"{100 * level:.0f}%") for level in levels if level <= 1 + 1e-9]

    def _x(self, value: object) -> str:
        inset = 0.04 * _WIDTH
        return f"{_LEFT + inset + (self.found.place(value) - self._first) / self._span * (_WIDTH - 2 * inset):.1f}"

    def _y(self, share: float) -> str:
        return f"{_TOP + _HEIGHT * (1 - (share - self._low) / (self._high - self._low)):.1f}"

    @property
    def curves(self) -> list[_Curve]:
        return [self._curve(line) for line in self.found.lines]

    def _curve(self, line: Line) -> _Curve:
        known = [point for point in line.points if point.accuracies]
        if line.constant:
            ends = [f"{x},{self._y(point.mean)}" for point in known for x in (self.left, self.right)]
            return _Curve(line.number, line.label, hue(line.number), " ".join(ends), "", ())
        points = sorted(known, key=lambda point: self.found.place(point.value))
        upper = [f"{self._x(p.value)},{self._y(p.high)}" for p in points]
        lower = [f"{self._x(p.value)},{self._y(p.low)}" for p in reversed(points)]
        return _Curve(
            line.number,
            line.label,
            hue(line.number),
            " ".join(f"{self._x(p.value)},{self._y(p.mean)}" for p in points),
            " ".join([*upper, *lower]),
            tuple(_Mark(self._x(p.value), self._y(p.mean), self._said(line, p)) for p in points),
        )

    def _said(self, line: Line, point: Point) -> str:
        several = f" ({percent_text(point.low)} to {percent_text(point.high)})" if len(point.accuracies) > 1 else ""
        return f"{line.label}, {self.key} {value_text(point.value)}: {percent_text(point.mean)}{several}"


def _mean(point: Point) -> float:
    return point.mean if point.accuracies else -1.0
