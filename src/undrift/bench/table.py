"""Results in a table."""

from __future__ import annotations

import math

from rich import box
from rich.table import Table
from rich.text import Text

from undrift.bench.results import Results, Row
from undrift.bench.works import WORKS

_MISSING = "–"


def table(results: Results) -> Table:
    rows = results.rows()
    on_gpu = any(row.device_bytes is not None for row in rows)
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("Work", "System", "Runs as"):
        out.add_column(heading, no_wrap=True)
    numbers = ["s/round", "from – to", "Faster", "Start-up", "Memory", *(["On GPU"] if on_gpu else []), "Accuracy"]
    for heading in numbers:
        out.add_column(heading, justify="right", no_wrap=True)
    before = ""
    for row in rows:
        if before and row.work != before:
            out.add_section()
        first = row.work if row.work != before else ""
        best = row.seconds is not None and row.seconds == min(r.seconds or 1e9 for r in rows if r.work == row.work)
        cells = [first, row.label, row.setup, *figures(row, on_gpu)]
        out.add_row(*(Text(cell, style="bold" if best and cell != first else "") for cell in cells))
        before = row.work
    return out


def figures(row: Row, on_gpu: bool = False) -> list[str]:
    spread = _MISSING
    if row.fastest is not None and row.slowest is not None:
        spread = f"{seconds(row.fastest)} – {seconds(row.slowest)}"
    return [
        seconds(row.seconds),
        spread,
        _MISSING if row.ratio is None else f"{row.ratio:.2f}×",
        _MISSING if row.startup is None else f"{max(row.startup, 0):.1f} s",
        _size(row.peak_bytes),
        *([_size(row.device_bytes)] if on_gpu else []),
        _MISSING if row.accuracy is None else f"{100 * row.accuracy:.1f} %",
    ]


def seconds(value: float | None) -> str:
    """Three figures, and no powers of ten."""
    return _MISSING if value is None else f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def notes(results: Results) -> list[str]:
    """What the table leaves open: the works, the versions, who is missing and why."""
    told = [
        f"{name}: {WORKS[name].title}; {WORKS[name].clients} clients × {WORKS[name].samples}, {WORKS[name].cohort} a "
        f"round, batches of {WORKS[name].batch_size}, learning rate {WORKS[name].lr}; {how['rounds']} rounds after "
        f"{how['warm_up']} to warm up" + ("; generated samples" if how["data"] == "generated" else "")
        for name, how in results.works.items()
    ]
    place = results.machine["gpu"] or results.machine["processor"]
    told.append(f"{place}, {results.machine['cores']} cores, {results.date}; {_versions(results)}")
    told += [f"{row.label} ({row.setup}) on {row.work}: {row.why}" for row in results.rows() if row.why]
    return told


def _versions(results: Results) -> str:
    found: dict[str, str] = {}
    for each in results.measurements:
        found |= each.versions
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _size(value: float | None) -> str:
    if value is None:
        return _MISSING
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"
