"""Algorithms from text and from plain values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch

from undrift import PGVC, Algorithm, algorithms
from undrift.algorithms import GAFSVRG, MAFSVRG, FedAvg, FedGA, FedHBM, FedProx, FedPVR
from undrift.algorithms.text import SETTINGS, from_options, from_stored, parse, split
from undrift.client.layout import AtMost


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        ("fedavg", FedAvg()),
        (" Fed-Avg ", FedAvg()),
        ("fedavg()", FedAvg()),
        ("fedprox(mu=0.1)", FedProx(mu=0.1)),
        ("ma-fsvrg(models=2)", MAFSVRG(models=2)),
        ("fedpvr(layers=['a', 'b,c'])", FedPVR(layers=["a", "b,c"])),
        ("fedga(form=stale)", FedGA(form="stale")),
        ("fedhbm(variant=None, nesterov=True)", FedHBM(nesterov=True)),
        ("fedhbm(variant=start.safetensors)", FedHBM(variant="start.safetensors")),
        ("fedhbm(variant='runs/my-start.safetensors')", FedHBM(variant=Path("runs/my-start.safetensors"))),
        ("fedavg(pgvc=PGVC(layers=1))", FedAvg(pgvc=PGVC(layers=1))),
        ("fedprox(mu=0.1, pgvc=pgvc(layers=1, form=additive))", FedProx(0.1, pgvc=PGVC(1, "additive"))),
        ("fedavg(pgvc=pgvc())", FedAvg(pgvc=PGVC())),
    ],
)
def test_texts(text: str, algorithm: Algorithm) -> None:
    assert parse(text) == (algorithm, {})


@pytest.mark.parametrize("kind", algorithms.available().values(), ids=lambda kind: kind.name())
def test_labels_can_be_read_back(kind: type[Algorithm]) -> None:
    assert parse(kind().label) == (kind(), {})


def test_a_label_with_options_can_be_read_back() -> None:
    algorithm = FedProx(mu=0.1, pgvc=PGVC(layers=1, form="additive"))
    assert parse(algorithm.label) == (algorithm, {})


@pytest.mark.parametrize(
    ("text", "algorithm", "settings", "label"),
    [
        ("fedavg(lr=0.03)", FedAvg(), {"lr": 0.03}, "FedAvg(lr=0.03)"),
        ("fedprox(lr=0.03, mu=0.1)", FedProx(mu=0.1), {"lr": 0.03}, "FedProx(mu=0.1, lr=0.03)"),
        (
            "fedprox(optimizer=adam, clip=1, weighting=uniform)",
            FedProx(),
            {"optimizer": "adam", "clip": 1, "weighting": "uniform"},
            "FedProx(optimizer='adam', clip=1, weighting='uniform')",
        ),
    ],
)
def test_settings_of_the_run(text: str, algorithm: Algorithm, settings: dict[str, Any], label: str) -> None:
    found = parse(text)
    assert (found.algorithm, found.settings) == (algorithm, settings)
    assert found.label == label
    assert parse(label) == found


@pytest.mark.parametrize("kind", algorithms.available().values(), ids=lambda kind: kind.name())
def test_options_and_settings_have_different_names(kind: type[Algorithm]) -> None:
    assert not {option.name for option in fields(kind)} & set(SETTINGS)


def test_an_option_comes_before_a_setting_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class OwnRate(Algorithm):
        lr: float = 1.0

    monkeypatch.setattr(algorithms, "find", lambda name: OwnRate)
    assert parse("ownrate(lr=0.5, server_lr=2.0)") == (OwnRate(lr=0.5), {"server_lr": 2.0})


@pytest.mark.parametrize(
    "text",
    [
        "",
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
def test_wrong_texts(text: str) -> None:
    with pytest.raises(ValueError, match="written name"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedhb", "did you mean 'fedhbm'?"),
        ("fedhbm(betta=1)", "FedHBM has no option 'betta'; did you mean 'beta'?"),
        ("fedhbm(beta=-1)", "beta must be at least 0, got -1"),
        ("fedavg(pgvc=pgvc(layer=1))", "PGVC has no option 'layer'; did you mean 'layers'?"),
        ("fedavg(pgvc=pgcv(layers=1))", "unknown plug-in 'pgcv'; did you mean 'pgvc'?"),
    ],
)
def test_wrong_names_and_options(text: str, message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the message is compared below
        parse(text)
    assert message in str(refusal.value)


def test_lists() -> None:
    assert split("fedavg") == ["fedavg"]
    assert split(" fedavg, fedpvr(layers=['a', 'b,c']),fedprox(mu=0.1, pgvc=pgvc(layers=1)),") == [
        "fedavg",
        "fedpvr(layers=['a', 'b,c'])",
        "fedprox(mu=0.1, pgvc=pgvc(layers=1))",
    ]
    assert split("") == []


# Plain values


@pytest.mark.parametrize(
    "given", [{"layers": 1}, {"name": "pgvc", "layers": 1}, {"name": "PGVC", "layers": 1, "form": "normalised"}]
)
def test_a_mapping_is_a_plugin(given: dict[str, Any]) -> None:
    assert from_options("fedprox", {"mu": 0.1, "pgvc": given}) == FedProx(0.1, pgvc=PGVC(layers=1))


def test_a_mapping_of_tensors_is_no_plugin() -> None:
    state = {"weight": torch.ones(2)}
    algorithm = from_options("fedhbm", {"variant": state})
    assert isinstance(algorithm, FedHBM)
    assert algorithm.variant is state


def test_stored_defaults_are_defaults() -> None:
    """A run directory stores ``AtMost(2)`` as 2, which a model with one layer would refuse."""
    stored = from_stored("fedpvr", {"layers": 2, "option": "I", "pgvc": {"layers": 2, "form": "additive"}})
    assert stored == FedPVR(option="I", pgvc=PGVC(form="additive"))
    assert isinstance(stored, FedPVR)
    assert isinstance(stored.layers, AtMost)
    assert isinstance(stored.pgvc, PGVC)
    assert isinstance(stored.pgvc.layers, AtMost)
    assert from_stored("gafsvrg", GAFSVRG().options()) == GAFSVRG()
