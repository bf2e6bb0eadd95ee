"""Numbers, counts and units as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from rich.filesize import pick_unit_and_suffix

MISSING = "–"
NBSP = "\u00a0"  # keeps a number and its unit on one line


def decimal_text(value: float, digits: int = 3, like: float | None = None) -> str:
    """`value` with about three significant digits and never an exponent, or with as many decimals as `like` has."""
    if not math.isfinite(value):
        return MISSING
    leading = value if like is None else like
    magnitude = math.floor(math.log10(abs(leading))) if leading else 0
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def number_text(value: float) -> str:
    """A loss: three significant digits, with an exponent where it is very large or small."""
    if not math.isfinite(value):
        return MISSING
    return f"{value:#.3g}".removesuffix(".")


def percent_text(value: float, std: float = math.nan) -> str:
    """A share as a percentage, with its standard deviation if that is finite."""
    if not math.isfinite(value):
        return MISSING
    spread = f"{NBSP}±{NBSP}{100 * std:.1f}" if math.isfinite(std) else ""
    return f"{100 * value:.1f}{spread}{NBSP}%"


def mean_count_text(value: float) -> str:
    """A mean of whole numbers: one digit after the point, unless that is a zero."""
    return f"{value:.1f}".removesuffix(".0") if math.isfinite(value) else MISSING


def spread_text(mean: float, std: float, text: Callable[[float], str]) -> str:
    """A mean, with its standard deviation if that is finite."""
    return f"{text(mean)}{NBSP}±{NBSP}{text(std)}" if math.isfinite(mean) and math.isfinite(std) else text(mean)


def count_text(number: float, noun: str) -> str:
    """Such as "1 round" or "2 rounds"."""
    whole = round(number)
    return f"{whole}{NBSP}{noun}" + ("" if whole == 1 else "s")


def range_text(numbers: Iterable[int], noun: str) -> str:
    """Such as "10 clients", or "8–10 clients" where the numbers differ."""
    ordered = sorted(numbers)
    low = "" if ordered[0] == ordered[-1] else f"{ordered[0]}–"
    return low + count_text(ordered[-1], noun)


def list_text(names: list[str]) -> str:
    """Such as "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def unit_of_traffic(values: Iterable[float]) -> tuple[float, str]:
    """Size and name of the unit for a column of bytes.

    `rich.filesize.decimal` picks a unit for every value; one unit, the largest value's, keeps a column comparable.
    """
    return pick_unit_and_suffix(int(_largest(values)), ["B", "kB", "MB", "GB"], 1000)


def unit_of_time(values: Iterable[float]) -> tuple[float, str]:
    """Size and name of the unit for a column of seconds."""
    # Minutes and hours only once there are a few of them: "90 s" reads better than "1.5 min".
    largest = _largest(values)
    return (3600, "h") if largest >= 7200 else (60, "min") if largest >= 300 else (1, "s")


def _largest(values: Iterable[float]) -> float:
    return max((value for value in values if math.isfinite(value)), default=0.0)
