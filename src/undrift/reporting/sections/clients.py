"""How evenly the methods serve clients: the accuracy of every client, where ``metrics=["fairness"]`` was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from undrift.reporting.figures import by_label, final_of
from undrift.reporting.record import Record, column
from undrift.reporting.sections.section import Section, rendered
from undrift.reporting.wording import number_text, percent_text

MOST_DOTS = 300  # of a method; of more clients, evenly spaced ones of their order
Figures = np.ndarray[Any, np.dtype[np.float64]]

_COLUMNS = {
    "client_accuracy_mean": "Mean",
    "client_accuracy_std": "Std. dev.",
    "client_accuracy_worst": "Worst",
    "client_accuracy_worst_tenth": "Worst tenth",
    "client_accuracy_best": "Best",
    "client_accuracy_gap": "Best − worst",
    "client_accuracy_jain": "Jain’s index",
}


def clients(records: Sequence[Record]) -> Section | None:
    """A strip per method with a dot per client and seed, a box over the middle half, and the figures below."""
    groups = by_label(records)
    spreads = {label: _accuracies(runs) for label, runs in groups.items()}
    if not any(len(spread) for spread in spreads.values()):
        return None
    low = min(0.9, math.floor(10 * min(spread[0] for spread in spreads.values() if len(spread))) / 10)
    rows = [
        _Row(label, number, _strip(spreads[label], low), [_cell(name, runs) for name in _COLUMNS])
        for number, (label, runs) in enumerate(groups.items())
    ]
    ticks = [(100 * (value - low) / (1 - low), percent_text(value)) for value in np.linspace(low, 1, 5)]
    html = rendered("clients.html", rows=rows, ticks=ticks, headings=list(_COLUMNS.values()))
    return Section("Clients", html, _note(records))


def _note(records: Sequence[Record]) -> str:
    note = (
        "A dot is the accuracy of a client with the model it would use, on its own test samples or, without these, on "
        "those of its classes, in the last evaluated round. Boxes hold the middle half of the clients, the bar is the "
        "median. Every client counts once. Jain’s index is 1 where all clients are equal."
    )
    return note + (" Figures are means over seeds, ± is the standard deviation." if _has_seeds(records) else "")


def _has_seeds(records: Sequence[Record]) -> bool:
    return len(by_label(records)) < len(records)


@dataclass(frozen=True)
class _Strip:
    """Of one method, all in per cent of the width."""

    dots: list[tuple[str, str]]  # from the left, from the top
    box: tuple[str, str]  # from the left, how wide
    median: str
    words: str


@dataclass(frozen=True)
class _Row:
    label: str
    number: int  # of its colour
    strip: _Strip | None
    cells: list[str]


def _accuracies(runs: Sequence[Record]) -> Figures:
    """Of all clients and seeds that are known."""
    found = [run.detail["client_accuracy"] for run in runs if run.detail and "client_accuracy" in run.detail]
    values = np.array([math.nan if value is None else value for each in found for value in each], dtype=np.float64)
    return np.sort(values[np.isfinite(values)])


def _strip(values: Figures, low: float) -> _Strip | None:
    if not len(values):
        return None
    lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75])
    shown = values[np.linspace(0, len(values) - 1, min(len(values), MOST_DOTS)).round().astype(int)]
    places = 15 + 70 * (np.arange(len(shown)) * 0.618034 % 1)  # so that equal accuracies are seen beside each other

    def place(value: float) -> str:
        return f"{100 * (value - low) / (1 - low):.2f}%"

    return _Strip(
        dots=[(place(value), f"{top:.0f}%") for value, top in zip(shown.tolist(), places.tolist(), strict=True)],
        box=(place(lower), f"{100 * (upper - lower) / (1 - low):.2f}%"),
        median=place(median),
        words=f"from {percent_text(values[0])} to {percent_text(values[-1])}, median {percent_text(median)}",
    )


def _cell(name: str, runs: Sequence[Record]) -> str:
    final = final_of(runs, name)
    return percent_text(final.mean, final.std) if column(name).percent else number_text(final.mean)
