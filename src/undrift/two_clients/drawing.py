"""Where everything is in a panel of the picture, in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from undrift.two_clients.paths import Paths
from undrift.two_clients.problem import CLIENTS, Array, Quadratic, mean_loss

WIDTH, HEIGHT = 320, 290  # of a panel
_LEFT, _RIGHT, _BOTTOM = -3.1, 3.1, -2.75  # the part of the plane that is shown
SCALE = WIDTH / (_RIGHT - _LEFT)
# Contours at distances from the minimum that grow evenly along every ray, as those of a map of a bowl do not.
_RINGS = (0.25, 0.6, 1.0, 1.45, 1.95, 2.5, 3.1, 3.75)
_CLIENT_RINGS = (0.35, 0.8)


@dataclass(frozen=True)
class Ellipse:
    """A line of equal loss."""

    x: float
    y: float
    long: float
    short: float
    degrees: float  # of the long half-axis


def placed(points: Array) -> Array:
    """Points of the plane [..., 2] as pixels of a panel."""
    return np.stack([(points[..., 0] - _LEFT) * SCALE, HEIGHT - (points[..., 1] - _BOTTOM) * SCALE], axis=-1)


def contours(loss: Quadratic, rings: Sequence[float]) -> list[Ellipse]:
    """Lines of equal loss; the n-th is `rings[n]` wide where the loss is of mean steepness."""
    steepness, axes = np.linalg.eigh(loss.curvature)  # ascending: the first axis is the long one
    x, y = placed(loss.centre)
    degrees = -float(np.degrees(np.arctan2(axes[1, 0], axes[0, 0])))
    long, short = (float(SCALE * np.sqrt(np.sqrt(steepness.prod()) / each)) for each in steepness)
    return [Ellipse(float(x), float(y), ring * long, ring * short, degrees) for ring in rings]


def line(points: Array) -> str:
    """The attribute ``points`` of a polyline."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in placed(points).clip(-9999, 9999))


@dataclass(frozen=True)
class Panel:
    """One algorithm."""

    paths: Paths
    number: int

    @property
    def title(self) -> str:
        return self.paths.label

    @property
    def caption(self) -> str:
        rounds, distance = self.paths.rounds, self.paths.distances[-1]
        if self.paths.diverged:
            return f"diverged in round {rounds + 1}"
        return f"after {rounds} rounds {distance:.2f} from the optimum"

    @property
    def mean_contours(self) -> list[Ellipse]:
        return contours(mean_loss(), _RINGS)

    @property
    def client_contours(self) -> list[list[Ellipse]]:
        return [contours(client, _CLIENT_RINGS) for client in CLIENTS]

    @property
    def client_lines(self) -> list[list[str]]:
        """Of every client a line per round, from the server's model on."""
        starts = self.paths.server[:-1, None]  # some algorithms begin elsewhere
        return [
            [line(np.concatenate(both)) for both in zip(starts, self.paths.clients[:, client], strict=True)]
            for client in range(len(CLIENTS))
        ]

    @property
    def server_line(self) -> str:
        return line(self.paths.server)

    @property
    def server_dots(self) -> list[tuple[float, float]]:
        """The models between start and end, but for those that lie on the one before."""
        spots = placed(self.paths.server)
        return [(float(b[0]), float(b[1])) for a, b in pairwise(spots[:-1]) if np.abs(a - b).max() > 1]

    @property
    def start(self) -> Array:
        return placed(self.paths.server[0])

    @property
    def end(self) -> Array:
        return placed(self.paths.server[-1])

    @property
    def optima(self) -> Array:
        return placed(np.array([client.centre for client in CLIENTS]))

    @property
    def optimum(self) -> Array:
        return placed(mean_loss().centre)
