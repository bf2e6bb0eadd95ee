"""The picture as PNG or PDF, drawn by matplotlib, which only the extra ``plot`` installs. It looks like the SVG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse, FancyBboxPatch, Polygon
from matplotlib.transforms import Affine2D

from undrift.reporting.colours import Colour
from undrift.two_clients.drawing import HEIGHT, STRIP, WIDTH, Entry, Layout, Panel
from undrift.two_clients.drawing import Ellipse as Contour
from undrift.two_clients.problem import Array

_INK, _SOFT, _LINE, _LAND = "#1c1e21", "#5d6470", "#dcdedc", "#3d5a80"
_PIXEL = 0.72  # points
_DPI = 220


def drawn(
    form: str,
    *,
    title: str,
    subtitle: str,
    panels: Sequence[Panel],
    layout: Layout,
    colours: Mapping[str, Any],
) -> bytes:
    """The picture in the form "png" or "pdf"."""
    figure = Figure(figsize=(layout.width / 100, layout.height / 100), dpi=_DPI, facecolor="white")
    sheet = _Sheet(figure.add_axes((0, 0, 1, 1)), colours["clients"], colours["optimum"])
    sheet.axes.set(xlim=(0, layout.width), ylim=(layout.height, 0))
    sheet.axes.axis("off")
    sheet.text(layout.margin, 38, title, 19, bold=True)
    sheet.text(layout.margin, 60, subtitle, 12.5, colour=_SOFT)
    for entry in layout.legend:
        sheet.sample(entry)
    for panel, place in zip(panels, layout.places, strict=True):
        sheet.moved(*place).panel(panel, layout)
    buffer = io.BytesIO()
    with mpl.rc_context({"pdf.fonttype": 42}):  # letters stay letters
        figure.savefig(buffer, format=form, metadata={"CreationDate": None} if form == "pdf" else None)
    return buffer.getvalue()


class _Sheet:
    """Draws in pixels from a corner."""

    def __init__(
        self, axes: Axes, clients: Sequence[Colour], optimum: Colour, corner: tuple[float, float] = (0, 0)
    ) -> None:
        self.axes, self.clients, self.optimum, self.corner = axes, clients, optimum, corner
        self.at = Affine2D().translate(*corner) + axes.transData

    def moved(self, x: float, y: float) -> _Sheet:
        return _Sheet(self.axes, self.clients, self.optimum, (self.corner[0] + x, self.corner[1] + y))

    def text(
        self, x: float, y: float, text: str, size: float, *, colour: str = _INK, bold: bool = False, **how: Any
    ) -> None:
        weight = "bold" if bold else "normal"
        text = text.replace("$", r"\$")  # no formula
        self.axes.text(x, y, text, transform=self.at, fontsize=size * _PIXEL, color=colour, fontweight=weight, **how)

    def line(self, points: Array | Sequence[Sequence[float]], colour: str, width: float, **how: Any) -> Line2D:
        xs, ys = zip(*points, strict=True)
        style = {"solid_capstyle": "round", "solid_joinstyle": "round"} | how
        line = Line2D(xs, ys, transform=self.at, color=colour, linewidth=width * _PIXEL, **style)
        self.axes.add_line(line)
        return line

    def dot(self, point: Sequence[float] | Array, marker: str, size: float, **how: Any) -> Line2D:
        """A mark of so many pixels."""
        line = Line2D(*([value] for value in point), transform=self.at, marker=marker, markersize=size * _PIXEL, **how)
        self.axes.add_line(line)
        return line

    def contours(self, contours: Sequence[Contour], **how: Any) -> list[Ellipse]:
        shapes = [
            Ellipse((e.x, e.y), 2 * e.long, 2 * e.short, angle=e.degrees, transform=self.at, **how) for e in contours
        ]
        for shape in shapes:
            self.axes.add_patch(shape)
        return shapes

    def goal(self, point: Sequence[float] | Array, colour: str) -> Line2D:
        return self.dot(point, "x", 10, markeredgecolor=colour, markeredgewidth=2.6 * _PIXEL)

    def star(self, point: Sequence[float] | Array) -> Line2D:
        colour = self.optimum.light
        return self.dot(point, "*", 25, markerfacecolor=colour, markeredgecolor="white", markeredgewidth=0.8)

    def server(self, points: Array | Sequence[Sequence[float]]) -> list[Line2D]:
        ring = {"markerfacecolor": "white", "markeredgecolor": _INK, "markeredgewidth": 2 * _PIXEL}
        full = {"markerfacecolor": _INK, "markeredgecolor": "white", "markeredgewidth": 1.5 * _PIXEL}
        return [
            self.line(points, _INK, 2.2, marker="o", markersize=4.6 * _PIXEL, markeredgewidth=0),
            self.dot(points[0], "o", 9, **ring),
            self.dot(points[-1], "o", 8.4, **full),
        ]

    def sample(self, entry: Entry) -> None:
        """An entry of the legend."""
        here = self.moved(entry.x, entry.y)
        if entry.kind == "local":
            here.line([(1, 0), (26, 0)], self.clients[entry.client - 1].light, 1.35)
        elif entry.kind == "server":
            here.server([(5, 0), (16, 0), (29, 0)])
        elif entry.kind == "optimum":
            here.star((11, 0))
        else:
            here.goal((6, 0), _SOFT)
        here.text(entry.indent, 4.5, entry.text, 12.5, colour=_SOFT)

    def panel(self, panel: Panel, layout: Layout) -> None:
        shape = "round,pad=0,rounding_size=7"
        frame = FancyBboxPatch(
            (0, 0), WIDTH, HEIGHT, shape, transform=self.at, facecolor="none", edgecolor=_LINE, lw=0.8
        )
        inside: list[Any] = self.contours(panel.mean_contours, fc=(_LAND, 0.032), ec=(_LAND, 0.2), lw=0.6)
        for contours, colour in zip(panel.client_contours, self.clients, strict=True):
            inside += self.contours(contours, fill=False, ec=(colour.light, 0.35), ls=(0, (1.5, 4)), lw=0.8)
        for lines, colour in zip(panel.clients, self.clients, strict=True):
            inside += [self.line(line, colour.light, 1.35, alpha=0.8) for line in lines]
        inside.append(self.star(panel.optimum))
        inside += [self.goal(goal, colour.light) for goal, colour in zip(panel.optima, self.clients, strict=True)]
        inside += self.server(panel.server)
        self.axes.add_patch(frame)
        for artist in inside:
            artist.set_clip_path(frame)
        self.text(1, -11, panel.title, 15, bold=True)
        self.text(1, HEIGHT + 21, panel.caption, 12.5)
        self.moved(0, layout.strip_top).strip(panel)

    def strip(self, panel: Panel) -> None:
        under = [(0, STRIP), *panel.strip.tolist(), (WIDTH, STRIP)]
        self.axes.add_patch(Polygon(under, transform=self.at, facecolor=_LAND, alpha=0.07, lw=0))
        self.line([(0, STRIP), (WIDTH, STRIP)], "#c9ccd1", 1)
        self.line(panel.strip, _INK, 1.5)
        self.text(1, STRIP + 14, "start", 10.5, colour=_SOFT)
        self.text(WIDTH / 2, STRIP + 14, "distance by round", 10.5, colour=_SOFT, ha="center")
        self.text(WIDTH - 1, STRIP + 14, f"round {panel.paths.rounds}", 10.5, colour=_SOFT, ha="right")
