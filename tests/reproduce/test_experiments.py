"""Files of experiments: every one reads, would run, and has the figures that its paper prints."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from undrift import data, models
from undrift.algorithms.text import parse
from undrift.cli.config import resolve
from undrift.data.partition import parse as parse_partition
from undrift.reproduce.experiment import Experiment, find, names, read
from undrift.simulation import arguments
from undrift.storage.comparison import folders_of
from undrift.tuning.presets import PRESETS

TABLES = Path(__file__).parents[3] / "shared" / "papers" / "tables"
FILES = {"FedPMVR": "000", "FedDPC": "001", "FedPGVC": "002", "MA-/GA-FSVRG": "003", "FedHBM": "004"}
OF_FAST = {"seeds", "cases", "algorithms"}  # what the short version may say besides settings
READINGS = {"batch normalisation", "no normalisation", "lr = 0.003"}  # in names of cases: what a paper leaves open
METRICS = {  # of the tables, by how a measure begins
    "best round": "round of best accuracy",
    "rounds to": "rounds to",
    "mean gradient norm": "mean gradient norm",
    "variance of gradient norm": "variance of gradient norm",
    "maximum gradient norm": "maximum gradient norm",
    "last macro": "macro",
    "last micro": "micro",
}


def versions(experiment: Experiment) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Settings and algorithms of every case, and of those of the short version."""
    algorithms = [each.run for each in experiment.entries]
    settings = {key: value for key, value in experiment.fast.items() if key not in OF_FAST}
    for case in experiment.cases:
        yield experiment.settings_of(case), algorithms
    fast = list(experiment.fast.get("algorithms", {}).values()) or algorithms
    for case in experiment.fast.get("cases", experiment.cases):
        yield experiment.settings_of(case) | settings, fast


def sections(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path, value in settings.items():
        section, key = path.split(".")
        found.setdefault(section, {})[key] = value
    return found


@pytest.mark.parametrize("name", names())
def test_would_run(name: str) -> None:
    experiment = find(name)
    assert experiment.entries
    assert experiment.fast, "a short version for two cores"
    for settings, algorithms in versions(experiment):
        found = resolve(sections(settings))  # refuses unknown keys and wrong values
        assert found.data["name"] in data.available()
        assert found.model in models.available()
        parse_partition(settings["data.partition"])
        for text in algorithms:
            arguments.Arguments(parse(text), found.model, found.data["name"], **found.arguments)
    labels = {each.label for each in experiment.entries}
    assert set(experiment.fast.get("algorithms", ())) <= labels
    assert set(experiment.fast.get("cases", ())) <= set(experiment.cases)


PLAIN = """
paper = "A paper"
table = "Table 1"
title = "An experiment"
[seeds]
value = 2
note = "not given"
[algorithms]
FedAvg = { run = "fedavg", note = "" }
[tuning]
grid = { value = "feddpc", source = "§5" }
seeds = 1
[[figures]]
measure = "best"
values = { FedAvg = 70 }
[fast]
seeds = 1
"""


def test_experiments_are_read() -> None:
    found = read("plain", PLAIN)
    assert (found.seeds.value, found.tuning and found.tuning.seeds, found.fast) == (2, 1, {"seeds": 1})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value = 2", "value = 0", "seeds must be a positive whole number, got 0"),
        ("value = 2", "value = true", "seeds must be a positive whole number, got True"),
        ("value = 2", 'value = "2"', "seeds must be a positive whole number, got '2'"),
        ("value = 2", "value = 2\nvalues = 3", "unknown key of seeds 'values'; did you mean 'value'"),
        ("[fast]\nseeds = 1", "[fast]\nseeds = 0.5", "seeds must be a positive whole number, got 0.5"),
        ('run = "fedavg"', 'run = "fedavg", sources = "§1"', "unknown key of FedAvg 'sources'; did you mean 'source'"),
        ('"§5" }\nseeds', '"§5" }\nround', "unknown key of tuning 'round'; did you mean 'rounds'"),
        ('"§5" }\nseeds = 1', '"§5" }\nseeds = -1', "seeds of tuning must be a positive whole number, got -1"),
        ('measure = "best"', 'measure = "best"\nvalue = 1', "unknown key of figures 'value'; did you mean 'values'"),
    ],
)
def test_what_is_wrong_in_an_experiment_is_named(old: str, new: str, message: str) -> None:
    assert PLAIN.count(old) == 1
    with pytest.raises(ValueError, match=f"^experiment plain: {message}"):
        read("plain", PLAIN.replace(old, new))


