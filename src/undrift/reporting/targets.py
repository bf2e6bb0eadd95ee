"""Target accuracies as users give them: ``0.6``, or ``"90%"`` of the centralised accuracy."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from undrift.core import check

Targets = float | str | Sequence[float | str] | None  # None: the final accuracy of the first label


class Target(NamedTuple):
    """An accuracy, and what rounds to it are counted for."""

    name: str  # in the names of columns: as it was given, or "target"
    accuracy: float  # NaN for a share of an accuracy that is not known
    share: float | None = None  # of the centralised accuracy
    given: bool = True  # False: the final accuracy of the first label


class _Wanted(NamedTuple):
    """A target before the centralised accuracy is known."""

    name: str
    value: float
    relative: bool


def check_targets(targets: Any) -> list[_Wanted]:
    """Refuses what can be no target: an accuracy outside of 0 to 1, or a share outside of 0 to 100 %."""
    targets = check.plain(targets)
    if targets is None:
        return []
    if isinstance(targets, str | int | float):
        return [_wanted(targets)._replace(name="target")]
    if not isinstance(targets, Sequence):
        raise TypeError(f"targets must be accuracies such as 0.6 or '90%', got {check.shown(targets)}")
    found = [_wanted(check.plain(target)) for target in targets]
    if len({(each.value, each.relative) for each in found}) < len(found):
        raise ValueError(f"targets must differ, got {check.shown(list(targets))}")
    return found


def plain_targets(targets: Targets) -> float | str | list[float | str] | None:
    """As JSON has them."""
    targets = check.plain(targets)
    return [check.plain(each) for each in targets] if isinstance(targets, Sequence) else targets


def has_relative(targets: Any) -> bool:
    """Whether a target is a share of the centralised accuracy."""
    return any(target.relative for target in check_targets(targets))


def find_targets(targets: Targets, centralised: float, default: float) -> list[Target]:
    """The targets as accuracies; `default`, if it is finite, where none is given."""
    wanted = check_targets(targets)
    if not wanted:
        return [Target("target", default, given=False)] if math.isfinite(default) else []
    return [
        Target(each.name, each.value * centralised, each.value) if each.relative else Target(each.name, each.value)
        for each in wanted
    ]


def _wanted(target: Any) -> _Wanted:
    if isinstance(target, bool) or not isinstance(target, str | int | float):
        raise TypeError(f"targets: a target is an accuracy such as 0.6 or '90%', got {check.shown(target)}")
    value, percent = _parsed(target) if isinstance(target, str) else (target, False)
    if percent and not 0 < value <= 100:
        share = "a share of the centralised accuracy, above 0 % and up to 100 %"
        raise ValueError(f"targets: a target in % is {share}, got {check.shown(target)}")
    if not percent and not 0 <= value <= 1:
        hint = f"; {value:g} % are {value / 100:g}" if 1 < value <= 100 else ""
        raise ValueError(f"targets: a target is an accuracy between 0 and 1, got {check.shown(target)}{hint}")
    name = str(target).replace(" ", "")
    return _Wanted(name, value / 100, relative=True) if percent else _Wanted(name, float(value), relative=False)


def _parsed(text: str) -> tuple[float, bool]:
    """The number, and whether it is in per cent."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%?)\s*", text, re.ASCII)
    if found is None:
        raise ValueError(f"targets: a target is an accuracy such as 0.6 or '90%', got {check.shown(text)}")
    return float(found[1]), bool(found[2])
