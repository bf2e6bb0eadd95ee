"""What the page may start, and what is refused before a process is."""

from __future__ import annotations

from typing import Any

import pytest

from undrift.ui.form import read_form


def test_fields_become_arguments() -> None:
    wanted = read_form(
        {
            "algorithm": "fedprox(mu=0.1)",
            "data": "Fashion_MNIST",
            "model": "mlp",
            "partition": "dirichlet:0.1",
            "clients": "20",
            "rounds": "30",
            "lr": "0.05",
            "seed": "0",
            "settings": "local.epochs=2\r\n\r\n server.lr = 0.5 ",
        }
    )
    assert wanted.arguments == [
        "run",
        "--algorithm=fedprox(mu=0.1)",
        "--data=fashion-mnist",
        "--model=mlp",
        "--partition=dirichlet:0.1",
        "--clients=20",
        "--rounds=30",
        "--lr=0.05",
        "--seed=0",
        "--set=local.epochs=2",
        "--set=server.lr = 0.5",
    ]
    assert wanted.name == "fedprox-fashion-mnist"


def test_empty_fields_are_left_to_the_data_set() -> None:
    assert read_form({"algorithm": "fedavg", "rounds": "", "settings": ""}).arguments == ["run", "--algorithm=fedavg"]


def test_a_value_is_never_an_option() -> None:
    wanted = read_form({"algorithm": "fedavg", "partition": "--out=/tmp/x"})
    assert wanted.arguments[-1] == "--partition=--out=/tmp/x"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "choose an algorithm"),
        ({"algorithm": "fedavgg"}, "fedavg"),
        ({"algorithm": "evil.py:Evil"}, "evil.py"),
        ({"algorithm": "fedavg", "data": "evil.py:load"}, "code"),
        ({"algorithm": "fedavg", "model": "net.py:Net"}, "code"),
        ({"algorithm": "fedavg", "model": "mpl"}, "did you mean 'mlp'"),
        ({"algorithm": "fedavg", "rounds": "0"}, "rounds must be at least 1"),
        ({"algorithm": "fedavg", "rounds": "1e3"}, "whole number"),
        ({"algorithm": "fedavg", "clients": "-3"}, "whole number"),
        ({"algorithm": "fedavg", "rounds": 5}, "must be a text"),
        ({"algorithm": "fedavg", "lr": "nan"}, "lr must be"),
        ({"algorithm": "fedavg", "lr": "fast"}, "lr must be a number"),
        ({"algorithm": "fedavg", "settings": "epochs=2"}, "section.key=value"),
        ({"algorithm": "fedavg", "settings": "local.lr=2"}, "field of its own: lr"),
        ({"algorithm": "fedavg", "settings": "model.name=net.py:Net"}, "field of its own: model"),
        ({"algorithm": "fedavg", "settings": "algorithm.mu=2"}, "with its name"),
        ({"algorithm": "fedavg", "settings": "--out=/tmp/x"}, "section.key=value"),
        ({"algorithm": "fed\x00avg"}, "control characters"),
        ({"algorithm": "fedavg", "out": "/tmp/x"}, "unknown field 'out'"),
        ({"algorithm": "a" * 3000}, "at most 2000"),
    ],
)
def test_wrong_fields_are_refused_in_one_line(fields: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refusal:
        read_form(fields)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)
