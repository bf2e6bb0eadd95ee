"""Experiments in plain values: TOML files and ``section.key=value`` on the command line.

    algorithm = "fedprox(mu=0.1)"    # or a section [algorithm] with name and options
    [data]
    name = "digits"
    [local]
    lr = 0.3
    [compare]                        # for `undrift compare`
    algorithms = ["fedavg", "fedadam(server_lr=0.01, lr=0.03)"]
    seeds = 3
    targets = [0.6, 0.7]

The keys, their types and their meaning are those of `SETTINGS`. Settings that are not given are those of
`undrift.simulate`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift import algorithms
from undrift.algorithms.text import Written, parse, written
from undrift.cli.options import DEFAULT_DATA
from undrift.cli.settings import SETTINGS, TRACKERS
from undrift.core import check
from undrift.core.call import read as read_algorithm
from undrift.core.check import nearest
from undrift.data import FederatedData, full_name, load
from undrift.simulation.arguments import settings
from undrift.simulation.options import Option
from undrift.trackers import Tracker, named

Sections = dict[str, dict[str, Any]]  # section -> key -> value
ALGORITHM = "algorithm"  # the section whose keys are those of the algorithm that it names
COMPARE = "compare"  # the section of what only a comparison has


@dataclass(frozen=True)
class Configuration:
    """All of an experiment but its algorithm, by name."""

    data: dict[str, Any]  # arguments of `undrift.data.load`, except the seed
    model: str | None  # None: the data set's own
    arguments: dict[str, Any]  # further arguments of `undrift.simulate`
    trackers: list[Tracker]

    def federation(self, seed: int) -> FederatedData:
        return load(**self.data, seed=seed)


# From text to sections


def combine(
    path: str | Path | None,
    given: Mapping[str, Any],
    texts: Iterable[str] = (),
    algorithm: str | None = None,
) -> Sections:
    """A file, overridden by `given` (``{"section.key": value}``, of which None is not given), then by `texts`.

    An algorithm that is given replaces the file's, options included.
    """
    sections = {} if path is None else read(path)
    if algorithm is not None:
        sections |= {ALGORITHM: {"name": algorithm}}
    values = [(*name.split("."), value) for name, value in given.items() if value is not None]
    for section, key, value in [*values, *map(parse_setting, texts)]:
        sections |= {section: sections.get(section, {}) | {key: value}}
    return sections


def read(path: str | Path) -> Sections:
    """The sections of a TOML file."""
    if not Path(path).is_file():
        hint = "; an algorithm is given with -a" if str(path).lower() in algorithms.available() else ""
        raise ValueError(f"there is no configuration file {str(path)!r}{hint}")
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    except ValueError as error:
        what, _, where = str(error).removesuffix(")").partition(" (at ")
        raise ValueError(f"{path}{where and f', {where}'}: {what[0].lower()}{what[1:]}") from None
    if isinstance(content.get(ALGORITHM), str):
        content[ALGORITHM] = {"name": content[ALGORITHM]}
    for section, keys in content.items():
        if not isinstance(keys, dict):
            hint = f"; did you mean [{section}] with name = {keys!r}?" if "name" in SETTINGS.get(section, {}) else ""
            raise ValueError(f"{path}: {section!r} must be a section, [{section}], got {check.shown(keys)}{hint}")
    return content


def parse_setting(text: str) -> tuple[str, str, Any]:
    """Section, key and value of ``section.key=value``; values are written as in TOML, or as a word without quotes."""
    path, equals, value = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not equals or not value.strip():
        raise ValueError(f"a setting is written section.key=value, as in local.lr=0.05, got {check.shown(text)}")
    if not dot:
        raise ValueError(f"unknown key {check.shown(section)}{_suggestion('', section)}")
    return section, key, parse_value(value.strip())


def parse_value(text: str) -> Any:
    """A value as in TOML, or a word without quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # what is no TOML, has too many digits, or is nested too deeply
        if text[0] in "[{\"'":
            raise ValueError(f"{check.shown(text)} is not a TOML value") from None
        return text


# From sections to what `undrift.simulate` takes


