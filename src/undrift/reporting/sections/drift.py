"""Drift: every diagnostic over rounds, and by layer at the end of training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from undrift.reporting.colours import Colour, colours_of
from undrift.reporting.drift import Curve, Panel, columns_of, panels
from undrift.reporting.record import Record
from undrift.reporting.sections.section import Section, rendered

_WIDTH, _HEIGHT = 460, 210  # of a chart, in units of its drawing
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 8, 40
_LOG = 20  # times the smallest value: from there on the scale is logarithmic
_MOST_NAMES, _LONGEST = 8, 9  # layers that are named, and letters of a name


def drift(records: Sequence[Record]) -> Section | None:
    if not columns_of(records):
        return None
    styles = {label: _style(number, colour) for number, (label, colour) in enumerate(colours_of(records).items())}
    charts = [chart for panel in panels(records) for chart in _charts(panel, styles)]
    html = rendered("drift.html", styles=styles, charts=charts)
    note = (
        "By layer: the mean over the last tenth of the rounds. Means over seeds; runs that failed are left out. "
        "Definitions: docs/diagnostics.md."
    )
    return Section("Drift", html, note)


def _charts(panel: Panel, styles: dict[str, str]) -> list[_Chart]:
    names = [name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}" for name in panel.layers]
    every = math.ceil(len(names) / _MOST_NAMES)
    layers = [(float(number), name) for number, name in enumerate(names, 1) if (number - 1) % every == 0]
    charts = [_Chart(panel.title, "Round", panel.over_rounds, styles)]
    if len(layers) > 1:
        charts.append(_Chart(f"{panel.title}, by layer", "Layer", panel.by_layer, styles, layers))
    return [chart for chart in charts if chart.curves]


@dataclass(frozen=True)
class _Chart:
    """Coordinates of a line chart; points are marked where they are few."""

    title: str
    axis: str
    curves: list[Curve]
    styles: dict[str, str]  # of the labels
    names: Sequence[tuple[float, str]] = ()  # ticks of the horizontal axis that have names

    width, height, left, top = _WIDTH, _HEIGHT, _LEFT, _TOP
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    @cached_property
    def log(self) -> bool:
        values = [y for curve in self.curves for y in curve.y]
        return min(values) > 0 and max(values) > _LOG * min(values)

    @cached_property
    def _span(self) -> tuple[float, float]:
        values = [self._height(y) for curve in self.curves for y in curve.y]
        low, high = min(values), max(values)
        margin = 0.06 * (high - low) or abs(high) / 2 or 1.0
        return low - margin, high + margin

    def _height(self, value: float) -> float:
        return math.log10(value) if self.log else value

    @cached_property
    def _reach(self) -> tuple[float, float]:
        places = [x for curve in self.curves for x in curve.x] + [x for x, _ in self.names]
        low, high = min(places), max(places)
        return (low, high) if low < high else (low - 1, high + 1)

    def x(self, value: float) -> float:
        low, high = self._reach
        inset = 22 if self.names else 0  # so that names are whole
        return round(_LEFT + inset + (value - low) / (high - low) * (_WIDTH - _RIGHT - _LEFT - 2 * inset), 1)

    def y(self, value: float) -> float:
        low, high = self._span
        share = (self._height(value) - low) / (high - low)
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP), 1)

    @property
    def columns(self) -> list[tuple[float, str]]:
        """Ticks of the horizontal axis."""
        if self.names:
            return [(self.x(place), name) for place, name in self.names]
        return [(self.x(value), f"{value:g}") for value in _round_numbers(*self._reach) if value == int(value)]

    @property
    def rows(self) -> list[tuple[float, str]]:
        """Ticks of the vertical axis."""
        low, high = self._span
        values = _decades(low, high) if self.log else _round_numbers(low, high)
        return [(self.y(value), f"{value:.3g}") for value in values]

    @property
    def lines(self) -> list[tuple[str, str, list[tuple[float, float]]]]:
        """Of every curve the style, the line, and its points where they are few."""
        found = []
        for curve in self.curves:
            points = [(self.x(x), self.y(y)) for x, y in zip(curve.x, curve.y, strict=True)]
            line = " ".join(f"{x:g},{y:g}" for x, y in points)
            found.append((self.styles[curve.label], line, points if self.names or len(points) == 1 else []))
        return found

    @property
    def description(self) -> str:
        """For screen readers."""
        ends = "; ".join(f"{curve.label} ends at {curve.y[-1]:.3g}" for curve in self.curves)
        return f"{self.title} as a line chart: {ends}."


def _style(number: int, colour: Colour) -> str:
    """Of a label's lines, in the colour that the page gives it."""
    return f"--c:var(--s{number});--dashes:{'5 3' if colour.dashed else 'none'}"


def _round_numbers(low: float, high: float, most: int = 5) -> list[float]:
    """At most so many numbers in an interval, at equal steps of 1, 2 or 5 times a power of ten."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= most)
    return [round(number * step, 12) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _decades(low: float, high: float) -> list[float]:
    powers = range(math.ceil(low), math.floor(high) + 1)
    return [10.0**power for power in powers][:: max(1, math.ceil(len(powers) / 5))]
