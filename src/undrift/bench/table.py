"""Results in a table."""

from __future__ import annotations

import math
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from undrift.bench.results import Results, Row
from undrift.bench.workloads import WORKLOADS, Workload

_MISSING = "–"
_WIDE = 108  # width of a terminal that fits all columns of the table


def table(results: Results, width: int) -> Table:
    """A row for every system; on a narrow terminal without the spread and the memory."""
    rows = results.rows()
    on_gpu = any(row.device_bytes is not None for row in rows)
    hidden = {"from – to", "Memory"} if width < _WIDE else set()
    hidden |= set() if on_gpu else {"On GPU"}
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("Work", "System", "Runs as"):
        out.add_column(heading, no_wrap=True)
    for heading in (heading for heading in figures(rows[0]) if heading not in hidden):
        out.add_column(heading, justify="right", no_wrap=True)
    for row, before in zip(rows, [None, *rows], strict=False):
        first = before is None or before.work != row.work
        if first and before is not None:
            out.add_section()
        shown = [text for heading, text in figures(row).items() if heading not in hidden]
        fastest = min(other.seconds or math.inf for other in rows if other.work == row.work)
        style = "bold" if row.seconds == fastest else ""
        out.add_row(row.work if first else "", *(Text(text, style=style) for text in (row.label, row.setup, *shown)))
    return out


def figures(row: Row) -> dict[str, str]:
    """The texts of a row, by column heading."""
    spread = row.fastest is not None and row.slowest is not None
    return {
        "s/round": seconds(row.seconds),
        "from – to": f"{seconds(row.fastest)} – {seconds(row.slowest)}" if spread else _MISSING,
        "Faster": times(row.ratio),
        "Start-up": _MISSING if row.startup is None else f"{max(row.startup, 0):.1f} s",
        "Memory": _size(row.peak_bytes),
        "On GPU": _size(row.device_bytes),
        "Accuracy": _MISSING if row.accuracy is None else f"{100 * row.accuracy:.1f} %",
    }


def seconds(value: float | None) -> str:
    """Three significant digits, without an exponent."""
    return _MISSING if value is None else f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def times(ratio: float | None) -> str:
    return _MISSING if ratio is None else f"{ratio:.2f}×"


def notes(results: Results) -> list[str]:
    """What the table does not show: workloads, versions, and why systems are missing."""
    lines = [_describe(WORKLOADS[name], how) for name, how in results.works.items()]
    hardware = results.machine["gpu"] or results.machine["processor"]
    lines.append(f"{hardware}, {results.machine['cores']} cores, {results.date}; {_versions(results)}")
    lines += [f"{row.label} ({row.setup}) on {row.work}: {row.why}" for row in results.rows() if row.why]
    return lines


def _describe(work: Workload, how: dict[str, Any]) -> str:
    return (
        f"{work.name}: {work.title}; {work.clients} clients × {work.samples}, {work.cohort} per round, batches of "
        f"{work.batch_size}, learning rate {work.lr}; {how['rounds']} rounds after {how['warm_up']} of warm-up"
        + ("; random samples" if how["data"] == "generated" else "")
    )


def _versions(results: Results) -> str:
    found: dict[str, str] = {}
    for each in results.measurements:
        found |= each.versions
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _size(value: float | None) -> str:
    if value is None:
        return _MISSING
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"
