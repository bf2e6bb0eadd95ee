"""An experiment of a paper, as a file in `experiments/` describes it.

    paper = "FedDPC"
    table = "Table 2, CIFAR-10"
    title = "Best accuracy on CIFAR-10"

    [data]                                  # the sections and keys of `undrift run CONFIG.toml`
    name = { value = "cifar10", source = "§5.1" }
    [local]
    weight_decay = { value = 0.0, note = "not mentioned" }

    [algorithms]                            # by the paper's name
    FedDPC = { run = "feddpc(lam=1)", source = "§5.2.4" }

    [cases."α = 0.2"]                       # settings that differ
    "data.partition" = { value = "dirichlet:0.2", source = "§5.1" }

    [tuning]                                # on held-out training samples; without it, rates are given
    grid = { value = "feddpc", source = "§5.2.4" }

    [[figures]]
    measure = "best"
    [figures.values."α = 0.2"]
    FedDPC = 55.44                          # or [66.12, 0.32], with the spread that the paper prints

    [[claims]]
    text = "FedDPC has the highest accuracy"
    measure = "best"
    better = "FedDPC"                       # than all others, or `than` some, or itself in the case `than_case`;
                                            # `equal = true`: as good as they are; `no_better = true`: not better;
                                            # `mcnemar = true`: by McNemar's test on the answers of the final models

    [judged_from]                           # where the paper prints no figures: the accuracy in percent below which
    value = 40                              # runs with fewer rounds decide nothing
    source = "half of Table 3"

    [fast]                                  # a short version, for two cores
    "run.rounds" = 20

Every value has a `source` in the paper or, where the paper leaves it open, a `note`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from undrift.core import check
from undrift.reproduce.measures import measure_named

SECTIONS = ("data", "model", "local", "server", "run")  # of settings


class Setting(NamedTuple):
    """A value, and where it is from."""

    value: Any
    source: str = ""  # in the paper
    note: str = ""  # what the paper leaves open, or what is different here


class Entry(NamedTuple):
    """An algorithm of the experiment."""

    label: str
    run: str  # as it is written: "fedprox(mu=0.1)"
    source: str
    note: str


class Figure(NamedTuple):
    """What the paper prints."""

    value: float
    spread: float | None = None


@dataclass(frozen=True)
class Figures:
    """A table or a plot of the paper, in one measure."""

    measure: str  # as `measure_named` reads it
    values: Mapping[str, Mapping[str, Figure]]  # case -> label -> figure


@dataclass(frozen=True)
class Claim:
    """What the paper says follows."""

    text: str
    measure: str
    better: str  # the label that is better ...
    than: tuple[str, ...]  # ... than these
    cases: tuple[str, ...]
    equal: bool = False  # that there is no difference worth mentioning, instead
    no_better: bool = False  # that it is not better, instead
    than_case: str = ""  # another case, in which `than` are; "": the same
    mcnemar: bool = False  # that the answers of the final models differ by McNemar's test, not the measure over seeds


@dataclass(frozen=True)
class Tuning:
    """How rates and options are chosen, with the same budget for all."""

    grid: Setting  # the name of a paper's grid, or values by setting
    rounds: int | None  # None: those of the experiment
    seeds: int
    budget: int | None


@dataclass(frozen=True)
class Experiment:
    name: str
    paper: str
    table: str
    title: str
    settings: Mapping[str, Setting]  # by section.key
    cases: Mapping[str, Mapping[str, Setting]]
    entries: tuple[Entry, ...]
    seeds: Setting
    tuning: Tuning | None
    figures: tuple[Figures, ...]
    claims: tuple[Claim, ...]
    fast: Mapping[str, Any]  # by section.key, and `seeds`, `cases`, `algorithms`
    judged_from: Setting | None = None  # an accuracy in percent, below which runs that were cut decide nothing
    runs_of: str = ""  # another experiment whose runs are looked at
    remarks: tuple[str, ...] = field(default=())

    @property
    def folder(self) -> str:
        """Of its runs."""
        return self.runs_of or self.name

    @property
    def measures(self) -> list[str]:
        """Those of the paper's figures and claims."""
        found = [*(each.measure for each in self.figures), *(each.measure for each in self.claims)]
        return list(dict.fromkeys(found))

    @property
    def data_sets(self) -> list[str]:
        return sorted({str(self.settings_of(case)["data.name"]) for case in self.cases})

    def rounds(self, case: str) -> int:
        return int(self.settings_of(case)["run.rounds"])

    def settings_of(self, case: str) -> dict[str, Any]:
        """Plain values by section.key."""
        return {key: each.value for key, each in {**self.settings, **self.cases[case]}.items()}


def names() -> list[str]:
    """Of all experiments."""
    return sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))


@cache
def find(name: str) -> Experiment:
    if name not in names():
        raise ValueError(f"unknown experiment {check.shown(name)}{check.nearest(name, names())}")
    return read(name, _folder().joinpath(f"{name}.toml").read_text("utf-8"))


def _folder() -> Any:
    return resources.files("undrift.reproduce").joinpath("experiments")


def read(name: str, text: str) -> Experiment:
    """An experiment from the text of its file; what is missing or unknown is refused."""
    given = tomllib.loads(text)
    try:
        return _read(name, given)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"experiment {name}: {type(error).__name__}: {error}") from error
    except ValueError as error:
        raise ValueError(f"experiment {name}: {error}") from None


