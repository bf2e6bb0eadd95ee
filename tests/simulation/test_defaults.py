"""Settings that are left to the data set: the same from Python and from the command line, printed, and stored."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import undrift as ud
from undrift import models
from undrift.cli import app
from undrift.data import available
from undrift.data.catalogue import CATALOGUE
from undrift.simulation.arguments import Arguments, Objects
from undrift.simulation.defaults import resolve_defaults
from undrift.simulation.options import Options, declared
from undrift.storage.directory import RunDirectory


def federation(clients: int, name: str = "") -> ud.FederatedData:
    x = torch.linspace(0, 1, clients * 8).view(clients, 2, 4)
    rows = [range(2 * i, 2 * i + 2) for i in range(clients)]
    return ud.FederatedData(x.view(-1, 4), torch.arange(2 * clients) % 2, rows, classes=2, name=name)


def resolved(clients: int, name: str = "", **given: Any) -> Options:
    data = federation(clients, name)
    return resolve_defaults(Objects("fedavg", nn.Linear(4, 2), data), Options(**given), data).options


@pytest.mark.parametrize("name", available())
def test_settings_of_data_sets_can_be_left_to_them(name: str) -> None:
    own = ud.data.default_settings(name)
    assert own.pop("model") in models.available()
    options = {each.name: each for each in declared(Arguments)}
    for key, value in own.items():
        assert options[key].left_open
        options[key].kind.check(key, value)


def test_a_data_set_has_settings_of_its_own() -> None:
    """FedHBM's for Shakespeare: ten of 100 roles a round, batches of 100, rate 1."""
    found = resolved(100, "shakespeare")
    assert (found.lr, found.batch_size, found.rounds, found.cohort, found.eval_every) == (1.0, 100, 250, 10, 10)
    assert (CATALOGUE["shakespeare"].partition, CATALOGUE["shakespeare"].users) == ("natural,min=2000", 100)


def test_what_is_given_wins() -> None:
    found = resolved(100, "shakespeare", lr=0.2, cohort=None, rounds=3)
    assert (found.lr, found.batch_size, found.rounds, found.cohort) == (0.2, 100, 3, None)


def test_other_data_have_the_general_settings() -> None:
    found = resolved(20)
    assert (found.lr, found.batch_size, found.rounds, found.cohort, found.weight_decay) == (0.01, 32, 100, 0.2, 0.0)


@pytest.mark.parametrize("name", ["fsvrg", "mafsvrg", "gafsvrg"])
def test_a_rate_that_is_divided_by_samples_is_multiplied_by_their_mean(name: str) -> None:
    """The step of FSVRG is lr/n_i: a rate of 0.05, MNIST's own, is then 0.1 for clients of two samples."""
    data = federation(20, "mnist")

    def found(algorithm: Any, **given: Any) -> Any:
        return resolve_defaults(Objects(algorithm, nn.Linear(4, 2), data), Options(**given), data)

    assert found(name).options.lr == 0.1
    assert "lr=0.1: 0.05 times the mean number of a client's samples, by which" in found(name).notice
    assert found(name, lr=0.3).options.lr == 0.3
    assert found(f"{name}(lr=0.4)").options.lr == 0.4
    assert found(ud.algorithms.FSVRG(scale_step=False)).options.lr == 0.05


def test_one_label_for_seeds_whose_rates_differ() -> None:
    """A rate that is left open may depend on the clients' samples, and these on the seed."""

    def data(seed: int) -> ud.FederatedData:
        return federation(2) if seed == 0 else ud.FederatedData(torch.eye(4), torch.arange(4) % 2, [range(4)])

    found = ud.compare(["fsvrg"], nn.Linear(4, 2), data, seeds=2, rounds=1)
    assert [record.label for record in found.records] == ["FSVRG", "FSVRG"]
    assert [record.config["options"]["lr"] for record in found.records] == [0.02, 0.04]


@pytest.mark.parametrize(
    ("name", "rate"), [("fedadagrad", 0.1), ("fedadam", 0.01), ("fedyogi", 0.01), ("fedavgm", 1.0)]
)
def test_the_server_rate_that_is_left_open_is_the_algorithms(name: str, rate: float) -> None:
    data = federation(3)

    def found(algorithm: str, **given: Any) -> Any:
        return resolve_defaults(Objects(algorithm, nn.Linear(4, 2), data), Options(**given), data)

    assert found(name).options.server_lr == rate
    assert (f"server_lr={rate:g}, Fed" in found(name).notice) == (rate != 1)
    for given in (found(name, server_lr=0.5), found(f"{name}(server_lr=0.5)")):
        assert given.options.server_lr == 0.5
        assert "server_lr" not in given.notice


