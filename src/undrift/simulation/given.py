"""What a comparison or a tuning is given: algorithms, seeds, data and settings, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from undrift.algorithms.text import Written
from undrift.core import check
from undrift.core.check import nearest
from undrift.data import FederatedData
from undrift.methods.algorithm import Algorithm
from undrift.simulation.arguments import Objects
from undrift.simulation.defaults import Resolved, resolve_defaults
from undrift.simulation.options import SEEDS, Options, plain
from undrift.simulation.prepare import find_algorithm, find_data
from undrift.simulation.together import named

MOST_SEEDS = 10_000


def labelled_algorithms(algorithms: Any) -> dict[str, Written]:
    given = check.plain(algorithms)
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise TypeError(
            f"algorithms must be a list of names or a dict of labels and algorithms, got {check.shown(given)}"
        )
    if not given:
        raise ValueError("compare needs at least one algorithm, got none")
    if not isinstance(given, Mapping):
        found = [find_algorithm(a) for a in given]
        labelled = {a.label: a for a in found}
        if len(labelled) < len(found):
            raise ValueError("algorithms must differ; give a dict with a label for each")
        return labelled
    for label in given:
        if not isinstance(label, str) or not label.strip():
            raise TypeError(f"the label of an algorithm must be a text, got {check.shown(label)}")
        if any("\ud800" <= letter <= "\udfff" for letter in label):  # bytes of a command line that are no UTF-8
            raise ValueError(f"the label of an algorithm must be a text in UTF-8, got {check.shown(label)}")
    return {label: find_algorithm(a) for label, a in given.items()}


def list_of_seeds(seeds: Any) -> list[int]:
    seeds = plain(seeds)
    if not isinstance(seeds, list):
        check.integer("seeds", seeds, 1, MOST_SEEDS)
        return list(range(seeds))
    for seed in seeds:
        check.integer("seeds: a seed", seed, 0, SEEDS - 1)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be a count or a list of different numbers, got {check.shown(seeds)}")
    return seeds


def federations_of(data: Any, seeds: Sequence[int]) -> dict[int, FederatedData]:
    """The data of every seed."""
    if callable(data):
        check.function("data", data, "seed")
    return {seed: find_data(data(seed) if callable(data) else data, seed) for seed in seeds}


def separated(function: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The objects among further arguments, and the options."""
    objects = [f.name for f in fields(Objects) if f.kw_only]
    known = [*objects, *(f.name for f in fields(Options) if f.name not in ("seed", "lr"))]
    for key in given:
        if key not in known:
            raise TypeError(f"{function} has no argument {key!r}{nearest(key, known)}")
    return {k: v for k, v in given.items() if k in objects}, {k: v for k, v in given.items() if k not in objects}


class Given(NamedTuple):
    """What the runs of a comparison share."""

    model: Any
    federations: Mapping[int, FederatedData]  # of every seed
    test: Any
    objects: Mapping[str, Any]
    options: Mapping[str, Any]

    def resolved(self, label: str, algorithm: Algorithm | Written, rate: Any, seed: int) -> Resolved:
        data = self.federations[seed]
        with named(label):
            objects = Objects(algorithm, self.model, data, self.test, **self.objects)
            return resolve_defaults(objects, Options(**{**self.options, "lr": rate, "seed": seed}), data)
