"""Where everything is in the picture, in pixels, whoever draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from undrift.two_clients.paths import Paths
from undrift.two_clients.problem import CLIENTS, Array, Quadratic, mean_loss

WIDTH, HEIGHT = 320, 284  # of the part of the plane that a panel shows
_LEFT, _BOTTOM, _ACROSS = -3.15, -2.65, 6.3  # the same in the plane
SCALE = WIDTH / _ACROSS
# Half-axes of contours, where the loss is of mean steepness.
_RINGS = (0.3, 0.65, 1.05, 1.5, 2.0, 2.55, 3.15, 3.8, 4.5, 5.3)
_CLIENT_RINGS = (0.4, 0.9)
STRIP = 34  # height of the chart of distances


class Ellipse(NamedTuple):
    """A line of equal loss."""

    x: float
    y: float
    long: float
    short: float
    degrees: float  # of the long half-axis, clockwise


def placed(points: Array) -> Array:
    """Points of the plane [..., 2] as pixels of a panel; those far outside are brought nearer."""
    pixels = np.stack([(points[..., 0] - _LEFT) * SCALE, HEIGHT - (points[..., 1] - _BOTTOM) * SCALE], axis=-1)
    return np.asarray(pixels.clip(-1e5, 1e5).round(1))


def contours(loss: Quadratic, rings: Sequence[float]) -> list[Ellipse]:
    steepness, axes = np.linalg.eigh(loss.curvature)  # ascending: the first axis is the long one
    x, y = placed(loss.centre).tolist()
    degrees = -float(np.degrees(np.arctan2(axes[1, 0], axes[0, 0])))
    long, short = (float(SCALE * np.sqrt(np.sqrt(steepness.prod()) / each)) for each in steepness)
    return [Ellipse(x, y, ring * long, ring * short, degrees) for ring in rings]


@dataclass(frozen=True)
class Panel:
    """One algorithm."""

    paths: Paths

    @property
    def title(self) -> str:
        return self.paths.label

    @property
    def captions(self) -> list[str]:
        """What is said at the start, after every round and, where it diverged, in the end."""
        when = ["at the start", *(f"after {rounds_text(number)}" for number in range(1, self.paths.rounds + 1))]
        far = [f"{each:.2f}" if each < 1000 else f"{each:.1e}" for each in self.paths.distances.tolist()]
        texts = [f"{distance} from the optimum {time}" for distance, time in zip(far, when, strict=True)]
        return [*texts, f"diverges in round {self.paths.rounds + 1}"] if self.paths.diverged else texts

    @property
    def caption(self) -> str:
        return self.captions[-1]

    @property
    def mean_contours(self) -> list[Ellipse]:
        return contours(mean_loss(), _RINGS)

    @property
    def client_contours(self) -> list[list[Ellipse]]:
        return [contours(client, _CLIENT_RINGS) for client in CLIENTS]

    @property
    def clients(self) -> Array:
        """Lines [clients, rounds, steps + 2, 2]: from the server's model, where some algorithms do not begin."""
        starts = np.broadcast_to(self.paths.server[:-1, None, None], (*self.paths.clients.shape[:2], 1, 2))
        return placed(np.concatenate([starts, self.paths.clients], axis=2)).swapaxes(0, 1)

    @property
    def server(self) -> Array:
        return placed(self.paths.server)

    @property
    def optima(self) -> Array:
        return placed(np.array([client.centre for client in CLIENTS]))

    @property
    def optimum(self) -> Array:
        return placed(mean_loss().centre)

    @property
    def strip(self) -> Array:
        """The distance to the optimum by round, as a line below the panel [rounds + 1, 2]; 0 is at the bottom."""
        distances = self.paths.distances
        heights = STRIP * (1 - (distances / distances[0]).clip(0, 1.15))
        return np.stack([np.linspace(0, WIDTH, len(distances)), heights], axis=1).round(1)


class Entry(NamedTuple):
    """Of the legend."""

    kind: str  # "local", "server", "optimum" or "goal"
    text: str
    client: int
    indent: int  # of the text
    width: int
    x: int = 0
    y: int = 0


LEGEND = (
    Entry("local", "client 1", 1, 34, 108),
    Entry("local", "client 2", 2, 34, 108),
    Entry("server", "server", 0, 40, 110),
    Entry("optimum", "optimum of both clients together", 0, 29, 262),
    Entry("goal", "a client’s own optimum", 0, 19, 180),
)


@dataclass(frozen=True)
class Layout:
    """Where panels and legend are in a picture of so many panels."""

    count: int

    margin = 26
    gap = 24
    panel = (WIDTH, HEIGHT)
    strip = STRIP
    strip_top = HEIGHT + 36  # from the top of a panel

    @property
    def columns(self) -> int:
        return 2 if self.count == 4 else min(3, self.count)

    @property
    def width(self) -> int:
        return 2 * self.margin + max(2, self.columns) * (WIDTH + self.gap) - self.gap

    @property
    def places(self) -> list[tuple[int, int]]:
        """The upper left corners of the panels."""
        top, row = self.legend[-1].y + 60, self.strip_top + STRIP + 72
        return [
            (self.margin + number % self.columns * (WIDTH + self.gap), top + number // self.columns * row)
            for number in range(self.count)
        ]

    @property
    def legend(self) -> list[Entry]:
        """In as many rows as it needs."""
        entries, x, y = [], self.margin, 88
        for entry in LEGEND:
            if x + entry.width > self.width and x > self.margin:
                x, y = self.margin, y + 22
            entries.append(entry._replace(x=x, y=y))
            x += entry.width
        return entries

    @property
    def height(self) -> int:
        return self.places[-1][1] + self.strip_top + STRIP + 26


def rounds_text(rounds: int) -> str:
    return "1 round" if rounds == 1 else f"{rounds:,} rounds"