@pytest.mark.parametrize("name", ["fsvrg", "mafsvrg", "gafsvrg"])
def test_without_options_it_learns(name: str) -> None:
    """Softmax regression on the digits, two classes a client; at lr=0.1, divided by 36, it would not."""
    run = ud.simulate(name, "softmax", "digits", rounds=15, eval_every=15)
    assert run.history.accuracy.iloc[-1] > 0.55  # FedAvg: 0.71


@pytest.mark.parametrize(
    ("clients", "name", "cohort"),
    [
        (10, "", None),
        (11, "", 0.2),
        (5, "mnist", None),  # whose tenth is of a hundred clients
        (11, "mnist", 0.1),
        (20, "stackoverflow", 20),  # has fifty clients a round, but there are only twenty
    ],
)
def test_up_to_ten_clients_all_take_part(clients: int, name: str, cohort: Any) -> None:
    assert resolved(clients, name).cohort == cohort


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "digits: model=cnn, lr=0.1, the data set's own settings; 8 of 40 clients in a round (cohort=1.0 for all)"),
        ({"model": "mlp", "lr": 0.2, "cohort": 1}, "1 of 40 clients in a round"),
        ({"model": "mlp", "lr": 0.2, "cohort": 1.0}, "all 40 clients in a round"),
        ({"model": "mlp", "lr": 0.2, "cohort": "all"}, "all 40 clients in a round"),
        ({"model": "mlp", "lr": 0.2, "cohort": [[0], [1, 2]]}, "1 to 2 of 40 clients in a round"),
    ],
    ids=str,
)
def test_what_was_taken_is_said(given: dict[str, Any], expected: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "undrift"):
        ud.simulate("fedavg", data="digits", rounds=2, **given)
    assert [record.getMessage() for record in caplog.records] == [expected]


def test_a_comparison_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "undrift"):
        comparison = ud.compare(["fedavg", "fedprox"], "softmax", "digits", seeds=2, rounds=1)
    assert [record.getMessage() for record in caplog.records] == [
        "digits: lr=0.1, the data set's own settings; 8 of 40 clients in a round (cohort=1.0 for all)"
    ]
    assert {record.config["options"]["lr"] for record in comparison.records} == {0.1}
    caplog.clear()
    with caplog.at_level(logging.INFO, "undrift"):  # rates of their own, as after a tuning
        ud.compare(["fedavg(lr=0.2)", "fedprox(lr=0.3)"], "softmax", "digits", rounds=1)
    assert [record.getMessage() for record in caplog.records] == ["8 of 40 clients in a round (cohort=1.0 for all)"]


def test_python_and_the_command_line_agree(tmp_path: Path) -> None:
    ud.simulate("fedhbm", data="digits", rounds=2, out=tmp_path / "python")
    arguments = ["run", "-a", "fedhbm", "-d", "digits", "--rounds", "2", "--out", str(tmp_path / "shell"), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    first, second = (RunDirectory.open(tmp_path / name) for name in ("python", "shell"))
    assert first.config == second.config
    assert first.config["options"] | {"lr": 0.1, "cohort": 0.2, "batch_size": 32} == first.config["options"]
    figures = json.loads(result.stdout)
    assert figures["accuracy"] == first.rows()[-1]["accuracy"]


def test_augmentation_is_turned_off_by_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = CATALOGUE["digits"]
    own = {**entry.defaults, "model": "softmax", "augment": "flip"}
    monkeypatch.setitem(CATALOGUE, "digits", type(entry)(**vars(entry) | {"defaults": own}))
    assert ud.simulate("fedavg", data="digits", rounds=1).config["augment"] == "flip"
    for off in ("none", None):
        assert ud.simulate("fedavg", data="digits", rounds=1, augment=off).config["augment"] is None


def test_a_model_is_needed_where_the_data_name_none() -> None:
    with pytest.raises(TypeError, match=r"model is missing; give a torch\.nn\.Module or a name: .*'mlp'"):
        ud.simulate("fedavg", data=federation(3), rounds=1)
    with pytest.raises(TypeError, match="data is missing"):
        ud.compare(["fedavg"], "mlp")