def resolve(sections: Sections) -> Configuration:
    """What the sections stand for; refuses unknown keys and wrong values."""
    given = {section: _checked(section, keys) for section, keys in sections.items() if section not in _OTHERS}
    arguments = {each.name: _argument(each, given.get(each.section, {})) for each in settings()}
    data = given.get("data", {})
    name = full_name(data.get("name", DEFAULT_DATA))
    trackers = named(given.get(TRACKERS.section, {}).get(TRACKERS.key, TRACKERS.default))
    return Configuration(data | {"name": name}, given.get("model", {}).get("name"), arguments, trackers)


def _argument(option: Option, keys: Mapping[str, Any]) -> Any:
    value = keys.get(option.key, option.default)
    return None if value == option.none else value


def find_algorithm(sections: Sections) -> Written:
    """The algorithm that the sections name, with its options and the settings of its run."""
    section = sections.get(ALGORITHM, {})
    if not isinstance(section.get("name"), str):
        hint = "; a file with [compare] is for: undrift compare" if COMPARE in sections else ""
        raise ValueError(f"no algorithm is named; give one with -a, and see them with: undrift list algorithms{hint}")
    name, options = read_algorithm(section["name"])
    return written(name, options | {key: value for key, value in section.items() if key != "name"})


def find_comparison(sections: Sections) -> tuple[dict[str, Written], Any]:
    """The algorithms of the section [compare] by their labels, and its seeds, None where there are none."""
    section = sections.get(COMPARE, {})
    for key in section:
        if key not in _OF_COMPARE:
            raise ValueError(f"unknown key {check.shown(f'{COMPARE}.{key}')}{nearest(key, _OF_COMPARE)}")
    seeds = section.get("seeds")
    if seeds is not None and type(seeds) not in (int, list):
        raise ValueError(f"compare.seeds must be a count or a list of seeds, got {check.shown(seeds)}")
    return labelled(section.get("algorithms", [])), seeds


def find_measures(sections: Sections) -> dict[str, Any]:
    """What else of the section [compare] is an argument of `undrift.compare`: what is measured, and by what."""
    return {key: value for key, value in sections.get(COMPARE, {}).items() if key in _MEASURES}


def labelled(algorithms: Any) -> dict[str, Written]:
    """Algorithms in a list, labelled by what they are, or in a table of labels."""
    texts = list(algorithms.values()) if isinstance(algorithms, dict) else algorithms
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            'compare.algorithms must be a list such as ["fedavg", "fedprox(mu=0.1)"], or a table of labels, '
            f"got {check.shown(algorithms)}"
        )
    found = [parse(text) for text in texts]
    labels = list(algorithms) if isinstance(algorithms, dict) else [each.label for each in found]
    if len(set(labels)) < len(labels):
        raise ValueError(f"algorithms must differ, got {', '.join(labels)}")
    return dict(zip(labels, found, strict=True))


_OTHERS = (ALGORITHM, COMPARE)  # sections whose keys are no settings of a run
_MEASURES = ("targets", "last_k", "centralised")
_OF_COMPARE = ("algorithms", "seeds", *_MEASURES)


def _checked(section: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    if section not in SETTINGS:
        raise ValueError(f"unknown section {check.shown(section)}{nearest(section, [*SETTINGS, *_OTHERS])}")
    for key, value in keys.items():
        if key not in SETTINGS[section]:
            raise ValueError(f"unknown key {check.shown(f'{section}.{key}')}{_suggestion(section, key)}")
        _check(SETTINGS[section][key], value)
    return dict(keys)


def _check(option: Option, value: Any) -> None:
    if isinstance(value, str) and value in option.words:
        return
    if not option.kind.fits(value):
        allowed = " or ".join([option.kind.words, *(f'"{word}"' for word in option.words)])
        raise ValueError(f"{option.path} must be {allowed}, got {check.shown(value)}")
    option.kind.check(option.path, value)


def _suggestion(section: str, key: str) -> str:
    """The same key of another section, or what other libraries call so, or else the closest of all."""
    meant = [option.path for keys in SETTINGS.values() for option in keys.values() if option.name == check.synonym(key)]
    elsewhere = [f"{s}.{key}" for s, keys in SETTINGS.items() if key in keys] or meant
    if elsewhere:
        return f"; did you mean {' or '.join(map(repr, elsewhere))}?"
    home = SETTINGS.get(section)
    known = [f"{s}.{k}" for s, keys in SETTINGS.items() for k in keys if home is None or s == section]
    return nearest(f"{section}.{key}" if section else key, known)
