"""Colours: a hue for an algorithm, a shade for a value, the same whatever else is shown."""

from __future__ import annotations

import colorsys
from typing import Any

from records import FEDAVG, record
from undrift.reporting.colours import Colour, colours_of
from undrift.reporting.record import Record


def run(label: str, name: str, lr: float = 0.1, seed: int = 0, **options: Any) -> Record:
    config = {"algorithm": {"name": name, "options": options}, "options": {"lr": lr, "seed": seed}}
    return record(label, FEDAVG, seed=seed, config=config)


def lightness(colour: str) -> float:
    return colorsys.rgb_to_hls(*(int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)))[1]


def hue(colour: str) -> float:
    return colorsys.rgb_to_hls(*(int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)))[0]


def test_algorithms_have_hues() -> None:
    found = colours_of([run("A", "fedavg"), run("B", "fedhbm"), run("A", "fedavg", seed=1)])
    assert found == {"A": Colour("#0072b2", "#3f9fe0", False), "B": Colour("#d55e00", "#f07f2e", False)}


def test_values_have_shades_in_their_order() -> None:
    swept = [run(f"FedAvg, lr {lr}", "fedavg", lr) for lr in (1.0, 0.01, 0.1)]
    found = colours_of([*swept, run("B", "fedhbm")])
    light = {label: colour.light for label, colour in found.items()}
    assert list(light) == ["FedAvg, lr 1.0", "FedAvg, lr 0.01", "FedAvg, lr 0.1", "B"]
    assert lightness(light["FedAvg, lr 0.01"]) > lightness(light["FedAvg, lr 0.1"]) > lightness(light["FedAvg, lr 1.0"])
    assert len({round(hue(colour), 1) for label, colour in light.items() if label != "B"}) == 1
    dark = {label: lightness(colour.dark) for label, colour in found.items()}
    assert dark["FedAvg, lr 0.01"] < dark["FedAvg, lr 0.1"] < dark["FedAvg, lr 1.0"]


def test_options_of_an_algorithm_are_values_too() -> None:
    found = colours_of([run(f"mu {mu}", "fedprox", mu=mu) for mu in (1.0, 0.1)])
    assert lightness(found["mu 0.1"].light) > lightness(found["mu 1.0"].light)


def test_more_algorithms_than_hues() -> None:
    found = list(colours_of([run(f"{i}", f"a{i}") for i in range(9)]).values())
    assert [colour.dashed for colour in found] == [False] * 7 + [True] * 2
    assert found[0].light == found[7].light
