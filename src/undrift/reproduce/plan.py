"""What of an experiment is run: all of it, its short version, or what the caller asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undrift.algorithms.text import parse
from undrift.core import check
from undrift.reproduce.experiment import Experiment, Tuning
from undrift.simulation.given import labelled_algorithms
from undrift.tuning.grid import common_budget, read_grid, spaces


@dataclass(frozen=True)
class Plan:
    experiment: Experiment
    fast: bool
    cases: tuple[str, ...]
    algorithms: Mapping[str, str]  # by label, as they are written
    seeds: int
    changed: Mapping[str, Any]  # settings that are not the experiment's, by section.key
    tuning: Tuning | None  # None: the texts of the algorithms have their rates

    def settings(self, case: str) -> dict[str, Any]:
        """Plain values by section.key."""
        return self.experiment.settings_of(case) | dict(self.changed)

    def data(self, case: str) -> dict[str, Any]:
        """Arguments of `undrift.data.load`."""
        return {key.removeprefix("data."): v for key, v in self.settings(case).items() if key.startswith("data.")}

    @property
    def budget(self) -> int:
        """Configurations that are tried of every algorithm, also of those that are not run now; 0 without tuning."""
        if self.tuning is None:
            return 0
        texts = {each.label: each.run for each in self.experiment.entries}
        grid = read_grid(self.tuning.grid.value)
        return common_budget(spaces(labelled_algorithms(texts), grid, paper=True), self.tuning.budget)

    def grid(self, label: str) -> dict[str, list[Any]]:
        """What is tried of one algorithm: values for all, and its own."""
        assert self.tuning is not None
        own = (f"{parse(self.algorithms[label]).algorithm.name()}.", f"{label}.")
        given = read_grid(self.tuning.grid.value)
        return {key: values for key, values in given.items() if "." not in key or key.startswith(own)}

    def rounds(self, case: str) -> int:
        return int(self.settings(case)["run.rounds"])


def plan(
    experiment: Experiment,
    *,
    fast: bool = False,
    seeds: int | None = None,
    rounds: int | None = None,
    only: str = "",
) -> Plan:
    """`only` names algorithms and cases ("FedAvg,non-IID"); of those that it does not name a kind of, all are run."""
    if fast and not experiment.fast:
        raise ValueError(f"{experiment.name} has no short version")
    short = experiment.fast if fast else {}
    algorithms = short.get("algorithms") or {each.label: each.run for each in experiment.entries}
    cases = tuple(short.get("cases") or experiment.cases)
    known, whole = [*algorithms, *cases], [*(each.label for each in experiment.entries), *experiment.cases]
    chosen = listed(only, known)
    if only and not chosen:
        raise ValueError(f"only must name algorithms or cases of {experiment.name}, got {check.shown(only)}")
    for name in chosen:
        if name in whole and name not in known:
            there = ", ".join(filter(None, known))
            raise ValueError(f"{experiment.name}: its short version has no {check.shown(name)}, only {there}")
        if name not in known:
            raise ValueError(f"{experiment.name} has no {check.shown(name)}{check.nearest(name, known)}")
    changed = {key: value for key, value in short.items() if key not in ("algorithms", "cases", "seeds")}
    if seeds is not None:
        check.integer("seeds", seeds, 1)
    if rounds is not None:
        check.integer("rounds", rounds, 1)
        changed["run.rounds"] = rounds
    return Plan(
        experiment,
        fast,
        tuple(case for case in cases if case in chosen) or cases,
        {label: text for label, text in algorithms.items() if label in chosen} or algorithms,
        seeds or int(short.get("seeds", experiment.seeds.value)),
        changed,
        None if fast else experiment.tuning,
    )


def listed(text: str, known: Sequence[str]) -> list[str]:
    """The names of a list with commas, which some of the names have themselves."""
    parts, names = [part.strip() for part in text.split(",") if part.strip()], []
    while parts:
        longest = next((n for n in range(len(parts), 1, -1) if ", ".join(parts[:n]) in known), 1)
        names.append(", ".join(parts[:longest]))
        parts = parts[longest:]
    return names
