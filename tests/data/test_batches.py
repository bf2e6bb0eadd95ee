"""Which samples a client uses in which step: every sample once an epoch, whoever else is planned with it."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from undrift import FederatedData
from undrift.data.batches import Plan, Schedule, Table, exact, plan

CPU = torch.device("cpu")


def federation(sizes: list[int]) -> FederatedData:
    """Rows are shuffled, so that a client's rows are not its places."""
    rows = np.random.default_rng(0).permutation(sum(sizes))
    return FederatedData(
        torch.arange(sum(sizes), dtype=torch.float32)[:, None],
        torch.zeros(sum(sizes), dtype=torch.int64),
        np.split(rows, np.cumsum(sizes)[:-1]),
    )


def planned(sizes: list[int], schedule: Schedule, ids: list[int] | None = None, seed: int = 0, round: int = 1) -> Plan:
    clients = torch.tensor(ids or range(len(sizes)))
    shape = exact(schedule, np.array(sizes)[clients.numpy()])
    table = Table.of(federation(sizes), CPU)
    return plan(table, positions=clients, clients=clients, shape=shape, schedule=schedule, seed=seed, round=round)


def batches(of: Plan, client: int) -> list[list[int]]:
    """The real samples of every step."""
    return [r[:n].tolist() for r, n in zip(of.rows[client], of.counts[client].tolist(), strict=True) if n]


def together(parts: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


some_sizes = st.lists(st.integers(1, 13), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(some_sizes, st.integers(1, 15), st.integers(1, 3))
def test_every_epoch_uses_every_sample_once(sizes: list[int], batch: int, epochs: int) -> None:
    data, out = federation(sizes), planned(sizes, Schedule(batch, epochs, None))
    for client, size in enumerate(sizes):
        mine = batches(out, client)
        per_epoch = -(-size // batch)
        assert len(mine) == epochs * per_epoch
        own = sorted(data.rows[data.offsets[client] : data.offsets[client + 1]].tolist())
        for epoch in range(epochs):
            part = mine[epoch * per_epoch : (epoch + 1) * per_epoch]
            assert [len(b) for b in part[:-1]] == [batch] * (per_epoch - 1)  # only the last one may be short
            assert sorted(together(part)) == own


@settings(max_examples=60, deadline=None)
@given(some_sizes, st.one_of(st.none(), st.integers(1, 15)), st.integers(1, 7))
def test_steps_are_exactly_so_many(sizes: list[int], batch: int | None, steps: int) -> None:
    schedule = Schedule(batch, None, steps)
    out = planned(sizes, schedule)
    assert ((out.counts > 0).sum(1) == steps).all()
    assert (schedule.step_counts(np.array(sizes)) == steps).all()


def test_steps_go_through_the_data_before_repeating_it() -> None:
    mine = batches(planned([6], Schedule(2, None, 5)), 0)
    assert len(set(together(mine[:3]))) == 6
    assert len(set(together(mine[3:]))) == 4


@settings(max_examples=40, deadline=None)
@given(some_sizes, st.one_of(st.none(), st.integers(1, 8)))
def test_a_client_does_not_depend_on_its_company(sizes: list[int], batch: int | None) -> None:
    all_of_them = planned(sizes, Schedule(batch, 2, None))
    for client in range(len(sizes)):
        alone = planned(sizes, Schedule(batch, 2, None), [client])
        assert batches(alone, 0) == batches(all_of_them, client)


def test_every_epoch_has_its_own_order() -> None:
    mine = batches(planned([12], Schedule(12, 2, None)), 0)
    assert mine[0] != mine[1]


def test_padding_repeats_the_client_s_own_rows() -> None:
    sizes = [7, 2, 5]
    data, out = federation(sizes), planned(sizes, Schedule(3, 1, None))
    for client in range(3):
        own = set(data.rows[data.offsets[client] : data.offsets[client + 1]].tolist())
        assert set(out.rows[client].flatten().tolist()) <= own
        assert set(out.everything[client].tolist()) == own


def test_full_batches_hold_everything() -> None:
    out = planned([4, 2], Schedule(None, 3, None))
    assert out.counts.tolist() == [[4, 4, 4], [2, 2, 2]]


@pytest.mark.parametrize("change", [{"seed": 1}, {"round": 2}])
def test_seed_and_round_change_the_order(change: dict[str, Any]) -> None:
    changes: list[dict[str, Any]] = [{}, change]
    first, second = (batches(planned([12], Schedule(3, 1, None), **options), 0) for options in changes)
    assert first != second
    assert sorted(together(first)) == sorted(together(second))
