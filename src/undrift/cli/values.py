"""Settings with several values on the command line: ``lr=0.01,0.1`` or ``data.partition=dirichlet:0.1,iid``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from undrift.algorithms.text import split
from undrift.cli.config import parse_value
from undrift.cli.settings import SETTINGS
from undrift.core import check


def read_values(option: str, text: str) -> tuple[str, list[Any]]:
    """The name before ``=``, and the values after it: with commas, or as a list in TOML where values have some."""
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise ValueError(f"{option} is written NAME=VALUE,VALUE, as in lr=0.01,0.1, got {check.shown(text)}")
    if values.strip().startswith("["):
        return name.strip(), list(parse_value(values.strip()))
    return name.strip(), [parse_value(part) for part in split(values)]


def read_grid(texts: Iterable[str]) -> dict[str, list[Any]] | str | None:
    """Of several ``--grid``: the values of each setting, or the name of a paper's grid; None where there is none."""
    given = list(texts)
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    for text in given:
        if "=" not in text:
            raise ValueError(f"--grid is either one name or settings with values, got {check.shown(text)} among these")
    found: dict[str, list[Any]] = {}
    for name, values in (read_values("--grid", text) for text in given):
        if argument(name) in found:
            raise ValueError(f"--grid has {name} twice")
        found[argument(name)] = values
    return found or None


def argument(name: str) -> str:
    """What Python calls a setting: ``lr`` for ``local.lr``; other names, such as ``fedprox.mu``, are the same."""
    section, _, key = name.partition(".")
    found = SETTINGS.get(section, {}).get(key)
    return name if found is None else found.name
