"""Refusing wrong arguments early, with what was given and what is allowed."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any


def nearest(word: str, allowed: Iterable[str]) -> str:
    """A closing half-sentence: the closest allowed word, or all of them."""
    words = list(allowed)
    close = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; allowed: {', '.join(map(repr, words))}"


def choice(name: str, value: Any, allowed: Iterable[str]) -> None:
    words = list(allowed)
    if value not in words:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}{_close(value, words)}")


def _close(value: Any, words: list[str]) -> str:
    close = difflib.get_close_matches(str(value), words, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def number(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """A finite real number in an interval (closed unless said otherwise)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    given = float(value)
    inside = (given > low if open_low else given >= low) and (given < high if open_high else given <= high)
    if not math.isfinite(given) or not inside:
        raise ValueError(f"{name} must be {interval(low, high, open_low=open_low, open_high=open_high)}, got {value!r}")


def integer(name: str, value: Any, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def interval(low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> str:
    """In words: "at least 0 and less than 1"."""
    lower = "" if low == -math.inf else f"{'greater than' if open_low else 'at least'} {low:g}"
    upper = "" if high == math.inf else f"{'less than' if open_high else 'at most'} {high:g}"
    return " and ".join(part for part in (lower, upper) if part) or "a finite number"
