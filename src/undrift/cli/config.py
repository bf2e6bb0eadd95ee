"""Experiments in plain values: TOML files and ``section.key=value`` on the command line.

algorithm = "fedhbm"            or [algorithm] with name and options
[data]    name, partition, clients, test_share, normalise
[model]   name
[local]   lr, lr_decay, epochs, steps, batch_size ("full": all samples), momentum, weight_decay, clip, optimizer
[server]  lr, weighting
[run]     rounds, cohort (a fifth of the clients; 1.0: everyone), seed, eval_every, target, device, dtype, engine,
          buffers, augment, precision

A data set brings its usual settings (`usual.py`) where these say nothing.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from undrift import algorithms
from undrift.cli.usual import completed
from undrift.core.check import nearest
from undrift.data import FederatedData, load
from undrift.methods.algorithm import Algorithm
from undrift.plugins.pgvc import PGVC
from undrift.simulation.prepare import Options

Config = dict[str, dict[str, Any]]  # section -> key -> value


class _Kind(NamedTuple):
    words: str
    fits: Callable[[Any], bool]


_TEXT = _Kind("a text", lambda v: isinstance(v, str))
_FLAG = _Kind("true or false", lambda v: isinstance(v, bool))
_WHOLE = _Kind("a whole number", lambda v: type(v) is int)
_NUMBER = _Kind("a number", lambda v: type(v) in (int, float))
_BATCH = _Kind('a whole number or "full"', lambda v: type(v) is int or v == "full")
_COHORT = _Kind("a number, a fraction, or a list of clients for every round", lambda v: type(v) in (int, float, list))

_KEYS: dict[str, dict[str, _Kind]] = {
    "data": {"name": _TEXT, "partition": _TEXT, "clients": _WHOLE, "test_share": _NUMBER, "normalise": _FLAG},
    "model": {"name": _TEXT},
    "local": {
        "lr": _NUMBER,
        "lr_decay": _NUMBER,
        "epochs": _WHOLE,
        "steps": _WHOLE,
        "batch_size": _BATCH,
        "momentum": _NUMBER,
        "weight_decay": _NUMBER,
        "clip": _NUMBER,
        "optimizer": _TEXT,
    },
    "server": {"lr": _NUMBER, "weighting": _TEXT},
    "run": {
        "rounds": _WHOLE,
        "cohort": _COHORT,
        "seed": _WHOLE,
        "eval_every": _WHOLE,
        "target": _NUMBER,
        "device": _TEXT,
        "dtype": _TEXT,
        "engine": _TEXT,
        "buffers": _TEXT,
        "precision": _TEXT,
        "augment": _TEXT,
    },
}
_DATA = "digits"  # where none is named
# A fifth of the clients in a round, as federations have it; 1.0 is everyone, with whom some algorithms (FedHBM with its
# default beta) are unstable.
_COHORT_SHARE = 0.2


class Labelled(NamedTuple):
    label: str  # the class name, with the options that were given
    algorithm: Algorithm


@dataclass(frozen=True)
class Recipe:
    """An experiment without its algorithm, all by name."""

    data: dict[str, Any]  # arguments of `undrift.data.load`, except the seed
    model: str
    augment: str | None
    options: Options
    usual: dict[str, Any] = field(default_factory=dict)  # settings that the data set brought, as section.key

    def federation(self, seed: int) -> FederatedData:
        return load(**self.data, seed=seed)


# From text to plain values


def read(path: str | Path) -> Config:
    """A TOML file as nested values."""
    if not Path(path).is_file():
        hint = "; an algorithm is given with -a" if str(path).lower() in algorithms.available() else ""
        raise ValueError(f"there is no configuration file {str(path)!r}{hint}")
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).removesuffix(")").partition(" (at ")
        raise ValueError(f"{path}, {where}: {what[0].lower()}{what[1:]}") from None
    if isinstance(content.get("algorithm"), str):
        content["algorithm"] = algorithm_section(content["algorithm"])
    for section, keys in content.items():
        if not isinstance(keys, dict):
            what = f"; did you mean [{section}] with name = {keys!r}?" if "name" in _KEYS.get(section, {}) else ""
            raise ValueError(f"{path}: {section!r} must be a section, [{section}], got {keys!r}{what}")
    return content


def setting(text: str) -> tuple[str, str, Any]:
    """``section.key=value`` taken apart; a value is written as in TOML, and a bare word is a text."""
    path, equals, value = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not equals or not value.strip():
        raise ValueError(f"a setting is written section.key=value, as in local.lr=0.05, got {text!r}")
    if not dot:
        raise ValueError(f"unknown key {section!r}{_suggestion('', section)}")
    return section, key, _toml_value(value.strip())


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if text[0] in "[{\"'":
            raise ValueError(f"{text!r} is not a value as TOML writes it") from None
        return text


def with_value(config: Config, section: str, key: str, value: Any) -> Config:
    return config | {section: config.get(section, {}) | {key: value}}


def algorithm_section(text: str) -> dict[str, Any]:
    """``fedprox`` or ``fedprox(mu=0.1)`` as a section; a bare word among the options is a text."""
    match = re.fullmatch(r"\s*([\w -]+?)\s*(\(.*\))?\s*", text, re.DOTALL)
    if not match:
        raise ValueError(f"an algorithm is written name or name(option=value), got {text!r}")
    try:
        call = ast.parse(f"_{match[2] or '()'}", mode="eval").body
        return {"name": match[1], **_keywords(call)}
    except (SyntaxError, ValueError):
        raise ValueError(f"options of an algorithm are written name(option=value, ...), got {text!r}") from None


def _keywords(call: ast.expr) -> dict[str, Any]:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise ValueError
    return {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords}


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.lower() == "pgvc":
        return _keywords(node)
    return ast.literal_eval(node)


def algorithm_sections(text: str) -> list[dict[str, Any]]:
    """A list with commas: ``fedavg,fedprox(mu=0.1)``."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [algorithm_section(part) for part in parts if part.strip()]


