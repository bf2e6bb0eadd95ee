"""Drift diagnostics as a picture for papers, drawn by matplotlib, which only the extra ``plot`` installs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from undrift.core.check import shown
from undrift.core.extras import needs
from undrift.reporting.colours import Colour, colours_of
from undrift.reporting.drift import Curve, Panel, panels
from undrift.reporting.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".png", ".pdf")
_MOST_NAMES = 12  # layers that are named


def rendered(records: Sequence[Record], suffix: str, columns: Sequence[str] | None = None) -> bytes:
    """The content of a file: a row for each of the columns, over rounds, and by layer at the end of training."""
    if suffix not in SUFFIXES:
        raise ValueError(f"a picture ends in {', '.join(SUFFIXES)}, got {shown(suffix)}")
    drawn = panels(records, columns)
    with needs("plot"):
        import matplotlib as mpl
        from matplotlib.figure import Figure

    colours = colours_of(records)
    figure = Figure(figsize=(9.6, 2.9 * len(drawn)), layout="constrained")
    grid = figure.subplots(len(drawn), 2, squeeze=False)
    for (left, right), panel in zip(grid, drawn, strict=True):
        _lines(left, panel.over_rounds, colours, "Round", marker="")
        left.xaxis.get_major_locator().set_params(integer=True)
        left.set_title(panel.title, loc="left", fontsize="medium")
        _lines(right, panel.by_layer, colours, "Layer", marker="o")
        right.set_title(f"{panel.title}, by layer", loc="left", fontsize="medium")
        _name_layers(right, panel)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
    buffer = io.BytesIO()
    form = suffix.removeprefix(".")
    date = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[form]
    with mpl.rc_context(
        {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "undrift"}
    ):  # letters stay letters
        figure.savefig(buffer, format=form, dpi=200, metadata=date)
    return buffer.getvalue()


def _lines(axes: Axes, curves: Sequence[Curve], colours: dict[str, Colour], axis: str, marker: str) -> None:
    for curve in curves:
        colour = colours[curve.label]
        dashes = "--" if colour.dashed else "-"
        axes.plot(curve.x, curve.y, dashes, color=colour.light, label=curve.label, marker=marker, markersize=4)
    values = [y for curve in curves for y in curve.y]
    if values and min(values) > 0 and max(values) > 20 * min(values):
        axes.set_yscale("log")
    axes.set_xlabel(axis)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.4)


def _name_layers(axes: Axes, panel: Panel) -> None:
    every = -(-len(panel.layers) // _MOST_NAMES)
    ticks = range(1, len(panel.layers) + 1, every) if panel.layers else ()
    longest = max(map(len, panel.layers), default=0)
    axes.set_xticks(list(ticks), [panel.layers[tick - 1] for tick in ticks], rotation=30 if longest > 4 else 0)
