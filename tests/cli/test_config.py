"""Configurations: what they stand for, and what is refused."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import undrift as ud
from undrift import models
from undrift.cli import app, config, usual
from undrift.data import available
from undrift.simulation.prepare import Options

EVERY_KEY = """
algorithm = "fedhbm"
[data]
name = "digits"
partition = "classes:3"
clients = 12
test_share = 0.2
normalise = false
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
augment = "flip"
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_every_key_arrives(tmp_path: Path) -> None:
    values = config.read(written(tmp_path / "c.toml", EVERY_KEY))
    recipe = config.recipe(values)
    assert recipe.options == Options(
        rounds=7,
        cohort=0.25,
        steps=3,
        batch_size=None,
        lr=0.5,
        momentum=0.8,
        weight_decay=0.01,
        optimizer="sgd",
        server_lr=0.7,
        weighting="uniform",
        eval_every=2,
        target=0.9,
        seed=5,
        device="cpu",
        dtype="float64",
        engine="sequential",
        clip=2,
        lr_decay=0.9,
        buffers="local",
        precision="fp32",
    )
    assert (recipe.model, recipe.augment) == ("mlp", "flip")
    federation = recipe.federation(5)
    assert federation.recipe == {
        "name": "digits",
        "partition": "classes:3",
        "clients": 12,
        "seed": 5,
        "test_share": 0.2,
        "normalise": False,
    }
    assert len(federation) == 12
    assert config.labelled(values["algorithm"]) == ("FedHBM", ud.algorithms.FedHBM())


def test_every_option_has_a_key(tmp_path: Path) -> None:
    values = config.read(written(tmp_path / "c.toml", EVERY_KEY))
    named = {section: set(keys) for section, keys in values.items() if section != "algorithm"}
    assert named == {section: set(keys) for section, keys in config._KEYS.items()}, "the file above has every key"
    reached = named["local"] | {"server_lr", "weighting"} | named["run"] - {"augment"}
    assert reached == {field.name for field in fields(Options)}


def test_help_names_every_key() -> None:
    words = set(re.findall(r"\w+", CliRunner().invoke(app, ["run", "--help"]).stdout))
    for section, keys in tomllib.loads(EVERY_KEY).items():
        assert {section, *(keys if section != "algorithm" else ())} <= words


def test_without_a_word_it_is_the_usual_on_digits() -> None:
    recipe = config.recipe({})
    usual_settings = {"model.name": "cnn", "local.lr": 0.1}
    assert recipe == config.Recipe({"name": "digits"}, "cnn", None, Options(cohort=0.2, lr=0.1), usual_settings)


