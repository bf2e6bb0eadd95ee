"""A setting that takes several values in turn, in runs that are otherwise the same."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from undrift.algorithms.text import SETTINGS, Written
from undrift.core import check
from undrift.core.check import nearest
from undrift.data import FederatedData, load
from undrift.methods.options import refuse_unknown
from undrift.simulation.options import Options, plain
from undrift.storage.comparison import folders_of

_OF_DATA = tuple(name for name in inspect.signature(load).parameters if name not in ("name", "seed"))
_OF_RUN = tuple(each.name for each in fields(Options) if each.name not in ("seed", *SETTINGS))
_OF_TASK = ("rounds", "cohort", "epochs", "steps", *_OF_DATA)  # runs that differ in them are of different tasks


@dataclass(frozen=True)
class Loaded:
    """A named data set as a function of the seed."""

    arguments: Mapping[str, Any]  # of `undrift.data.load`

    def __call__(self, seed: int) -> FederatedData:
        return load(**self.arguments, seed=seed)


class Variant(NamedTuple):
    """A comparison with one of the values."""

    folder: str  # of its runs, in that of the whole comparison; empty where all are in the same
    algorithms: Mapping[str, Written]  # by label
    data: Any
    options: Mapping[str, Any]


def variants(
    vary: Mapping[str, Sequence[Any]], algorithms: Mapping[str, Written], data: Any, options: Mapping[str, Any]
) -> list[Variant]:
    """The comparison once for each value of the setting in `vary`.

    Values of an algorithm's own, and those that belong to one task, become algorithms with labels of their own.
    """
    if not vary:
        return [Variant("", algorithms, data, options)]
    key, values = _checked(vary)
    name, dot, option = key.partition(".")
    if dot or key in SETTINGS:
        return [Variant("", expanded(algorithms, name if dot else None, option or key, values), data, options)]
    if key in _OF_RUN:
        return [
            Variant(folder, _relabelled(algorithms, key, value), data, {**options, key: value})
            for value, folder in _folders(key, values)
        ]
    if key not in _OF_DATA:
        raise _unknown(key, algorithms)
    loaded = Loaded({"name": data}) if isinstance(data, str) else data
    if not isinstance(loaded, Loaded):
        raise TypeError(f"vary={key!r} needs data that are given by name, got {type(data).__name__}")
    return [
        Variant(folder, algorithms, Loaded({**loaded.arguments, key: value}), options)
        for value, folder in _folders(key, values)
    ]


def _checked(vary: Any) -> tuple[str, list[Any]]:
    if not isinstance(vary, Mapping) or len(vary) != 1 or not isinstance(key := next(iter(vary)), str):
        raise ValueError(f"vary must name one setting with its values, as in {{'cohort': [0.1, 0.5]}}, got {vary!r}")
    return key, values_of(f"vary: {key}", vary[key])


def values_of(name: str, given: Any) -> list[Any]:
    """A list of different values."""
    values = plain(given)
    if isinstance(values, str) or not isinstance(values, list | tuple):
        raise TypeError(f"{name} must be a list of values, got {check.shown(given)}")
    if not values:
        raise ValueError(f"{name} must have at least one value, got none")
    if len({repr(value) for value in values}) < len(values):
        raise ValueError(f"{name} must be different values, got {check.shown(given)}")
    return list(values)


def expanded(
    algorithms: Mapping[str, Written], name: str | None, option: str, values: Sequence[Any]
) -> dict[str, Written]:
    """For the algorithms of this name (None: for all), one for each value of an option, or of a setting of its runs."""
    if name is not None:
        check_listed(f"vary: {name}.{option}", name, algorithms)
    found: dict[str, Written] = {}
    for label, written in algorithms.items():
        if name is not None and written.algorithm.name() != name:
            found[label] = written
            continue
        for value in values:
            changed = changed_by(written, {option: value})
            found[changed.label if label == written.label else f"{label}, {option} {value}"] = changed
    return found


def check_listed(what: str, name: str, algorithms: Mapping[str, Written]) -> None:
    known = list(dict.fromkeys(written.algorithm.name() for written in algorithms.values()))
    if name not in known:
        raise ValueError(f"{what}: {check.shown(name)} is none of the algorithms{nearest(name, known)}")


def changed_by(written: Written, options: Mapping[str, Any]) -> Written:
    """An algorithm with other options, among them settings of its runs; they are checked."""
    algorithm, own = written.algorithm, {each.name for each in fields(written.algorithm)}
    refuse_unknown(type(algorithm).__name__, options, [*own, *SETTINGS])
    settings = {key: value for key, value in options.items() if key not in own}
    Options(**{**written.settings, **settings})
    kept = {key: getattr(algorithm, key) for key in own}
    changed = type(algorithm)(**kept | {key: value for key, value in options.items() if key in own})
    return Written(changed, {**written.settings, **settings})


def _relabelled(algorithms: Mapping[str, Written], key: str, value: Any) -> Mapping[str, Written]:
    if key in _OF_TASK:
        return algorithms
    return {f"{label}, {key} {value}": written for label, written in algorithms.items()}


def _folders(key: str, values: Sequence[Any]) -> list[tuple[Any, str]]:
    """Every value with the folder of its runs."""
    names = [f"{key} {value}" for value in values]
    folders = folders_of(names)
    return [(value, folders[name]) for value, name in zip(values, names, strict=True)]


def _unknown(key: str, algorithms: Mapping[str, Written]) -> ValueError:
    """For a setting that nobody has; an option of an algorithm is written with its name."""
    owners = [w.algorithm.name() for w in algorithms.values() if key in {each.name for each in fields(w.algorithm)}]
    if owners:
        return ValueError(f"{check.shown(key)} is an option of an algorithm; did you mean '{owners[0]}.{key}'?")
    return ValueError(f"vary: unknown setting {check.shown(key)}{nearest(key, [*_OF_RUN, *SETTINGS, *_OF_DATA])}")
