"""A run that is asked for in the page, as the arguments of `undrift run`; code in files is not for pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from undrift import data, models
from undrift.algorithms.text import parse
from undrift.core import check

# Names of settings that have a field of their own.
_FIELDS = {
    "data.name": "data",
    "data.partition": "partition",
    "data.clients": "clients",
    "model.name": "model",
    "local.lr": "lr",
    "run.rounds": "rounds",
    "run.seed": "seed",
}
_OPTIONS = ("algorithm", "data", "model", "partition", "clients", "rounds", "lr", "seed")
_SETTING = re.compile(r"([a-z_]+\.[a-z_]+)\s*=\s*\S.*", re.ASCII)
_LONGEST = 2000  # characters of a field


@dataclass(frozen=True)
class Wanted:
    arguments: list[str]  # of `undrift`
    name: str  # of its folder, in plain characters


def read_form(given: Mapping[str, Any]) -> Wanted:
    """What to start; a field that is wrong is a ValueError in one line."""
    if unknown := sorted(given.keys() - {*_OPTIONS, "settings"}):
        raise ValueError(f"unknown field {check.shown(unknown[0])}; allowed are {', '.join((*_OPTIONS, 'settings'))}")
    fields = {name: _field(name, given.get(name)) for name in (*_OPTIONS, "settings")}
    if not fields["algorithm"]:
        raise ValueError("choose an algorithm, as in fedavg or fedprox(mu=0.1)")
    algorithm = parse(fields["algorithm"]).algorithm  # refuses unknown names, and code
    if fields["data"]:
        fields["data"] = data.full_name(fields["data"])
    if fields["model"] and fields["model"] not in models.available():
        raise check.unknown("model", fields["model"], models.available(), "-m")
    for name, low in (("clients", 1), ("rounds", 1), ("seed", 0)):
        if fields[name]:
            check.integer(name, _whole(name, fields[name]), low)
    if fields["lr"]:
        check.number("lr", _number("lr", fields["lr"]), 0, open_low=True)
    # One word each, so that a value is never taken for an option.
    arguments = [f"--{name}={fields[name]}" for name in _OPTIONS if fields[name]]
    settings = [_setting(line.strip()) for line in fields["settings"].splitlines() if line.strip()]
    name = re.sub(r"[^a-z0-9]+", "-", f"{algorithm.name()}-{fields['data'] or 'digits'}".lower()).strip("-")
    return Wanted(["run", *arguments, *(f"--set={line}" for line in settings)], name)


def _field(name: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {check.shown(value)}")
    if len(value) > _LONGEST:
        raise ValueError(f"{name} must have at most {_LONGEST} characters, got {len(value)}")
    allowed = "\r\n\t" if name == "settings" else ""
    if not all(letter.isprintable() or letter in allowed for letter in value):
        raise ValueError(f"{name} must be a text without control characters, got {check.shown(value)}")
    return value.strip()


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise ValueError(f"{name} must be a whole number, got {check.shown(text)}")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {check.shown(text)}") from None


def _setting(line: str) -> str:
    """A further setting; `undrift run` checks its name and its value."""
    if (match := _SETTING.fullmatch(line)) is None:
        raise ValueError(f"a setting is written section.key=value, as in local.epochs=2, got {check.shown(line)}")
    if match[1] in _FIELDS:
        raise ValueError(f"{match[1]} has a field of its own: {_FIELDS[match[1]]}")
    if match[1].startswith("algorithm."):
        raise ValueError("options of the algorithm are written with its name, as in fedprox(mu=0.1)")
    return line
