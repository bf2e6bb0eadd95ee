"""Every algorithm learns by its name alone, with the settings that users get."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

import undrift as ud


def network(features: int, units: int, classes: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(features, units), nn.ReLU(), nn.Linear(units, classes))


@cache
def digits() -> ud.FederatedData:
    """Forty clients with two of ten classes each, eight of them in a round."""
    return ud.data.load("digits")


Samples = tuple[torch.Tensor, torch.Tensor]


@cache
def five_sites() -> tuple[list[Samples], Samples]:
    """Clients of unequal size that hold the classes in unequal parts, and a test set that holds them in equal ones."""
    generator = torch.Generator().manual_seed(0)
    centres = 6.5 * torch.randn(4, 6, generator=generator)

    def draw(count: int, *shares: float) -> Samples:
        y = torch.multinomial(torch.tensor(shares), count, replacement=True, generator=generator)
        return centres[y] + 2 * torch.randn(count, 6, generator=generator), y

    sites = [
        draw(100, 0.4, 0.3, 0.2, 0.1),
        draw(25, 0.1, 0.1, 0.2, 0.6),
        draw(64, 0.1, 0.6, 0.2, 0.1),
        draw(40, 0.2, 0.1, 0.6, 0.1),
        draw(70, 0.3, 0.2, 0.1, 0.4),
    ]
    return sites, draw(400, *[0.25] * 4)


@cache
def accuracy(problem: str, algorithm: str) -> float:
    if problem == "digits":
        run = ud.simulate(algorithm, network(64, 32, 10), digits(), rounds=30, eval_every=30)
    else:
        sites, test = five_sites()
        run = ud.simulate(algorithm, network(6, 16, 4), sites, test, rounds=25, eval_every=25)
    return float(run.history["accuracy"].iloc[-1])


NAMES = [name for name, kind in ud.algorithms.available().items() if kind.__module__.startswith("undrift.")]


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_digits_half_as_well_as_fedavg(name: str) -> None:
    assert accuracy("digits", "fedavg") > 0.35
    assert accuracy("digits", name) > accuracy("digits", "fedavg") / 2


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_where_five_unequal_clients_all_take_part(name: str) -> None:
    assert accuracy("five sites", "fedavg") > 0.97
    assert accuracy("five sites", name) > 0.85
