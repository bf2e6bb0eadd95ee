"""A million clients cost what their samples cost, and a round what its cohort costs."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import undrift as ud
from undrift.core import random
from undrift.data.batches import Schedule, Table, exact, plan
from undrift.data.partition import by_owner, owners
from undrift.simulation.loop import rounds

MANY = 1_000_000


@pytest.fixture(scope="module")
def tiny() -> ud.FederatedData:
    sizes = np.random.default_rng(0).integers(1, 4, MANY)
    count = int(sizes.sum())
    y = np.arange(count) % 3
    return ud.FederatedData.from_rows(np.zeros((count, 2), np.float32), y, np.arange(count), sizes, classes=3)


def test_a_million_clients_are_a_few_arrays(tiny: ud.FederatedData) -> None:
    assert len(tiny) == MANY
    x, y = tiny.client(MANY - 1)
    assert len(x) == len(y) == tiny.sizes[-1]
    held = tiny.hold_out(0.3)
    assert len(held) == MANY
    assert held.sizes.min() == 1


class Largest(TorchFunctionMode):
    """Notes the largest tensor that any function returns, but for the federation's own."""

    def __init__(self, data: ud.FederatedData) -> None:
        super().__init__()
        self.numel, self.own = 0, {data.x.numel(), data.y.numel()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and torch.numel(result) not in self.own:
            self.numel = max(self.numel, torch.numel(result))
        return result


def test_a_round_takes_memory_for_its_cohort_only(tiny: ud.FederatedData) -> None:
    """An array over all clients would be a megabyte at least (numpy tells tracemalloc what it takes)."""
    run = ud.simulate("scaffold", "softmax", tiny, rounds=3, cohort=20, batch_size=2, callbacks=[lambda r, run: True])
    assert run.rounds == 1
    run.ended = False
    tracemalloc.start()
    try:
        further = rounds([run], (), "raise")
        with Largest(tiny) as largest:
            next(further)
        next(further)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < MANY / 2
    assert 100 < largest.numel < 10_000


def test_plans_do_not_depend_on_the_others(tiny: ud.FederatedData) -> None:
    """The same clients in a federation of a hundred have the same batches, but for where their rows lie."""
    few = ud.FederatedData.from_rows(
        tiny.x[: tiny.offsets[100]], tiny.y[: tiny.offsets[100]], tiny.rows[: tiny.offsets[100]], tiny.sizes[:100]
    )
    ids = random.sample(0, 1, 100, 10).numpy()
    schedule, clients = Schedule(2, 2, None), torch.from_numpy(ids)
    shape = exact(schedule, few.sizes[ids])
    options: dict[str, Any] = {
        "positions": clients,
        "clients": clients,
        "shape": shape,
        "schedule": schedule,
        "seed": 0,
        "round": 1,
    }
    plans = [plan(Table.of(data, few.x.device), **options) for data in (tiny, few)]
    assert bool((plans[0].rows == plans[1].rows).all())


def test_partition_of_a_million_users() -> None:
    users = np.random.default_rng(0).integers(0, 300_000, MANY)
    rows, sizes = by_owner(owners("natural,min=3", users, users=users))
    kept = np.bincount(users)
    assert len(sizes) == (kept >= 3).sum()
    assert sizes.sum() == len(rows) == kept[kept >= 3].sum()
