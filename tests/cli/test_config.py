"""Configurations: what they stand for, and what is refused."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app, config
from undrift.cli.settings import SETTINGS
from undrift.simulation.arguments import settings

EVERY_KEY = """
algorithm = "fedhbm"
[data]
name = "digits"
partition = "classes:3"
clients = 12
test_share = 0.2
validation_share = 0.1
normalise = false
features = "hog"
[model]
name = "mlp"
[local]
lr = 0.5
lr_decay = 0.9
steps = 3
epochs = 1
batch_size = "full"
momentum = 0.8
weight_decay = 0.01
clip = 2
optimizer = "sgd"
[server]
lr = 0.7
weighting = "uniform"
aggregate = "median"
privacy = "clip=1, noise=1"
[run]
rounds = 7
cohort = 0.25
seed = 5
eval_every = 2
target = 0.9
device = "cpu"
dtype = "float64"
engine = "sequential"
buffers = "local"
precision = "fp32"
patience = 5
augment = "flip"
metrics = ["f1"]
compress = "half"
plugins = ["pgvc(layers=1)"]
place = "ray"
actors = 2
actor_threads = 2
address = "auto"
attack = "sign-flip"
faults = "dropout=0.2"
min_answers = 2
attempts = 4
diagnostics = ["client_distance"]
trackers = "tensorboard"
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_every_key_arrives(tmp_path: Path) -> None:
    sections = config.read(written(tmp_path / "c.toml", EVERY_KEY))
    found = config.resolve(sections)
    assert found.arguments == {
        "rounds": 7,
        "cohort": 0.25,
        "epochs": 1,
        "steps": 3,
        "batch_size": None,
        "lr": 0.5,
        "momentum": 0.8,
        "weight_decay": 0.01,
        "optimizer": "sgd",
        "server_lr": 0.7,
        "weighting": "uniform",
        "aggregate": "median",
        "eval_every": 2,
        "target": 0.9,
        "patience": 5,
        "seed": 5,
        "device": "cpu",
        "dtype": "float64",
        "engine": "sequential",
        "clip": 2,
        "lr_decay": 0.9,
        "buffers": "local",
        "precision": "fp32",
        "augment": "flip",
        "metrics": ["f1"],
        "plugins": ["pgvc(layers=1)"],
        "place": "ray",
        "actors": 2,
        "actor_threads": 2,
        "address": "auto",
        "attack": "sign-flip",
        "faults": "dropout=0.2",
        "min_answers": 2,
        "attempts": 4,
        "privacy": "clip=1, noise=1",
        "diagnostics": ["client_distance"],
        "compress": "half",
    }
    assert [type(tracker) for tracker in found.trackers] == [ud.trackers.TensorBoard]
    assert found.model == "mlp"
    federation = found.federation(5)
    assert federation.recipe == {
        "name": "digits",
        "partition": "classes:3",
        "clients": 12,
        "seed": 5,
        "test_share": 0.2,
        "validation_share": 0.1,
        "normalise": False,
        "features": "hog",
    }
    assert len(federation) == 12
    assert federation.x.shape == (1437, 9)
    assert config.find_algorithm(sections) == (ud.algorithms.FedHBM(), {})


def test_every_setting_is_tested(tmp_path: Path) -> None:
    sections = config.read(written(tmp_path / "c.toml", EVERY_KEY))
    keys = {(section, key) for section, keys in SETTINGS.items() for key in keys}
    assert keys == {(section, key) for section, keys in sections.items() for key in keys if section != "algorithm"}


def test_settings_of_data_are_the_arguments_of_load() -> None:
    arguments = {p.name: p.default for p in inspect.signature(ud.data.load).parameters.values()}
    del arguments["seed"]  # it is run.seed
    arguments["name"] = "digits"
    assert {key: option.default for key, option in SETTINGS["data"].items()} == arguments


@pytest.mark.parametrize("command", ["run", "compare"])
def test_help_lists_every_setting(command: str) -> None:
    words = set(re.findall(r"\w+", CliRunner().invoke(app, [command, "--help"]).stdout))
    for section, keys in SETTINGS.items():
        assert {section, *keys} <= words


def test_defaults() -> None:
    found = config.resolve({})
    assert (found.data, found.model) == ({"name": "digits"}, None)
    assert found.arguments == {each.name: each.default for each in settings()}, "those of simulate, and no others"


