"""What is tried of every algorithm: values of its options and of the settings of its runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from undrift.algorithms.text import SETTINGS, Written
from undrift.core import check
from undrift.core.check import nearest
from undrift.methods.options import default_of
from undrift.simulation.vary import changed_by, check_listed, values_of
from undrift.tuning.presets import PRESETS

# Times the rate that a data set has by default, where no grid is given.
RATES = (0.1, 0.3, 1, 3, 10)
SERVER_RATES = (0.1, 1, 10)


class Configuration(NamedTuple):
    """An algorithm with one value for each of its axes."""

    label: str  # of the algorithm, as it is compared
    values: Mapping[str, Any]
    written: Written

    @property
    def name(self) -> str:
        """Tells it apart from all others: the label, and every value."""
        return f"{self.label}({', '.join(f'{key}={value!r}' for key, value in self.values.items())})"

    @property
    def text(self) -> str:
        """As users write it: ``fedprox(mu=0.1, lr=0.03)``."""
        algorithm, settings = self.written
        options = {
            each.name: value
            for each in fields(algorithm)
            if (value := getattr(algorithm, each.name)) != default_of(each) or each.name in self.values
        }
        given = ", ".join(f"{key}={value!r}" for key, value in {**options, **settings}.items())
        return f"{algorithm.name()}({given})"


@dataclass(frozen=True)
class Space:
    """The values that are tried of one algorithm, by option or setting."""

    label: str
    written: Written
    axes: Mapping[str, Sequence[Any]]

    @property
    def size(self) -> int:
        return math.prod(len(values) for values in self.axes.values())

    def configuration(self, values: Mapping[str, Any]) -> Configuration:
        return Configuration(self.label, dict(values), changed_by(self.written, values))

    def configurations(self, budget: int, seed: int) -> list[Configuration]:
        """All of them, or as many as the budget allows: those in which every value occurs about equally often."""
        every = [dict(zip(self.axes, values, strict=True)) for values in product(*self.axes.values())]
        chosen = every if budget >= len(every) else _spread(every, budget, seed)
        return [self.configuration(values) for values in chosen]


def _spread(every: Sequence[dict[str, Any]], count: int, seed: int) -> list[dict[str, Any]]:
    """Some of all configurations, at random, but one after the other those whose values were taken least often."""
    order = np.random.default_rng([seed, 11]).permutation(len(every)).tolist()
    taken: Counter[tuple[str, str]] = Counter()
    chosen: list[int] = []
    for _ in range(count):
        best = min(order, key=lambda number: sum(taken[key, repr(value)] for key, value in every[number].items()))
        order.remove(best)
        chosen.append(best)
        taken.update((key, repr(value)) for key, value in every[best].items())
    return [every[number] for number in sorted(chosen)]


def read_grid(grid: Any) -> dict[str, list[Any]]:
    """A grid of the user's, or a paper's by name."""
    if isinstance(grid, str):
        if grid not in PRESETS:
            raise ValueError(f"unknown grid {check.shown(grid)}{nearest(grid, PRESETS)}")
        return {key: list(values) for key, values in PRESETS[grid].grid.items()}
    if not isinstance(grid, Mapping):
        raise TypeError(f"grid must be a dict such as {{'lr': [0.01, 0.1]}}, or a name, got {check.shown(grid)}")
    if not grid:
        raise ValueError(f"grid must have values to try, as in {{'lr': [0.01, 0.1]}}, or be one of {_names(PRESETS)}")
    for key in grid:
        if not isinstance(key, str):
            raise TypeError(f"grid: a key must be a text such as 'lr' or 'fedprox.mu', got {check.shown(key)}")
    return {key: values_of(f"grid: {key}", values) for key, values in grid.items()}


def spaces(algorithms: Mapping[str, Written], grid: Mapping[str, Sequence[Any]], *, paper: bool = False) -> list[Space]:
    """What is tried of every algorithm; a paper's grid may be for others, too."""
    for key in grid:
        _check_key(key, algorithms, paper)
    return [_space(label, written, grid) for label, written in algorithms.items()]


def _check_key(key: str, algorithms: Mapping[str, Written], paper: bool) -> None:
    name, dot, option = key.partition(".")
    if not dot:
        if key not in SETTINGS:
            raise _unknown(key, algorithms)
        return
    if not paper:
        check_listed(f"grid: {key}", name, algorithms)
    for written in algorithms.values():
        known = [*(each.name for each in fields(written.algorithm)), *SETTINGS]
        if written.algorithm.name() == name and option not in known:
            kind = type(written.algorithm).__name__
            raise ValueError(f"grid: {kind} has no option {check.shown(option)}{nearest(option, known)}")


def _unknown(key: str, algorithms: Mapping[str, Written]) -> ValueError:
    owners = [w.algorithm.name() for w in algorithms.values() if key in {each.name for each in fields(w.algorithm)}]
    hint = f"; did you mean '{owners[0]}.{key}'?" if owners else nearest(key, SETTINGS)
    return ValueError(f"grid: {check.shown(key)} is no setting of all algorithms{hint}")


def _space(label: str, written: Written, grid: Mapping[str, Sequence[Any]]) -> Space:
    algorithm, axes = written.algorithm, {}
    for key, values in grid.items():
        name, dot, option = key.partition(".")
        if not dot and not (key == "server_lr" and algorithm.own_step):
            axes[key] = values
        elif dot and name == algorithm.name():
            axes[option] = values  # which wins over a value for all
    for key in axes:
        _refuse_fixed(label, written, key)
    if not axes:
        raise ValueError(f"grid: it has nothing to try of {label}; add a setting such as 'lr'")
    space = Space(label, written, {key: axes[key] for key in sorted(axes, key=lambda key: key in SETTINGS)})
    for key, values in space.axes.items():
        for value in values:
            try:
                changed_by(written, {key: value})
            except (ValueError, TypeError) as error:
                raise type(error)(f"grid: {label}: {error}") from None
    return space


def _refuse_fixed(label: str, written: Written, key: str) -> None:
    options = {each.name: default_of(each) for each in fields(written.algorithm)}
    fixed = key in written.settings or (key in options and getattr(written.algorithm, key) != options[key])
    if fixed:
        raise ValueError(f"grid: {label} has a value of {key} of its own already; leave it out of one of the two")


def default_grid(written: Written, rate: float) -> dict[str, list[Any]]:
    """Rates around the one that the data set has for an algorithm, and the server's for those that adapt it."""
    algorithm, grid = written.algorithm, {}
    if "lr" not in written.settings:
        grid["lr"] = [float(f"{rate * factor:.3g}") for factor in RATES]
    if algorithm.default_server_lr != 1 and "server_lr" not in written.settings:
        grid["server_lr"] = [float(f"{algorithm.default_server_lr * factor:.3g}") for factor in SERVER_RATES]
    return grid


def common_budget(every: Sequence[Space], budget: int | None) -> int:
    """How many configurations of each algorithm are tried: the same number for all."""
    smallest = min(every, key=lambda space: space.size)
    if budget is None:
        return smallest.size
    check.integer("budget", budget, 1)
    if budget > smallest.size:
        raise ValueError(
            f"budget={budget} cannot be the same for all: {smallest.label} has only {smallest.size} configurations; "
            f"give it more values, or a budget of at most {smallest.size}"
        )
    return budget


def _names(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names))