# From plain values to an experiment


def recipe(config: Config) -> Recipe:
    """What the sections stand for; refuses what it does not know."""
    given = {section: _checked(section, keys) for section, keys in config.items() if section != "algorithm"}
    values, usual = completed(given, given.get("data", {}).get("name", _DATA))
    local, server, run = ({**values.get(section, {})} for section in ("local", "server", "run"))
    if local.get("batch_size") == "full":
        local["batch_size"] = None
    if "lr" in server:
        server["server_lr"] = server.pop("lr")
    augment = run.pop("augment", None)
    return Recipe(
        {"name": _DATA} | values.get("data", {}),
        values["model"]["name"],
        augment,
        Options(**local, **server, **{"cohort": _COHORT_SHARE} | run),
        usual,
    )


def labelled(section: Mapping[str, Any]) -> Labelled:
    """The algorithm of a section; its label shows the options that were given."""
    options = {key: value for key, value in section.items() if key != "name"}
    if not isinstance(section.get("name"), str):
        raise ValueError("no algorithm is named; give one with -a, and see them with: undrift list algorithms")
    kind = algorithms.find(section["name"])
    _refuse_unknown(kind.__name__, options, kind)
    if isinstance(options.get("pgvc"), dict):
        _refuse_unknown("PGVC", options["pgvc"], PGVC)
        options["pgvc"] = PGVC(**options["pgvc"])
    given = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return Labelled(f"{kind.__name__}({given})" if given else kind.__name__, kind(**options))


def _refuse_unknown(name: str, options: Mapping[str, Any], kind: type[Algorithm] | type[PGVC]) -> None:
    known = [option.name for option in fields(kind)]
    for key in options:
        if key not in known:
            raise ValueError(f"{name} has no option {key!r}{nearest(key, known)}")


def _checked(section: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    if section not in _KEYS:
        raise ValueError(f"unknown section {section!r}{nearest(section, [*_KEYS, 'algorithm'])}")
    for key, value in keys.items():
        if key not in _KEYS[section]:
            raise ValueError(f"unknown key '{section}.{key}'{_suggestion(section, key)}")
        kind = _KEYS[section][key]
        if not kind.fits(value):
            raise ValueError(f"{section}.{key} must be {kind.words}, got {value!r}")
    return dict(keys)


def _suggestion(section: str, key: str) -> str:
    """The same key of another section, or else the closest of all."""
    elsewhere = [f"{s}.{key}" for s, keys in _KEYS.items() if key in keys]
    if elsewhere:
        return f"; did you mean {' or '.join(map(repr, elsewhere))}?"
    home = _KEYS.get(section)
    known = [f"{s}.{k}" for s, keys in _KEYS.items() for k in keys if home is None or s == section]
    return nearest(f"{section}.{key}" if section else key, known)
