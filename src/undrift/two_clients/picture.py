"""The picture of client drift: how algorithms lead server and clients on two quadratics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from undrift.algorithms.text import split
from undrift.core import check
from undrift.methods.algorithm import Algorithm
from undrift.reporting.colours import hue
from undrift.two_clients.drawing import HEIGHT, WIDTH, Panel
from undrift.two_clients.paths import Paths, walk

TITLE = "Client drift: two clients, two quadratic losses"
SUFFIXES = (".svg",)


def draw_drift(
    algorithms: str | Sequence[str | Algorithm] = "fedavg,scaffold,fedhbm",
    path: str | Path = "drift.svg",
    *,
    rounds: int = 15,
    steps: int = 20,
    lr: float = 0.3,
) -> Path:
    """Draw the paths of server and clients on two quadratic losses, a panel for every algorithm, and return the file.

    Two clients, whose losses have different minima and are steep in different directions, take part in every round and
    take `steps` local steps. The points are those of `simulate`. The suffix of `path` says what is written: .svg.
    """
    target = check.path("path", path)
    if target.suffix not in SUFFIXES:
        raise ValueError(f"the picture of client drift is a {' or '.join(SUFFIXES)}, got {check.shown(str(path))}")
    chosen = split(algorithms) if isinstance(algorithms, str) else list(algorithms)
    if not chosen:
        raise ValueError("the picture of client drift needs algorithms, as in: fedavg,scaffold,fedhbm")
    paths = [walk(each, rounds=rounds, steps=steps, lr=lr) for each in chosen]
    content = _svg(paths, _subtitle(rounds, steps, lr))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content, encoding="utf-8")
    return target


def _subtitle(rounds: int, steps: int, lr: float) -> str:
    return f"{rounds} rounds of {steps} local steps, learning rate {lr:g}; both clients take part in every round"


class _Entry(NamedTuple):
    """Of the legend."""

    kind: str
    text: str
    number: int = 0
    x: int = 0
    y: int = 0


_LEGEND = (
    (_Entry("local", "client 1: local steps, optimum", 1), 240),
    (_Entry("local", "client 2: local steps, optimum", 2), 240),
    (_Entry("server", "server: start, rounds, end", 0), 225),
    (_Entry("best", "optimum of the mean loss", 0), 190),
)


@dataclass(frozen=True)
class _Size:
    """Where panels and legend are, for a number of panels."""

    count: int

    margin = 24
    panel = (WIDTH, HEIGHT)

    @property
    def columns(self) -> int:
        return {4: 2}.get(self.count, min(3, self.count))

    @property
    def width(self) -> int:
        return 2 * self.margin + self.columns * (WIDTH + 20) - 20

    def left(self, number: int) -> int:
        return self.margin + number % self.columns * (WIDTH + 20)

    def top(self, number: int) -> int:
        return 104 + number // self.columns * (HEIGHT + 70)

    @property
    def legend(self) -> list[_Entry]:
        """In as many rows as it needs."""
        placed, x, y = [], self.margin, self.top(self.count - 1) + HEIGHT + 52
        for entry, width in _LEGEND:
            if x > self.margin and x + width > self.width:
                x, y = self.margin, y + 24
            placed.append(entry._replace(x=x, y=y))
            x += width
        return placed

    @property
    def height(self) -> int:
        return self.legend[-1].y + 24


def _svg(paths: Sequence[Paths], subtitle: str) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    files = Environment(loader=PackageLoader("undrift.two_clients", "."), autoescape=True, undefined=StrictUndefined)
    return files.get_template("picture.svg").render(
        title=TITLE,
        subtitle=subtitle,
        panels=[Panel(each, number) for number, each in enumerate(paths)],
        size=_Size(len(paths)),
        colours={"clients": [hue(0).light, hue(1).light], "best": hue(2).light},
    )
