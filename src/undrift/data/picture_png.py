"""The PNG of a partition, drawn by matplotlib, which only the extra ``plot`` installs."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from undrift.data.picture_svg import MAX_BUBBLES, round_numbers
from undrift.data.split import Split, Table

_TEXT, _MUTED, _LINE, _GREY, _BLUE = "#1c1e21", "#5d6470", "#e4e5e3", "#a9b1bb", "#0072b2"
_COLOURS = LinearSegmentedColormap.from_list("blues", ["#ffffff", "#cfe4f3", "#6fb1dc", "#0072b2", "#00395c"])
_LETTER = 0.07  # inches
_WIDTH, _HEAD, _BARS, _ROW = 11.0, 1.0, 1.35, 0.32  # inches: picture, title, bars, a class


def png(split: Split, clients: int, heading: str, description: str) -> bytes:
    """The picture of a split among so many clients, of which it shows the first."""
    shown, rows = split.table.shape
    left = 0.65 + _LETTER * max(map(len, split.class_names), default=1)
    below = 0.6 * _LETTER * max(map(len, split.client_names), default=0) if _named(split) else 0.0
    height = _HEAD + _BARS + min(max(rows * _ROW, 2.4), 7.0) * bool(rows) + below
    figure = Figure(figsize=(_WIDTH, height), dpi=160, facecolor="white")
    figure.text(0.25 / _WIDTH, 1 - 0.4 / height, heading, fontsize=14, fontweight="bold", color=_TEXT)
    figure.text(0.25 / _WIDTH, 1 - 0.68 / height, description, fontsize=9.5, color=_MUTED)
    across = _WIDTH - left - 1.0

    def panel(low: float, high: float) -> Axes:
        """Axes between two heights, in inches from the bottom."""
        return figure.add_axes((left / _WIDTH, low / height, across / _WIDTH, (high - low) / height))

    bars = panel(height - _HEAD - _BARS + 0.75, height - _HEAD + 0.05)
    _bars(bars, split.sizes)
    lowest = bars
    if rows:
        lowest = panel(0.55 + below, height - _HEAD - _BARS + 0.55)
        (_bubbles if _bubbles_fit(shown, rows) else _heat_map)(figure, lowest, split)
        lowest.set_ylabel("class", color=_MUTED)
        bars.set_xticks([])
    if _named(split):
        lowest.set_xticks(range(shown), split.client_names, rotation=38, ha="right", rotation_mode="anchor")
    for axes in (bars, lowest):
        axes.yaxis.set_label_coords((0.32 - left) / across, 0.5)
    lowest.set_xlabel("client" if shown == clients else f"client (the first {shown:,} of {clients:,})", color=_MUTED)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _named(split: Split) -> bool:
    """Whether the names of clients, if they have some, fit below the picture."""
    return 0 < len(split.client_names) <= MAX_BUBBLES[1]


def _bubbles_fit(clients: int, classes: int) -> bool:
    return clients <= MAX_BUBBLES[0] and classes <= MAX_BUBBLES[1]


def _bars(axes: Axes, sizes: Table) -> None:
    """Samples per client."""
    _style(axes, len(sizes))
    if len(sizes) <= MAX_BUBBLES[0]:
        axes.bar(np.arange(len(sizes)), sizes, width=0.7, color=_GREY)
    else:
        axes.stairs(sizes, np.arange(len(sizes) + 1) - 0.5, fill=True, color=_GREY)
    axes.set_ylabel("samples", color=_MUTED)
    axes.yaxis.set_major_locator(MaxNLocator(2, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis="y", color=_LINE, linewidth=0.8)


def _bubbles(figure: Figure, axes: Axes, split: Split) -> None:
    """A circle per client and class, its area proportional to the samples; a legend to the right."""
    table = split.table
    clients, classes = table.shape
    _style(axes, clients)
    axes.grid(color="#f0f0ee", linewidth=0.8)
    axes.set_ylim(classes - 0.4, -0.6)
    axes.set_yticks(range(classes), split.class_names)
    owner, label = np.nonzero(table)
    # Neighbours in a row may overlap a little where there are many clients; rows may not.
    widest = 72 * min(0.95 * _ROW, 2.2 * (_WIDTH - 1.75) / clients)
    full = widest**2 / int(table.max())  # square points per sample
    area = np.maximum(table[owner, label] * full, 2.0)  # a single sample stays visible
    axes.scatter(owner, label, s=area, c=_BLUE, alpha=0.8, linewidths=0.5, edgecolors="white", clip_on=False)
    scale = [step for step in round_numbers(int(table.max())) if step]
    handles = [axes.scatter([], [], s=n * full, c=_BLUE, alpha=0.8, linewidths=0, label=f"{n:,}") for n in scale]
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.005, 1.0),
        frameon=False,
        labelspacing=1.1,
        fontsize=8.5,
        labelcolor=_MUTED,
        title="samples",
        title_fontproperties={"size": 8.5},
    ).get_title().set_color(_MUTED)


def _heat_map(figure: Figure, axes: Axes, split: Split) -> None:
    """Darker means more samples; a square-root scale keeps small counts visible."""
    table = split.table
    clients, classes = table.shape
    norm = PowerNorm(0.5, vmin=0, vmax=max(1, int(table.max())))
    image = axes.imshow(table.T, aspect="auto", cmap=_COLOURS, norm=norm, interpolation="nearest")
    _style(axes, clients)
    if classes <= MAX_BUBBLES[1]:
        axes.set_yticks(range(classes), split.class_names)
        for edge in np.arange(classes - 1) + 0.5:
            axes.axhline(edge, color=_LINE, linewidth=0.6)
    box = axes.get_position()
    bar = figure.colorbar(image, cax=figure.add_axes((box.x1 + 0.012, box.y0, 0.01, box.height)))
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(5, integer=True)
    bar.update_ticks()
    bar.ax.tick_params(labelsize=8, colors=_MUTED, length=0)
    bar.ax.set_title("samples", fontsize=8.5, color=_MUTED, loc="left", pad=6)


def _style(axes: Axes, clients: int) -> None:
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_axisbelow(True)
    axes.set_xlim(-0.75, clients - 0.25)
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True, steps=[1, 2, 5, 10]))
    axes.tick_params(colors=_MUTED, labelsize=9, length=0)
