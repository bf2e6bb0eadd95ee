"""A partition as SVG: bars of the clients' sizes above their classes, for the data page and, small, for reports.

The names of the classes are a drawing of their own, which stays in sight while the other one is scrolled on a phone.
"""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass

import numpy as np

from undrift.data.split import Split

MAX_BUBBLES = (100, 30)  # clients and classes up to which bubbles are legible; beyond, a heat map
_MARK = (0, 114, 178)  # a heat map's colour, which shows on light and on dark pages
_LONGEST = 16  # letters of a name
_TOP, _GAP = 6, 10  # above the bars; between them and the classes


@dataclass(frozen=True)
class Size:
    """Of a picture, in pixels."""

    width: int  # of the clients
    widest: int  # a client
    row: int  # a class
    bars: int
    heat_map: int  # most
    font: int


LARGE = Size(width=900, widest=48, row=28, bars=64, heat_map=480, font=12)
SMALL = Size(width=360, widest=32, row=13, bars=30, heat_map=150, font=10)


def svg(split: Split, size: Size, *, hover: bool = True) -> str:
    """The picture as HTML: two SVGs side by side, and a legend below. `hover` names every bubble."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(loader=PackageLoader("undrift.data", "."), autoescape=True, undefined=StrictUndefined)
    picture = _Picture(split, size, hover)
    return pages.get_template("picture_svg.html").render(picture=picture)


@dataclass(frozen=True)
class _Mark:
    """A bar or a bubble, and what is said of it on hover."""

    x: str
    y: str
    extent: str  # height or radius
    text: str


class _Picture:
    """Coordinates of the drawings."""

    def __init__(self, split: Split, size: Size, hover: bool) -> None:
        self.split, self.size, self.hover = split, size, hover
        self.shown, self.sizes, self.table, self.names = split.shown, split.sizes, split.table, split.class_names
        self.across = min(size.widest, size.width / self.shown)
        classes = self.table.shape[1]
        self.bubbles = self.shown <= MAX_BUBBLES[0] and classes <= MAX_BUBBLES[1]
        self.down = float(size.row) if classes <= MAX_BUBBLES[1] else size.heat_map / classes
        # Neighbours in a row may overlap a little where there are many clients; rows may not.
        self.largest_radius = min(0.47 * self.down, 1.1 * self.across)
        self.margin = max(2.0, self.largest_radius - self.across / 2 + 1)  # so that the outermost bubbles are whole
        longest = min(_LONGEST, max(map(len, split.client_names), default=0))
        # Names of clients are slanted where they are wider than a client, and numbers instead where they do not fit.
        self.named = longest > 0 and self.across >= 1.2 * size.font
        self.slanted = self.named and _width(longest, size.font) > self.across
        slanted = _width(longest, size.font) if self.slanted else 0.0
        self.clients_width = round(self.across * self.shown + 2 * self.margin)
        self.plot_width = max(
            round(self.clients_width + 0.8 * slanted - self.across / 2), self.clients_width, 12 * size.font
        )
        self.matrix_top = _TOP + size.bars + _GAP
        self.matrix_height = round(self.down * classes)
        self.bottom = self.matrix_top + self.matrix_height if classes else _TOP + size.bars
        self.axis_y = self.bottom + round(2.6 * size.font + 0.6 * slanted)
        self.height = self.axis_y + round(0.4 * size.font)

    # the drawing of the names

    @property
    def names_width(self) -> int:
        """Room for the longest of the texts, whose letters are at most so wide."""
        texts = [text for _, text in (*self.rows, *self.size_ticks)]
        return round(_width(max(map(len, texts)), self.size.font)) + self.size.font + 14

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Heights and names of classes, as many as can be read."""
        classes = self.table.shape[1]
        step = max(1, math.ceil(1.25 * self.size.font / self.down)) if classes else 1
        return [(self._row(number), _shortened(self.names[number])) for number in range(0, classes, step)]

    def _row(self, label: int) -> str:
        return f"{self.matrix_top + self.down * (label + 0.5):.1f}"

    @property
    def size_ticks(self) -> list[tuple[str, str]]:
        """Heights and texts of the scale of the bars: nothing, and a round number of samples."""
        top = round_numbers(int(self.sizes.max()))[-1]
        return [(f"{self._bar_top(number):.1f}", f"{number:,}") for number in (0, top)]

    def _bar_top(self, samples: int) -> float:
        return _TOP + self.size.bars * (1 - samples / int(self.sizes.max()))

    # the drawing of the clients

    def _left(self, client: int) -> float:
        return self.margin + self.across * client

    def _middle(self, client: int) -> str:
        return f"{self._left(client) + self.across / 2:.1f}"

    @property
    def base(self) -> int:
        return _TOP + self.size.bars

    @property
    def bar_width(self) -> str:
        return f"{self.across * (0.7 if self.shown <= MAX_BUBBLES[0] else 1):.2f}"

    @property
    def bars(self) -> list[_Mark]:
        inset = self.across * (0.15 if self.shown <= MAX_BUBBLES[0] else 0)
        return [
            _Mark(
                x=f"{self._left(client) + inset:.1f}",
                y=f"{self._bar_top(samples):.1f}",
                extent=f"{self.base - self._bar_top(samples):.1f}",
                text=f"client {self.split.client(client)}: {samples:,} samples",
            )
            for client, samples in enumerate(self.sizes.tolist())
        ]

    @property
    def marks(self) -> list[_Mark]:
        """A bubble per client and class, its area proportional to the samples."""
        if not self.bubbles:
            return []
        owners, labels = (each.tolist() for each in np.nonzero(self.table))
        return [
            _Mark(
                x=self._middle(client),
                y=self._row(label),
                extent=f"{self.radius(int(self.table[client, label])):.1f}",
                text=f"client {self.split.client(client)}, class {self.names[label]}: "
                f"{self.table[client, label]:,} samples",
            )
            for client, label in zip(owners, labels, strict=True)
        ]

    def radius(self, samples: int) -> float:
        return max(0.8, self.largest_radius * math.sqrt(samples / int(self.table.max())))

    @property
    def heat_map(self) -> str:
        """A PNG with a pixel per client and class; more opaque means more samples."""
        if self.bubbles or not self.table.size:
            return ""
        from PIL import Image

        # A square-root scale keeps small counts visible.
        opacity = np.sqrt(self.table.T / max(1, int(self.table.max())))
        pixels = np.full((*opacity.shape, 4), (*_MARK, 0), dtype=np.uint8)
        pixels[..., 3] = np.ceil(255 * opacity)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format="png", optimize=True)
        return base64.b64encode(buffer.getvalue()).decode()

    @property
    def ticks(self) -> list[tuple[str, str]]:
        """Places and names of clients, or their numbers, a round number of them apart."""
        if self.named:
            return [(self._middle(each), _shortened(self.split.client(each))) for each in range(self.shown)]
        most = max(2, int(self.plot_width / (3 * self.size.font)))
        step = next(n * 10**p for p in range(9) for n in (1, 2, 5) if n * 10**p * most >= self.shown)
        return [(self._middle(client), f"{client}") for client in range(0, self.shown, step)]

    @property
    def axis(self) -> str:
        all_shown = self.shown == self.split.clients
        return "client" if all_shown else f"client (the first {self.shown:,} of {self.split.clients:,})"

    @property
    def legend(self) -> list[tuple[float, float, str]]:
        """Radius and opacity of a mark, and the samples it stands for."""
        if not self.table.size:
            return []
        most = int(self.table.max())
        return [
            (self.radius(n), 1.0, f"{n:,}") if self.bubbles else (0.4 * self.size.font, math.sqrt(n / most), f"{n:,}")
            for n in round_numbers(most)
            if n
        ]


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def _width(letters: int, font: int) -> float:
    """Of a text, at most."""
    return 0.62 * font * letters


def round_numbers(most: int) -> list[int]:
    """Up to three round numbers for the legend, none above `most`."""
    unit = 10 ** int(math.log10(most))
    top = max(n * unit for n in (1, 2, 5) if n * unit <= most)
    return sorted({top, top // 4, top // 20})
