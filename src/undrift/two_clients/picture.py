"""The picture of client drift: how algorithms lead server and clients on two quadratics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undrift.algorithms.text import split
from undrift.core import check
from undrift.core.extras import needs
from undrift.methods.algorithm import Algorithm
from undrift.reporting.colours import hue
from undrift.two_clients.drawing import LEGEND, Layout, Panel, rounds_text
from undrift.two_clients.paths import Paths, walk

SUFFIXES = (".html", ".svg", ".png", ".pdf")
_MOST = 20_000  # local steps of a client, each a point of the picture
_COLOURS = {"clients": (hue(0), hue(1)), "optimum": hue(2)}


def draw_drift(
    algorithms: str | Sequence[str | Algorithm] = "fedavg,scaffold,fedhbm",
    path: str | Path = "drift.html",
    *,
    rounds: int = 15,
    steps: int = 10,
    lr: float = 0.3,
) -> Path:
    """Draw the paths of server and clients on two quadratic losses, a panel for every algorithm, and return the file.

    Two clients, whose losses have different minima and are steep in different directions, take part in every round and
    take `steps` local steps with rate `lr`. The points are those of `simulate`, and options are written as there:
    ``"fedavg,fedprox(mu=0.1)"``, or a list of names and algorithms. The suffix of `path` says what is written: a page
    where time can be moved (.html), or a picture of the whole paths (.svg; .png and .pdf with the extra ``plot``).
    """
    target = check_target(path)
    return write(trace(algorithms, rounds=rounds, steps=steps, lr=lr), target)


def check_target(path: str | Path) -> Path:
    target = check.path("path", path)
    if target.suffix not in SUFFIXES:
        raise ValueError(f"the picture of client drift is one of {', '.join(SUFFIXES)}, got {check.shown(str(path))}")
    return target


def trace(algorithms: str | Sequence[str | Algorithm], *, rounds: int, steps: int, lr: float) -> list[Paths]:
    """The paths of every algorithm."""
    chosen = split(algorithms) if isinstance(algorithms, str) else list(algorithms)
    if not chosen:
        raise ValueError("the picture of client drift needs algorithms, as in: fedavg,scaffold,fedhbm")
    check.integer("rounds", rounds, 1)
    check.integer("steps", steps, 1)
    if rounds * steps > _MOST:
        raise ValueError(f"every local step is drawn: rounds × steps must be at most {_MOST}, got {rounds} × {steps}")
    return [walk(each, rounds=rounds, steps=steps, lr=lr) for each in chosen]


def write(paths: Sequence[Paths], target: Path) -> Path:
    """Write what the suffix of the file says."""
    content = _image(paths, target.suffix) if target.suffix in (".png", ".pdf") else _text(paths, target.suffix)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


def _contents(paths: Sequence[Paths]) -> dict[str, Any]:
    rounds, steps, lr = max(each.rounds for each in paths), paths[0].steps, paths[0].lr
    work = f"{rounds_text(rounds)} of {steps} local {'step' if steps == 1 else 'steps'}, learning rate {lr:g}"
    return {
        "title": "Client drift: two clients, two quadratic losses",
        "subtitle": f"{work}; both clients take part in every round",
        "panels": [Panel(each) for each in paths],
        "layout": Layout(len(paths)),
        "colours": _COLOURS,
    }


def _data(panels: Sequence[Panel]) -> dict[str, Any]:
    """What the page's script draws, in pixels."""
    return {
        "steps": panels[0].paths.steps,
        "rounds": max(panel.paths.rounds for panel in panels),
        "panels": [
            {
                "server": panel.server.tolist(),
                "clients": panel.clients.tolist(),
                "captions": panel.captions,
                "diverged": panel.paths.diverged,
            }
            for panel in panels
        ],
    }


def _text(paths: Sequence[Paths], suffix: str) -> bytes:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    files = Environment(loader=PackageLoader("undrift.two_clients", "."), autoescape=True, undefined=StrictUndefined)
    contents = _contents(paths)
    if suffix == ".html":
        contents |= {"legend": LEGEND, "data": _data(contents["panels"])}
    return files.get_template("page.html" if suffix == ".html" else "picture.svg").render(contents).encode()


def _image(paths: Sequence[Paths], suffix: str) -> bytes:
    with needs("plot"):
        from undrift.two_clients import image

    return image.drawn(suffix.removeprefix("."), **_contents(paths))
