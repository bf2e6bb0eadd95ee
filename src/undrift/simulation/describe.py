"""The objects of a run in plain values, for its configuration file, and back."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from undrift import algorithms
from undrift.algorithms.text import from_stored, plugin_from_stored
from undrift.client.evaluate import Samples
from undrift.core import check
from undrift.data import FederatedData, load
from undrift.methods.algorithm import Algorithm
from undrift.methods.codec import Codec
from undrift.methods.codecs import CODECS
from undrift.methods.options import default_of
from undrift.methods.plugin import Plugin
from undrift.methods.robust import Rule
from undrift.plugins import available as available_plugins
from undrift.simulation.arguments import Objects
from undrift.simulation.options import COSINE, Options
from undrift.storage import fingerprint, initial
from undrift.storage.directory import RunDirectory
from undrift.storage.files import DamageError
from undrift.storage.fingerprint import FILE, is_fingerprint

Description = dict[str, Any]

# What a configuration written before these existed stands for.
_LATER: Description = {
    "metrics": [],
    "plugins": [],
    "aggregate": "mean",
    "compress": None,
    "privacy": None,
    "attack": None,
}


def describe(
    objects: Objects, algorithm: Algorithm, data: FederatedData, test: Samples | None, known: Description | None = None
) -> Description:
    """What `resume` makes the objects from again, or recognises them by; plug-ins and codec are instances.

    `known` describes the same data already: their fingerprint takes a while.
    """
    model, metrics = objects.model, objects.metrics
    return {
        "algorithm": _description(algorithm),
        "model": fingerprint.of_module(model) if isinstance(model, nn.Module) else model,
        "data": known or data.recipe or {fingerprint.FINGERPRINT: data.fingerprint()},
        "test": None if test is None else fingerprint.of_samples(test),
        "loss": _by_name(objects.loss),
        "augment": _by_name(objects.augment),
        "metrics": {k: _by_name(f) for k, f in metrics.items()} if isinstance(metrics, Mapping) else list(metrics),
        "plugins": [_plain(plugin) for plugin in objects.plugins],
        "aggregate": str(objects.aggregate) if isinstance(objects.aggregate, Rule) else _by_name(objects.aggregate),
        "compress": _plain(objects.compress),
        "privacy": None if objects.privacy is None else str(objects.privacy),
        "attack": None if objects.attack is None else str(objects.attack),
    }


def _description(algorithm: Algorithm) -> Description:
    return {"name": algorithm.name(), "options": {k: _plain(v) for k, v in algorithm.options().items()}}


def _by_name(given: str | Callable[..., Any] | None) -> Any:
    return given if given is None or isinstance(given, str) else fingerprint.of_callable(given)


def _plain(value: Any) -> Any:
    """An option's value; what is no plain value (a state dict) is fingerprinted."""
    if isinstance(value, Plugin | Codec):
        return _kind_of(value) | {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return fingerprint.of_tree(value)
    if isinstance(value, Path):
        return fingerprint.of_file(value)
    return list(value) if isinstance(value, tuple) else value


def _kind_of(value: Plugin | Codec) -> dict[str, str]:
    """The name of a registered plug-in or codec; others must be given to `resume` again."""
    registered = {kind: name for name, kind in (available_plugins() | CODECS).items()}
    name = registered.get(type(value))
    return fingerprint.of_callable(type(value)) if name is None else {"name": name}


def read_options(directory: RunDirectory) -> Options:
    """The options of a stored run."""
    try:
        options = Options(**directory.config["options"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{directory.path} has options that this version cannot use: {error}") from None
    if options.weighting is not None:
        return options
    kind = algorithms.known().get(str(_name_of_algorithm(directory)))  # version 0.1 stored None for its paper's
    return options if kind is None else replace(options, weighting=kind.weighting)


def _name_of_algorithm(directory: RunDirectory) -> Any:
    stored = directory.config.get("algorithm")
    return stored.get("name") if isinstance(stored, Mapping) else None


def same_options(directory: RunDirectory, options: Options) -> Options:
    """The options of a run that is there already, which may be given more rounds; others must be the same."""
    stored = read_options(directory)
    given = json.loads(json.dumps(asdict(options)))  # tuples become lists, as in the file
    for key, value in asdict(stored).items():
        if key not in ("rounds", "engine", "device", "actors", "address") and value != given[key]:
            home = directory.path
            raise ValueError(f"{home} was begun with {key}={value!r}, not {given[key]!r}; choose another directory")
    return with_rounds(directory, replace(stored, address=options.address), options.rounds)


def with_rounds(directory: RunDirectory, stored: Options, rounds: int) -> Options:
    """The options of a stored run that is to have so many rounds."""
    if stored.lr_decay == COSINE and rounds != stored.rounds:
        raise ValueError(
            f"{directory.path} was begun for {stored.rounds} rounds, over which its rate decays, not for {rounds}; "
            "choose another directory"
        )
    return replace(stored, rounds=rounds)


def restore(directory: RunDirectory, given: Mapping[str, Any]) -> Objects:
    """The objects of a stored run: those `given`, and by name what was given by name."""
    try:
        given = {**given, "model": as_begun(directory, given.get("model"))}
        return _restored(_LATER | directory.config, given)
    except (KeyError, TypeError, AttributeError) as error:  # a configuration that was edited before it had a checksum
        raise ValueError(f"{directory.path} has a configuration that cannot be used: {error!r}") from None


def as_begun(directory: RunDirectory, model: Any) -> Any:
    """A module of the architecture that a run was started with, with the weights it was started with."""
    stored = directory.config.get("model")
    if not isinstance(model, nn.Module) or fingerprint.of_module(model) == stored:
        return model
    try:
        weights = initial.restored(directory.path, model)
    except DamageError:
        raise
    except ValueError as difference:
        raise ValueError(f"the given model is not the one this run was started with: {difference}") from None
    if weights is None:
        return model
    begun = copy.deepcopy(model)
    begun.load_state_dict(weights, strict=False)
    if fingerprint.of_module(begun) != stored:
        kinds = "its layers are of other kinds, or its frozen parameters have other values"
        raise ValueError(f"the given model is not the one this run was started with: {kinds}")
    return begun


def given_as_objects(config: Description) -> list[str]:
    """What must be given to `resume` again."""
    return [part for part in (f.name for f in fields(Objects)) if _holds_fingerprint(config.get(part))]


def _holds_fingerprint(stored: Any) -> bool:
    if isinstance(stored, Mapping):
        return is_fingerprint(stored) or any(map(_holds_fingerprint, stored.values()))
    return isinstance(stored, list) and any(map(_holds_fingerprint, stored))


def _restored(stored: Description, given: Mapping[str, Any]) -> Objects:
    algorithm = _algorithm(stored["algorithm"]) if given.get("algorithm") is None else given["algorithm"]
    return Objects(
        algorithm,
        _named("model", stored, given),
        _data(stored, given),
        _named("test", stored, given),
        loss=_named("loss", stored, given),
        augment=_named("augment", stored, given),
        metrics=_named("metrics", stored, given),
        plugins=_plugins(stored, given),
        aggregate=_named("aggregate", stored, given),
        compress=_codec(stored, given),
        privacy=_named("privacy", stored, given),
        attack=_named("attack", stored, given),
    )


def check_same_algorithm(directory: RunDirectory, algorithm: Algorithm) -> None:
    """Before options are compared, of which some are the algorithm's own by default."""
    check_same(directory.config, {"algorithm": _description(algorithm)})


def check_same(stored: Description, now: Description) -> None:
    for part, description in now.items():
        before = (_LATER | stored).get(part)
        if not _equal(part, before, description):
            plain = not _holds_fingerprint(before) and not _holds_fingerprint(description)
            values = f": {check.shown(description)} instead of {check.shown(before)}" if plain else ""
            raise ValueError(f"the given {part} is not the one this run was started with{values}")


def _equal(part: str, before: Any, now: Any) -> bool:
    if part != "algorithm":
        return bool(before == now)
    if not isinstance(before, Mapping) or not isinstance(before.get("options"), Mapping):
        return False
    same = before.get("name") == now["name"]
    return same and _unnamed(_later_options(now) | before["options"]) == _unnamed(now["options"])


def _later_options(now: Description) -> dict[str, Any]:
    """What an option stands for that did not exist when a run was begun: its default."""
    kind = algorithms.known().get(now["name"])
    every = () if kind is None else fields(kind)
    return {option.name: _plain(default_of(option)) for option in every if option.name in now["options"]}


def _unnamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as version 0.1 stored them: a plug-in without its name, which is that of the option."""
    return {
        key: {k: v for k, v in value.items() if k != "name"} if isinstance(value, Mapping) else value
        for key, value in options.items()
    }


def _algorithm(stored: Mapping[str, Any]) -> Algorithm:
    objects = [key for key, value in stored["options"].items() if is_fingerprint(value)]
    if objects:
        raise ValueError(f"this run's algorithm was given {objects[0]} as an object; give algorithm= again")
    options = {key: Path(value[FILE]) if _is_file(value) else value for key, value in stored["options"].items()}
    return from_stored(stored["name"], options)


def _is_file(value: Any) -> bool:
    return isinstance(value, Mapping) and FILE in value


def _codec(stored: Description, given: Mapping[str, Any]) -> Any:
    found = _named("compress", stored, given)
    if given.get("compress") is not None or not isinstance(found, Mapping):
        return found
    return CODECS[found["name"]](**{k: v for k, v in found.items() if k != "name"})


def _plugins(stored: Description, given: Mapping[str, Any]) -> Any:
    found = _named("plugins", stored, given)
    if given.get("plugins") is not None:
        return found
    return [plugin_from_stored(each) if isinstance(each, Mapping) else each for each in found]


def _named(part: str, stored: Description, given: Mapping[str, Any]) -> Any:
    if given.get(part) is not None:
        return given[part]
    value = stored[part]
    entries = value.values() if part == "metrics" and isinstance(value, Mapping) else value
    if any(is_fingerprint(each) for each in (value, *(entries if isinstance(entries, Iterable) else ()))):
        raise ValueError(f"this run was started with {part} given as an object; give {part}= again")
    return value


def _data(stored: Description, given: Mapping[str, Any]) -> Any:
    if given.get("data") is None and "name" in stored["data"]:
        return load(**{key: value for key, value in stored["data"].items() if key != "digest"})
    return _named("data", stored, given)