def _read(name: str, given: Mapping[str, Any]) -> Experiment:
    about = ("paper", "table", "title", "remarks", "runs_of")
    looks = (*about, "figures", "claims")  # at runs
    _check_known("key", given, (*looks, *SECTIONS, "seeds", "judged_from", "algorithms", "cases", "tuning", "fast"))
    settings = {
        f"{section}.{key}": _setting(key, one) for section in SECTIONS for key, one in given.get(section, {}).items()
    }
    cases = {
        case: {key: _setting(key, one) for key, one in own.items()} for case, own in given.get("cases", {}).items()
    }
    entries = tuple(_entry(label, one) for label, one in given.get("algorithms", {}).items())
    for seeds in (given.get("seeds", {}).get("value", 1), given.get("fast", {}).get("seeds", 1)):
        _check_count("seeds", seeds)
    own = Experiment(
        name=name,
        paper=given["paper"],
        table=given["table"],
        title=given["title"],
        settings=settings,
        cases=cases or {"": {}},
        entries=entries,
        seeds=_setting("seeds", given["seeds"]) if "seeds" in given else Setting(3, note="not given"),
        tuning=_tuning(given["tuning"]) if "tuning" in given else None,
        figures=(),
        claims=(),
        fast=given.get("fast", {}),
        judged_from=_setting("judged_from", given["judged_from"]) if "judged_from" in given else None,
        runs_of=given.get("runs_of", ""),
        remarks=tuple(given.get("remarks", ())),
    )
    if own.runs_of:
        if of_runs := [key for key in given if key not in looks]:
            raise ValueError(f"runs are those of {own.runs_of}: leave out {', '.join(of_runs)}")
        own = replace(find(own.runs_of), **{key: getattr(own, key) for key in ("name", *about)})
    figures = tuple(_figures(one, own) for one in given.get("figures", ()))
    claims = tuple(_claim(one, own) for one in given.get("claims", ()))
    return replace(own, figures=figures, claims=claims)


def _setting(key: str, given: Any) -> Setting:
    if not isinstance(given, dict) or "value" not in given or not {"source", "note"} & given.keys():
        raise ValueError(f"{key} must have a value, and a source in the paper or a note, got {check.shown(given)}")
    _check_known(f"key of {key}", given, Setting._fields)
    return Setting(**given)


def _entry(label: str, given: Mapping[str, Any]) -> Entry:
    if "run" not in given or not {"source", "note"} & given.keys():
        raise ValueError(f"{label} must have run, and a source in the paper or a note, got {check.shown(given)}")
    _check_known(f"key of {label}", given, ("run", "source", "note"))
    return Entry(**{"label": label, "source": "", "note": "", **given})


def _tuning(given: Mapping[str, Any]) -> Tuning:
    _check_known("key of tuning", given, Tuning.__dataclass_fields__)
    plain: dict[str, Any] = {"rounds": None, "seeds": 1, "budget": None}
    for key in plain.keys() & given.keys():
        _check_count(f"{key} of tuning", given[key])
    return Tuning(**{**plain, **given, "grid": _setting("grid", given["grid"])})


def _figures(given: Mapping[str, Any], of: Experiment) -> Figures:
    _check_known("key of figures", given, ("measure", "values"))
    measure_named(given["measure"])
    values = given["values"] if of.cases.keys() != {""} else {"": given["values"]}
    _check_known("case", values, of.cases)
    labels = [each.label for each in of.entries]
    for own in values.values():
        _check_known("algorithm", own, labels)
    found = {case: {label: _figure(each) for label, each in own.items()} for case, own in values.items()}
    return Figures(given["measure"], found)


def _figure(given: Any) -> Figure:
    return Figure(*given) if isinstance(given, list) else Figure(float(given))


def _claim(given: Mapping[str, Any], of: Experiment) -> Claim:
    _check_known("key of a claim", given, Claim.__dataclass_fields__)
    for key in {"than", "cases"} & given.keys():
        if not isinstance(given[key], list) or not given[key]:
            raise ValueError(f"{key} must be a list of names, got {check.shown(given[key])}")
    measure_named(given["measure"])
    labels = [each.label for each in of.entries]
    than_case = given.get("than_case", "")
    others = (given["better"],) if than_case else tuple(label for label in labels if label != given["better"])
    than = tuple(given.get("than", others))
    _check_known("algorithm", [given["better"], *than], labels)
    if given["better"] in than and not than_case:
        raise ValueError(f"than must not name {given['better']}, which is better, unless than_case names another case")
    cases = tuple(given.get("cases", of.cases))
    _check_known("case", [*cases, *filter(None, [than_case])], of.cases)
    switches = {key: given.get(key, False) for key in ("equal", "no_better", "mcnemar")}
    for key, value in switches.items():
        if not isinstance(value, bool):
            raise ValueError(f"{key} must be true or false, got {check.shown(value)}")
    if switches["equal"] and switches["no_better"]:
        raise ValueError("equal and no_better are different claims: leave one out")
    return Claim(given["text"], given["measure"], given["better"], than, cases, than_case=than_case, **switches)


def _check_count(what: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{what} must be a positive whole number, got {check.shown(value)}")


def _check_known(what: str, found: Any, known: Any) -> None:
    for each in found:
        if each not in known:
            raise ValueError(f"unknown {what} {check.shown(each)}{check.nearest(each, list(known))}")