def test_a_partition_depends_on_the_seed() -> None:
    found = config.resolve({"data": {"clients": 10}})
    same, again, other = (found.federation(seed) for seed in (1, 1, 2))
    assert np.array_equal(same.rows, again.rows)
    assert not np.array_equal(same.rows, other.rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[local]\nlrr = 1", "unknown key 'local.lrr'; did you mean 'local.lr'?"),
        ("[locl]\nlr = 1", "unknown section 'locl'; did you mean 'local'?"),
        ("[run]\nlr = 1", "unknown key 'run.lr'; did you mean 'local.lr' or 'server.lr'?"),
        ("[local]\nlr = 'big'", "local.lr must be a number or \"auto\", got 'big'"),
        ("[local]\nlr = true", 'local.lr must be a number or "auto", got True'),
        ("[local]\nepochs = 'auto'", "local.epochs must be a whole number, got 'auto'"),
        ("[local]\nepochs = 1.5", "local.epochs must be a whole number, got 1.5"),
        ("[local]\nbatch_size = 'all'", 'local.batch_size must be a whole number or "full" or "auto", got'),
        ("[data]\nname = 3", "data.name must be a text, got 3"),
        ("[data]\nnormalise = 1", "data.normalise must be true or false, got 1"),
        ("[run]\ncohort = 'ten'", "run.cohort must be a number, a fraction, or a list of clients for every round"),
        ("[local.lr]\nx = 1", "local.lr must be a number or \"auto\", got {'x': 1}"),
        ("[local]\nlr = -1.0", "local.lr must be greater than 0, got -1.0"),
        ("[server]\nweighting = 'sample'", "did you mean 'samples'?"),
        ("[data]\nclients = 0", "data.clients must be at least 1, got 0"),
        ("[run]\nmetrics = 3", "run.metrics must be a name or a list of names, got 3"),
    ],
)
def test_refusals(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the message is compared below
        config.resolve(config.read(written(tmp_path / "c.toml", text)))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[local]\nlr = \n", "c.toml, line 2, column 6: invalid value"),
        ("[local]\nlr = 1\nlr = 2\n", "c.toml, line 3"),
        (
            "data = 'digits'",
            "'data' must be a section, [data], got 'digits'; did you mean [data] with name = 'digits'?",
        ),
        ("rounds = 3", "'rounds' must be a section"),
    ],
)
def test_wrong_files(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "c.toml", text)
    with pytest.raises(ValueError, match=r"c\.toml") as refusal:
        config.read(path)
    assert message in str(refusal.value)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no configuration file 'nowhere.toml'$"):
        config.read("nowhere.toml")
    with pytest.raises(ValueError, match="an algorithm is given with -a"):
        config.read("fedhbm")
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a text file"):
        config.read(tmp_path / "c.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("local.lr=0.05", ("local", "lr", 0.05)),
        ("local.lr = 1e-3", ("local", "lr", 0.001)),
        ("local.batch_size=full", ("local", "batch_size", "full")),
        ("data.normalise=false", ("data", "normalise", False)),
        ("data.partition=dirichlet:0.1,min=10", ("data", "partition", "dirichlet:0.1,min=10")),
        ('data.partition="classes:2"', ("data", "partition", "classes:2")),
        ("run.cohort=[[0, 2], [1]]", ("run", "cohort", [[0, 2], [1]])),
        ("algorithm.beta=0.5", ("algorithm", "beta", 0.5)),
    ],
)
def test_settings(text: str, expected: tuple[str, str, Any]) -> None:
    assert config.parse_setting(text) == expected


@pytest.mark.parametrize("text", ["local.lr", "local.lr=", "=3", "local.lr=[1", "lr=3", "local.lr='a"])
def test_wrong_settings(text: str) -> None:
    with pytest.raises(ValueError, match=r"section.key=value|unknown key|not a TOML value"):
        config.parse_setting(text)


def test_later_values_win(tmp_path: Path) -> None:
    path = written(tmp_path / "c.toml", "[local]\nlr = 1.0\nepochs = 2\n[run]\nrounds = 5\nseed = 1\n")
    given = {"run.rounds": 7, "run.seed": None, "model.name": "mlp"}
    sections = config.combine(path, given, ["local.lr=0.5", "run.rounds=9"])
    assert sections == {
        "local": {"lr": 0.5, "epochs": 2},
        "run": {"rounds": 9, "seed": 1},
        "model": {"name": "mlp"},
    }


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"name": "fedprox", "mu": 0.1}, ud.algorithms.FedProx(mu=0.1)),
        ({"name": "fedprox(mu=0.1)"}, ud.algorithms.FedProx(mu=0.1)),
        ({"name": "fedprox(mu=0.1)", "mu": 0.2}, ud.algorithms.FedProx(mu=0.2)),
        ({"name": "fedprox", "pgvc": {"layers": 1}}, ud.algorithms.FedProx(pgvc=ud.PGVC(layers=1))),
    ],
)
def test_algorithms(section: dict[str, Any], expected: ud.Algorithm) -> None:
    assert config.find_algorithm({"algorithm": section}) == (expected, {})