def test_a_partition_depends_on_the_seed() -> None:
    recipe = config.recipe({"data": {"clients": 10}})
    same, again, other = (recipe.federation(seed) for seed in (1, 1, 2))
    assert np.array_equal(same.rows, again.rows)
    assert not np.array_equal(same.rows, other.rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[local]\nlrr = 1", "unknown key 'local.lrr'; did you mean 'local.lr'?"),
        ("[locl]\nlr = 1", "unknown section 'locl'; did you mean 'local'?"),
        ("[run]\nlr = 1", "unknown key 'run.lr'; did you mean 'local.lr' or 'server.lr'?"),
        ("[local]\nlr = 'big'", "local.lr must be a number, got 'big'"),
        ("[local]\nlr = true", "local.lr must be a number, got True"),
        ("[local]\nepochs = 1.5", "local.epochs must be a whole number, got 1.5"),
        ("[local]\nbatch_size = 'all'", "local.batch_size must be a whole number or \"full\", got 'all'"),
        ("[data]\nname = 3", "data.name must be a text, got 3"),
        ("[data]\nnormalise = 1", "data.normalise must be true or false, got 1"),
        ("[run]\ncohort = 'ten'", "run.cohort must be a number, a fraction, or a list of clients for every round"),
        ("[local.lr]\nx = 1", "local.lr must be a number, got {'x': 1}"),
        ("[local]\nlr = -1.0", "lr must be greater than 0, got -1.0"),
        ("[server]\nweighting = 'sample'", "did you mean 'samples'?"),
    ],
)
def test_refusals(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the message is compared below
        config.recipe(config.read(written(tmp_path / "c.toml", text)))
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
    assert config.setting(text) == expected


@pytest.mark.parametrize("text", ["local.lr", "local.lr=", "=3", "local.lr=[1", "lr=3", "local.lr='a"])
def test_wrong_settings(text: str) -> None:
    with pytest.raises(ValueError, match=r"section.key=value|unknown key|not a value"):
        config.setting(text)


def test_later_values_win() -> None:
    values = config.with_value({"local": {"lr": 1.0, "epochs": 2}}, "local", "lr", 0.5)
    assert values == {"local": {"lr": 0.5, "epochs": 2}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fedavg", [{"name": "fedavg"}]),
        ("fedprox(mu=0.1),fedavg", [{"name": "fedprox", "mu": 0.1}, {"name": "fedavg"}]),
        (" Fed-Avg , ma-fsvrg(models=2) ", [{"name": "Fed-Avg"}, {"name": "ma-fsvrg", "models": 2}]),
        ("fedpvr(layers=['a', 'b,c'])", [{"name": "fedpvr", "layers": ["a", "b,c"]}]),
        ("fedga(form=stale)", [{"name": "fedga", "form": "stale"}]),
        ("fedhbm(variant=None, nesterov=True)", [{"name": "fedhbm", "variant": None, "nesterov": True}]),
        ("fedavg(pgvc=PGVC(layers=1))", [{"name": "fedavg", "pgvc": {"layers": 1}}]),
    ],
)
def test_lists_of_algorithms(text: str, expected: list[dict[str, Any]]) -> None:
    assert config.algorithm_sections(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "fedprox(0.1)",
        "fedprox(mu=)",
        "fedprox(mu=0.1",
        "fedprox)",
        "fedprox(**{'mu': 1})",
        "fedprox(mu=__import__('os'))",
        "fedprox(mu=open('x'))",
        "fedprox(mu=1)(mu=2)",
    ],
)
def test_wrong_algorithms(text: str) -> None:
    with pytest.raises(ValueError, match=r"written name"):
        config.algorithm_sections(text)


def test_labels_show_what_was_given() -> None:
    label, algorithm = config.labelled({"name": "fedprox", "mu": 0.1})
    assert (label, algorithm) == ("FedProx(mu=0.1)", ud.algorithms.FedProx(mu=0.1))
    _, algorithm = config.labelled({"name": "fedprox", "pgvc": {"layers": 1}})
    assert algorithm == ud.algorithms.FedProx(pgvc=ud.PGVC(layers=1))


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
def test_wrong_algorithm_sections(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the message is compared below
        config.labelled(section)
    assert message in str(refusal.value)


def test_a_data_set_brings_its_usual_settings() -> None:
    """FedHBM's for Shakespeare: 100 roles, ten a round, batches of 100, rate 1."""
    recipe = config.recipe({"data": {"name": "shakespeare"}})
    assert recipe.data == {"name": "shakespeare", "partition": "natural,min=2000", "clients": 100}
    assert recipe.model == "char-lstm"
    assert recipe.options == Options(lr=1.0, batch_size=100, rounds=250, cohort=10, eval_every=10)
    assert recipe.usual["local.lr"] == 1.0


def test_what_is_given_wins_over_what_is_usual() -> None:
    recipe = config.recipe(
        {"data": {"name": "shakespeare", "clients": 7}, "model": {"name": "mlp"}, "local": {"lr": 0.2}}
    )
    assert (recipe.data["clients"], recipe.model, recipe.options.lr, recipe.options.batch_size) == (7, "mlp", 0.2, 100)
    assert "local.lr" not in recipe.usual
    assert "local.batch_size" in recipe.usual


def test_usual_settings_are_settings() -> None:
    assert usual.USUAL.keys() == available().keys()
    for name, sections in usual.USUAL.items():
        assert sections["model"]["name"] in models.available()
        assert config.recipe(sections | {"data": sections.get("data", {}) | {"name": name}}).usual == {}
