"""Colours of the curves: a hue for every algorithm, a shade for every value of a setting that is swept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from undrift.reporting.figures import by_label
from undrift.reporting.record import Record

# Okabe–Ito: distinct for every common kind of colour vision; lighter on a dark page, where the originals lack contrast.
_LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d")
_DARK = ("#3f9fe0", "#f07f2e", "#1fbf90", "#e09ac3", "#f2b632", "#9bd5f7", "#c4c6ca")
_PALEST, _DEEPEST = 0.4, 0.45  # how far shades go towards the page, and away from it


class Colour(NamedTuple):
    """Of a label's curves, on a light and on a dark page."""

    light: str
    dark: str
    dashed: bool  # distinguishes algorithms of one hue, where there are more algorithms than hues


def hue(number: int) -> Colour:
    """The n-th of the colours; beyond the last they come again, dashed."""
    place = number % len(_LIGHT)
    return Colour(_LIGHT[place], _DARK[place], bool(number // len(_LIGHT) % 2))


def colours_of(records: Sequence[Record]) -> dict[str, Colour]:
    """A colour for every label, in order of first appearance."""
    families: dict[str, dict[str, Record]] = {}
    for label, runs in by_label(records).items():
        families.setdefault(_algorithm(runs[0]), {})[label] = runs[0]
    colours = {}
    for number, members in enumerate(families.values()):
        light, dark, dashed = hue(number)
        for rank, label in enumerate(_by_value(members)):
            # From −1, the palest, to 1, the deepest; a label alone has the hue itself.
            depth = 2 * rank / (len(members) - 1) - 1 if len(members) > 1 else 0.0
            colours[label] = Colour(_shade(light, depth, 255), _shade(dark, depth, 20), dashed)
    return {label: colours[label] for label in by_label(records)}


def _algorithm(record: Record) -> str:
    algorithm = record.config.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else None
    return name if isinstance(name, str) else record.label


def _by_value(members: Mapping[str, Record]) -> list[str]:
    """Labels by the number in which they differ, if it is a single one; else as they come."""
    settings = {label: _settings(record) for label, record in members.items()}
    keys = dict.fromkeys(key for each in settings.values() for key in each)
    differing = [key for key in keys if len({repr(each.get(key)) for each in settings.values()}) > 1]
    if len(differing) != 1:
        return list(members)
    values = {label: each.get(differing[0]) for label, each in settings.items()}
    numbers = {label: value for label, value in values.items() if isinstance(value, int | float)}
    return sorted(numbers, key=lambda label: numbers[label]) if len(numbers) == len(members) else list(members)


def _settings(record: Record) -> dict[str, Any]:
    """What may be swept: options of the algorithm and of the run, but for what differs between seeds and machines."""
    algorithm, options = record.config.get("algorithm"), record.config.get("options")
    chosen = algorithm.get("options") if isinstance(algorithm, Mapping) else None
    others = {key: value for key, value in (options or {}).items() if key not in ("seed", "engine", "device")}
    return others | {f"algorithm.{key}": value for key, value in (chosen or {}).items()}


def _shade(colour: str, depth: float, page: int) -> str:
    """A hue mixed with the page's grey for a negative depth, with the opposite of that for a positive one."""
    share, grey = (-depth * _PALEST, page) if depth < 0 else (depth * _DEEPEST, 255 - page)
    channels = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{round(channel + share * (grey - channel)):02x}" for channel in channels)
