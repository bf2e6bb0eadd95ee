"""The picture of a partition: clients × classes, as the papers draw it, as a PNG or as a page of its own."""

from __future__ import annotations

import base64
import io
import math
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from undrift.data.federated import FederatedData
from undrift.data.heterogeneity import counts, has_classes, heterogeneity, summary

Table = np.ndarray[Any, np.dtype[np.int64]]
_INK, _SOFT, _LINE, _GREY, _BLUE = "#1c1e21", "#5d6470", "#e4e5e3", "#a9b1bb", "#0072b2"
_SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", "#cfe4f3", "#6fb1dc", "#0072b2", "#00395c"])
_WIDTH, _HEAD, _BARS, _ROW = 11.0, 1.0, 1.35, 0.32  # inches: picture, title, bars, a class
_BUBBLES = (100, 30)  # clients and classes up to which bubbles can be told apart; beyond, shades
_SHOWN = 1000  # clients; more would be thinner than a line


def draw(data: FederatedData, path: str | Path, title: str = "") -> Path:
    """Write the picture; the ending of the file, .png or .html, says as what."""
    target = Path(path)
    if target.suffix not in (".png", ".html"):
        raise ValueError(f"the picture of a partition is a .png or a .html, got {str(path)!r}")
    target.parent.mkdir(parents=True, exist_ok=True)
    heading = title or data.name or "partition"
    content = _png(data, heading) if target.suffix == ".png" else _page(data, heading).encode()
    target.write_bytes(content)
    return target


def figures_in_words(data: FederatedData) -> str:
    """The line under the title."""
    found = summary(heterogeneity(data))
    sizes = found["per_client"]["samples"]
    least, most = f"{sizes['min']:,.0f}", f"{sizes['max']:,.0f}"
    words = [
        f"{found['clients']:,} clients",
        f"{found['samples']:,} samples, {most if least == most else f'{least} to {most}'} each",
    ]
    if "classes" in found["per_client"]:
        mean = {name: values["mean"] for name, values in found["per_client"].items()}
        words += [
            f"{mean['classes']:.3g} {'class' if mean['classes'] == 1 else 'classes'} a client",
            f"Jensen–Shannon {mean['jensen_shannon']:.2f}",
            f"earth mover {mean['earth_mover']:.2f}",
        ]
    return "  ·  ".join(words)


# PNG


def _png(data: FederatedData, heading: str) -> bytes:
    shown = min(len(data), _SHOWN)
    rows = (data.classes or 0) if has_classes(data) else 0
    head = _HEAD if heading else 0.2  # a page has its own
    height = head + _BARS + min(max(rows * _ROW, 2.4), 7.0) * bool(rows)
    figure = Figure(figsize=(_WIDTH, height), dpi=160, facecolor="white")
    if heading:
        figure.text(0.25 / _WIDTH, 1 - 0.4 / height, heading, fontsize=14, fontweight="bold", color=_INK)
        figure.text(0.25 / _WIDTH, 1 - 0.68 / height, figures_in_words(data), fontsize=9.5, color=_SOFT)

    def panel(low: float, high: float) -> Axes:
        """Axes between two heights, in inches from the bottom."""
        return figure.add_axes((0.75 / _WIDTH, low / height, (_WIDTH - 1.75) / _WIDTH, (high - low) / height))

    bars = panel(height - head - _BARS + 0.75, height - head + 0.05)
    _bars(bars, data.sizes[:shown])
    lowest = bars
    if rows:
        lowest = panel(0.55, height - head - _BARS + 0.55)
        table = counts(data, 0, shown)
        (_bubbles if _few(shown, rows) else _shades)(figure, lowest, table)
        lowest.set_ylabel("class", color=_SOFT)
        bars.set_xticks([])
    for axes in (bars, lowest):
        axes.yaxis.set_label_coords(-0.43 / (_WIDTH - 1.75), 0.5)
    lowest.set_xlabel("client" if shown == len(data) else f"client (the first {shown:,} of {len(data):,})", color=_SOFT)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _few(clients: int, classes: int) -> bool:
    return clients <= _BUBBLES[0] and classes <= _BUBBLES[1]


def _bars(axes: Axes, sizes: Table) -> None:
    """Samples per client."""
    _plain(axes, len(sizes))
    if len(sizes) <= _BUBBLES[0]:
        axes.bar(np.arange(len(sizes)), sizes, width=0.7, color=_GREY)
    else:
        axes.stairs(sizes, np.arange(len(sizes) + 1) - 0.5, fill=True, color=_GREY)
    axes.set_ylabel("samples", color=_SOFT)
    axes.yaxis.set_major_locator(MaxNLocator(2, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis="y", color=_LINE, linewidth=0.8)


def _bubbles(figure: Figure, axes: Axes, table: Table) -> None:
    """Areas in proportion to the number of samples; a scale stands at the right."""
    clients, classes = table.shape
    _plain(axes, clients)
    axes.grid(color="#f0f0ee", linewidth=0.8)
    axes.set_ylim(classes - 0.4, -0.6)
    axes.set_yticks(range(classes))
    owner, label = np.nonzero(table)
    # Neighbours in a row may overlap a little where there are many clients; rows may not.
    widest = 72 * min(0.95 * _ROW, 2.2 * (_WIDTH - 1.75) / clients)
    full = widest**2 / int(table.max())  # square points per sample
    area = np.maximum(table[owner, label] * full, 2.0)  # a single sample is still a dot
    axes.scatter(owner, label, s=area, c=_BLUE, alpha=0.8, linewidths=0.5, edgecolors="white", clip_on=False)
    scale = [step for step in _round_numbers(int(table.max())) if step]
    handles = [axes.scatter([], [], s=n * full, c=_BLUE, alpha=0.8, linewidths=0, label=f"{n:,}") for n in scale]
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.005, 1.0),
        frameon=False,
        labelspacing=1.1,
        fontsize=8.5,
        labelcolor=_SOFT,
        title="samples",
        title_fontproperties={"size": 8.5},
    ).get_title().set_color(_SOFT)


