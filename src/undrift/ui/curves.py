"""A curve of one run, or the mean over several seeds: few points, and only new ones where that is enough.

A client that has a curve sends its *stamp* back, which says how many rows of which generation it was made of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.ui.history import History, Numbers

FULL = 400  # points of a curve that is sent as a whole
FEW = 100  # up to so many new ones are sent alone; the page asks for the whole curve when it has 500
_STAMP = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})+", re.ASCII)


def curve_of(members: Sequence[History], column: str, stamp: str = "") -> dict[str, Any]:
    """Round, traffic, seconds and value; with `low` and `high` of the seeds where there are several."""
    counts = [len(member) for member in members]
    generation = sum(member.generation for member in members)
    fresh = ".".join(map(str, [generation, *counts]))
    if fresh == stamp:
        return {"stamp": fresh, "reset": False, "round": []}
    values = _stacked([member.column(column) for member in members])  # [members, rounds]
    at = np.flatnonzero(np.isfinite(values).any(axis=0))
    since = _unchanged(stamp, generation, counts)
    new = at[at >= since]
    reset = since == 0 or len(new) > FEW
    at = at if reset else new
    mean, low, high = _over_seeds(values[:, at])
    kept = thinned(mean, FULL)
    points: dict[str, Any] = {"stamp": fresh, "reset": reset, "round": (at[kept] + 1).tolist(), "y": _short(mean[kept])}
    for name, spent in (("traffic", _traffic), ("elapsed", _elapsed)):
        points[name] = _short(_mean(_stacked([spent(member) for member in members])[:, at[kept]]))
    if len(members) > 1:
        if len(at):  # a band covers the points that were left out
            low, high = np.minimum.reduceat(low, kept), np.maximum.reduceat(high, kept)
        points |= {"low": _short(low), "high": _short(high)}
    return points


def _unchanged(stamp: str, generation: int, counts: Sequence[int]) -> int:
    """The rounds of the client's curve that are still right: all of them, if only rows after the last have come."""
    if not _STAMP.fullmatch(stamp):
        return 0
    before, *old = map(int, stamp.split("."))
    if before != generation or len(old) != len(counts) or any(now < was for was, now in zip(old, counts, strict=True)):
        return 0
    longest = max(old)
    return longest if all(was == longest for was, now in zip(old, counts, strict=True) if now > was) else 0


def thinned(values: Numbers, most: int) -> NDArray[np.intp]:
    """The places of at most so many values: first, last, and the lowest and highest of every stretch between."""
    if len(values) <= most:
        return np.arange(len(values))
    inside = values[1:-1]
    size = -(-len(inside) // ((most - 2) // 2))  # of a stretch; the last one may be shorter
    padded = np.pad(inside, (0, -len(inside) % size), mode="edge").reshape(-1, size)
    starts = 1 + size * np.arange(len(padded))
    extremes = np.concatenate([starts + padded.argmin(axis=1), starts + padded.argmax(axis=1)])
    return np.unique([0, *np.minimum(extremes, len(values) - 2), len(values) - 1])


def outline(values: Numbers, most: int) -> list[float]:
    """A few values for a small picture, the last one included."""
    finite = values[np.isfinite(values)]
    if len(finite) > most:
        finite = finite[np.linspace(0, len(finite) - 1, most).astype(np.intp)]
    return _short(finite)


def _stacked(columns: Sequence[Numbers]) -> Numbers:
    stacked = np.full((len(columns), max(map(len, columns))), np.nan)
    for row, each in zip(stacked, columns, strict=True):
        row[: len(each)] = each
    return stacked


def _over_seeds(values: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Mean, lowest and highest; every column has a finite value."""
    finite = np.isfinite(values)
    low, high = np.where(finite, values, np.inf).min(axis=0), np.where(finite, values, -np.inf).max(axis=0)
    return _mean(values), low, high


def _mean(values: Numbers) -> Numbers:
    finite = np.isfinite(values)
    mean: Numbers = (np.where(finite, values, 0) / np.maximum(finite.sum(axis=0), 1)).sum(axis=0)
    return mean


def _traffic(history: History) -> Numbers:
    return _spent(history.column("bytes_down")) + _spent(history.column("bytes_up"))


def _elapsed(history: History) -> Numbers:
    return _spent(history.column("seconds"))


def _spent(values: Numbers) -> Numbers:
    """Sums so far; of numbers that only damage can make so large, the sum stays where JSON can hold it."""
    return np.cumsum(np.clip(np.nan_to_num(values), -1e250, 1e250))


def _short(values: Numbers) -> list[float]:
    """Five significant digits: more than a screen shows."""
    size = np.abs(values)
    power = np.zeros_like(values)
    np.log10(size, out=power, where=size > 0)
    scale = 10.0 ** np.clip(4 - np.floor(power), -290, 290)
    shortened: list[float] = (np.round(values * scale) / scale).tolist()
    return shortened