@pytest.mark.parametrize("text", ["[seeds]\nvalue = 2", "[fast]\nseeds = 1", "[judged_from]\nvalue = 40"])
def test_runs_of_another_experiment_are_as_they_are(text: str) -> None:
    head = 'paper = "A paper"\ntable = "Table 2"\ntitle = "Rounds"\nruns_of = "feddpc-table2"\n'
    assert read("other", head).entries == find("feddpc-table2").entries
    left = text.partition("]")[0].removeprefix("[")
    with pytest.raises(ValueError, match=f"runs are those of feddpc-table2: leave out {left}$"):
        read("other", head + text + '\nnote = ""\n')


@pytest.mark.parametrize("name", names())
def test_nothing_is_left_to_the_data_set(name: str) -> None:
    experiment = find(name)
    paths = {each.name: each.path for each in arguments.settings()} | {"model": "model.name"}
    for settings, algorithms in versions(experiment):
        decided = {paths[each] for each in data.default_settings(settings["data.name"])} - {"run.eval_every"}
        if experiment.tuning or all("lr" in parse(text).settings for text in algorithms):
            decided -= {"local.lr"}
        assert decided <= settings.keys()


@pytest.mark.parametrize("name", names())
def test_says_what_the_paper_shows(name: str) -> None:
    experiment = find(name)
    assert experiment.figures or experiment.claims
    for claim in experiment.claims:
        assert claim.than, claim.text
        assert claim.than_case not in claim.cases if claim.than_case else claim.better not in claim.than


@pytest.mark.parametrize("name", [name for name in names() if find(name).tuning])
def test_rates_of_the_short_version_are_given(name: str) -> None:
    experiment = find(name)
    tuning = experiment.tuning
    assert tuning is not None
    assert not isinstance(tuning.grid.value, str) or tuning.grid.value in PRESETS
    assert all("lr" in parse(text).settings for text in experiment.fast["algorithms"].values())


@pytest.mark.parametrize("name", [name for name in names() if find(name).figures])
def test_figures_are_those_of_the_paper(name: str) -> None:
    if not TABLES.is_dir():
        pytest.skip("the papers' tables are not beside the repository")
    experiment = find(name)
    table, *about = experiment.table.split(", ")
    printed = [row for row in rows(FILES[experiment.paper]) if row["table"] == table]
    for figures in experiment.figures:
        metric = next((text for start, text in METRICS.items() if figures.measure.startswith(start)), "accuracy")
        for case, values in figures.values.items():
            parts = [*about, *(part for part in case.split(", ") if part not in READINGS)]
            of_case = [row for row in printed if metric in row["metric"] and fits(row, parts)]
            for label, figure in values.items():
                own = [row for row in of_case if row["algorithm"] == label] or [
                    row
                    for row in of_case
                    if fits(row, [label])  # where rows differ in their settings
                ]
                known = [(value_of(row), number(row["spread"])) for row in own]
                assert (figure.value, figure.spread) in known, (figures.measure, case, label, known)


def rows(paper: str) -> list[dict[str, str]]:
    found = []
    for file in sorted(TABLES.glob(f"{paper}_*.csv")):
        with file.open(encoding="utf-8") as lines:
            found += list(csv.DictReader(lines))
    return found


def fits(row: dict[str, str], parts: list[str]) -> bool:
    """Whether every word of the parts begins a word of the row's data set and setting."""
    there = plain(f" {row['dataset']} {row['setting']}")
    words = [word for part in parts for word in plain(part).split()]
    return all(f" {word}" in there for word in words)


def plain(text: str) -> str:
    """Greek letters by name, no spaces around =, no hyphens."""
    for letter, name in (("α", "alpha"), ("β", "beta"), ("η", "eta")):
        text = text.replace(letter, name)
    return re.sub(r" ?= ?", "=", text).replace("-", "").replace(";", " ").replace(",", " ").replace(" %", "%")


def value_of(row: dict[str, str]) -> float | None:
    """In percent, where it is a share."""
    value = number(row["value"])
    return round(100 * value, 6) if value is not None and row["metric"].startswith(("macro", "micro")) else value


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@pytest.mark.parametrize("name", names())
def test_runs_of_every_algorithm_have_a_folder_of_their_own(name: str) -> None:
    """Also where algorithms are run one at a time, in the same folder."""
    labels = [each.label for each in find(name).entries]
    assert len({folders_of([label])[label] for label in labels}) == len(labels)
