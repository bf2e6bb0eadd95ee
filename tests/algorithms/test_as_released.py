"""The example of what authors' code computes: SCAFFOLD whose control is a sum."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undrift as ud

SUMMED = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "as_released.py"))["SummedSCAFFOLD"]()


def initial() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.flatten() for value in model.state_dict().values()])


def trained(algorithm: Any, clients: int, rounds: int, lr: float = 0.1) -> Tensor:
    data = ud.data.load("digits", partition="iid", clients=clients, seed=0)
    given: dict[str, Any] = {"rounds": rounds, "steps": 2, "batch_size": 32, "lr": lr, "cohort": 1.0, "seed": 0}
    return weights(ud.simulate(algorithm, initial(), data, **given).model)


@pytest.mark.parametrize(("clients", "rounds"), [(5, 1), (1, 3)])
def test_a_sum_is_the_mean_while_it_is_zero_or_of_one_client(clients: int, rounds: int) -> None:
    assert torch.equal(trained(SUMMED, clients, rounds), trained("scaffold", clients, rounds))


def test_the_sum_of_five_controls_is_the_way_of_the_first_round_four_times_more() -> None:
    """The mean control is that way over the steps, and in round 2 the sum has it five times instead of once. At a tiny
    rate gradients do not change meanwhile."""
    first, mean, summed = (
        trained(name, 5, rounds, lr=1e-6) for name, rounds in (("scaffold", 1), ("scaffold", 2), (SUMMED, 2))
    )
    torch.testing.assert_close(summed - mean, 4 * (first - weights(initial())), rtol=1e-4, atol=1e-12)