def _round_numbers(most: int) -> list[int]:
    """Three numbers that are easy to read, the largest not above `most`."""
    unit = 10 ** int(math.log10(most))
    top = max(n * unit for n in (1, 2, 5) if n * unit <= most)
    return sorted({top, top // 4, top // 20})


def _shades(figure: Figure, axes: Axes, table: Table) -> None:
    """Darker means more samples; weak shades are lifted, so that a few samples can be seen."""
    clients, classes = table.shape
    norm = PowerNorm(0.5, vmin=0, vmax=max(1, int(table.max())))
    image = axes.imshow(table.T, aspect="auto", cmap=_SHADES, norm=norm, interpolation="nearest")
    _plain(axes, clients)
    if classes <= _BUBBLES[1]:
        axes.set_yticks(range(classes))
        for edge in np.arange(classes - 1) + 0.5:
            axes.axhline(edge, color=_LINE, linewidth=0.6)
    box = axes.get_position()
    bar = figure.colorbar(image, cax=figure.add_axes((box.x1 + 0.012, box.y0, 0.01, box.height)))
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(5, integer=True)
    bar.update_ticks()
    bar.ax.tick_params(labelsize=8, colors=_SOFT, length=0)
    bar.ax.set_title("samples", fontsize=8.5, color=_SOFT, loc="left", pad=6)


def _plain(axes: Axes, clients: int) -> None:
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_axisbelow(True)
    axes.set_xlim(-0.75, clients - 0.25)
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True, steps=[1, 2, 5, 10]))
    axes.tick_params(colors=_SOFT, labelsize=9, length=0)


# HTML


def _page(data: FederatedData, heading: str) -> str:
    template = resources.files("undrift.data").joinpath("picture_template.html").read_text(encoding="utf-8")
    shown = min(len(data), _SHOWN)
    drawable = has_classes(data) and _few(shown, data.classes or 0)
    parts = {
        "title": escape(heading),
        "figures": escape(figures_in_words(data)),
        "picture": _svg(counts(data, 0, shown)) if drawable else _embedded(data),
        "table": _rows(summary(heterogeneity(data))["per_client"]),
    }
    for name, text in parts.items():
        template = template.replace("{{" + name + "}}", text)
    return template


def _embedded(data: FederatedData) -> str:
    code = base64.b64encode(_png(data, "")).decode()
    return f'<img alt="Samples of every class at every client" src="data:image/png;base64,{code}">'


def _svg(table: Table) -> str:
    """Bubbles that tell their number when the pointer rests on them."""
    clients, classes = table.shape
    across, down, left, bottom = max(18.0, 900 / clients), 30.0, 36, 34
    width, height = left + across * clients + 8, down * classes + bottom
    radius = min(across, down) * 0.62
    rows = "".join(
        f'<line x1="{left}" x2="{width - 8:.0f}" y1="{y:.0f}" y2="{y:.0f}"/>'
        f'<text x="{left - 10}" y="{y + 4:.0f}" text-anchor="end">{label}</text>'
        for label in range(classes)
        for y in [down * (label + 0.5)]
    )
    every = math.ceil(clients / 25)
    ticks = "".join(
        f'<text x="{left + across * (i + 0.5):.1f}" y="{height - 12:.0f}" text-anchor="middle">{i}</text>'
        for i in range(0, clients, every)
    )
    marks = "".join(
        f'<circle cx="{left + across * (i + 0.5):.1f}" cy="{down * (label + 0.5):.1f}" '
        f'r="{radius * math.sqrt(table[i, label] / table.max()):.2f}">'
        f"<title>client {i}, class {label}: {table[i, label]:,} samples</title></circle>"
        for i, label in zip(*map(np.ndarray.tolist, np.nonzero(table)), strict=True)
    )
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="Samples of every class at every client">'
        f'<g class="grid">{rows}{ticks}</g><g class="marks">{marks}</g></svg>'
    )


def _rows(per_client: dict[str, dict[str, float]]) -> str:
    names = {
        "samples": "Samples",
        "classes": "Classes",
        "entropy": "Entropy of labels (bits)",
        "jensen_shannon": "Jensen–Shannon distance to the whole",
        "earth_mover": "Earth mover’s distance to the whole",
    }
    return "".join(
        f"<tr><th scope=row>{names[name]}</th>"
        + "".join(f"<td>{value:,.{0 if name == 'samples' else 2}f}</td>" for value in values.values())
        + "</tr>"
        for name, values in per_client.items()
    )
