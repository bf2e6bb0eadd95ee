"""Results as bars, readable on light and dark pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undrift.bench.results import Results, Row
from undrift.bench.systems import OURS
from undrift.bench.table import seconds, times
from undrift.bench.workloads import WORKLOADS
from undrift.core import check
from undrift.core.extras import needs

_OURS, _OTHERS, _TEXT = "#1a7fc1", "#8a8f98", "#6e7781"  # readable on light and dark pages
_BAR, _HEAD = 0.27, 0.55  # inches of height for a system, and for the rest of a panel


def check_name(file: Path) -> None:
    check.choice("--chart: the ending", file.suffix.lower(), (".svg", ".png", ".pdf"))


def draw(results: Results, file: Path) -> Path:
    """A panel for every workload, a bar for every system; shorter is faster."""
    with needs("plot"):
        import matplotlib as mpl
        from matplotlib.figure import Figure

    check_name(file)
    measured = [row for row in results.rows() if row.seconds is not None]
    if not measured:
        raise ValueError("there is nothing to draw: no system was measured")
    names = list(dict.fromkeys(row.work for row in measured))
    panels = [sorted((r for r in measured if r.work == name), key=lambda r: r.seconds or 0) for name in names]
    heights = [_HEAD + _BAR * len(panel) for panel in panels]
    style: dict[Any, Any] = {
        "font.family": "sans-serif",
        "font.size": 9,
        "svg.hashsalt": "undrift",
        "svg.fonttype": "path",
    }
    with mpl.rc_context(style | {"text.color": _TEXT, "ytick.color": _TEXT}):
        figure = Figure(figsize=(7.6, _HEAD / 2 + sum(heights)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, panel in zip(axes, panels, strict=True):
            _panel(axis, panel)
        figure.supxlabel("seconds per round, and speed relative to the plain loop", fontsize=9)
        file.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if file.suffix.lower() == ".svg" else None
        figure.savefig(file, metadata=metadata, transparent=True)
    return file


def _panel(axes: object, rows: list[Row]) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    lengths = [row.seconds or 0 for row in rows]
    labels = [f"{row.label}, {row.setup}" for row in rows]
    colours = [_OURS if row.system in OURS else _OTHERS for row in rows]
    axes.barh(labels, lengths, color=colours, height=0.72)
    for position, row in enumerate(rows):
        speed = "" if row.ratio is None or row.system == "plain" else f"   {times(row.ratio)}"
        ours = row.system in OURS
        axes.annotate(
            f"{seconds(row.seconds)} s{speed}",
            (row.seconds or 0, position),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=_OURS if ours else _TEXT,
            fontweight="bold" if ours else "normal",
        )
    axes.invert_yaxis()
    axes.set_xlim(0, max(lengths) * 1.18)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.spines[:].set_visible(False)
    workload = WORKLOADS[rows[0].work]
    axes.set_title(f"{workload.name}: {workload.title}", loc="left", fontsize=10, fontweight="bold")