def test_settings_of_the_run_may_stand_with_the_algorithm() -> None:
    found = config.find_algorithm({"algorithm": {"name": "fedadam(lr=0.03)", "tau": 0.01, "server_lr": 0.1}})
    assert found == (ud.algorithms.FedAdam(tau=0.01), {"lr": 0.03, "server_lr": 0.1})


def test_comparisons(tmp_path: Path) -> None:
    text = "[compare]\nalgorithms = ['fedavg', 'fedprox(mu=0.1, lr=0.3)']\nseeds = 3\n[local]\nlr = 0.1\n"
    sections = config.read(written(tmp_path / "c.toml", text))
    chosen, seeds = config.find_comparison(sections)
    assert list(chosen) == ["FedAvg", "FedProx(mu=0.1, lr=0.3)"]
    assert chosen["FedProx(mu=0.1, lr=0.3)"] == (ud.algorithms.FedProx(mu=0.1), {"lr": 0.3})
    assert (seeds, config.resolve(sections).arguments["lr"]) == (3, 0.1)
    table = {"compare": {"algorithms": {"Mine": "fedprox(mu=1)"}, "seeds": [0, 7]}}
    assert config.find_comparison(table) == ({"Mine": (ud.algorithms.FedProx(mu=1), {})}, [0, 7])
    assert config.find_comparison({}) == ({}, None)
    measures = {"targets": [0.6, "90%"], "last_k": 5, "centralised": True}
    assert config.find_measures({"compare": {"seeds": 2} | measures}) == measures
    assert config.find_measures({}) == {}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"algorithm": ["fedavg"]}, "unknown key 'compare.algorithm'; did you mean 'algorithms'?"),
        ({"algorithms": "fedavg"}, "compare.algorithms must be a list such as"),
        ({"algorithms": ["fedavg", 3]}, "compare.algorithms must be a list such as"),
        ({"algorithms": ["fedavg", "fedavg"]}, "algorithms must differ, got FedAvg, FedAvg"),
        ({"algorithms": ["fedprox(mmu=1)"]}, "FedProx has no option 'mmu'; did you mean 'mu'?"),
        ({"algorithms": ["fedadam(sever_lr=1)"]}, "FedAdam has no option 'sever_lr'; did you mean 'server_lr'?"),
        ({"algorithms": ["fedavg"], "seeds": "3"}, "compare.seeds must be a count or a list of seeds, got '3'"),
    ],
)
def test_wrong_comparisons(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the message is compared below
        config.find_comparison({"compare": section})
    assert message in str(refusal.value)


def test_an_algorithm_that_is_given_replaces_the_section(tmp_path: Path) -> None:
    path = written(tmp_path / "c.toml", "[algorithm]\nname = 'fedprox'\nmu = 5.0\n")
    sections = config.combine(path, {}, ["algorithm.mu=0.1"])
    assert config.find_algorithm(sections) == (ud.algorithms.FedProx(mu=0.1), {})
    assert config.find_algorithm(config.combine(path, {}, algorithm="fedavg")) == (ud.algorithms.FedAvg(), {})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "no algorithm is named"),
        ({"beta": 1}, "no algorithm is named"),
        ({"name": "fedhb"}, "did you mean 'fedhbm'?"),
        ({"name": "fedhbm", "betta": 1}, "FedHBM has no option 'betta'; did you mean 'beta'?"),
        ({"name": "fedhbm", "beta": -1}, "beta must be at least 0, got -1"),
        ({"name": "fedavg", "pgvc": {"layer": 1}}, "PGVC has no option 'layer'; did you mean 'layers'?"),
    ],
)
def test_wrong_algorithms(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the message is compared below
        config.find_algorithm({"algorithm": section})
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "word", "argument", "value"),
    [
        ("run.augment", "none", "augment", None),
        ("run.cohort", "all", "cohort", None),
        ("local.batch_size", "full", "batch_size", None),
        ("local.lr", "auto", "lr", "auto"),
    ],
)
def test_words_for_values(key: str, word: str, argument: str, value: Any) -> None:
    found = config.resolve(config.combine(None, {}, [f"{key}={word}"]))
    assert found.arguments[argument] == value
