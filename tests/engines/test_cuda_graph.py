"""Rounds that are captured once and replayed: nothing of the first one may be left in the others.

Without a GPU the capture is played by its twin: the function of the first call answers all later ones, so that
whatever it took from its own round besides tensors would be seen. `test_gpu.py` repeats this with CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import undrift as ud
from undrift.core import tree
from undrift.core.tree import Nest
from undrift.data.batches import Schedule, Table, exact, padded, plan
from undrift.engines import Batched
from undrift.engines.cuda_graph import Function
from undrift.simulation import round as rounds
from undrift.simulation import run

STEP_BY_STEP = {"mafsvrg", "gafsvrg"}  # what they do depends on the round, which the host must know


class Twin:
    """A `Replayer` that remembers the first function for a key instead of capturing it."""

    refusal = ""

    def __init__(self) -> None:
        self.functions: dict[Hashable, Function] = {}

    def __call__(self, key: Hashable, function: Function, given: Nest) -> tuple[Nest, Any]:
        found, fixed = self.functions.setdefault(key, function)(tree.map_nest(torch.clone, given))
        return tree.map_nest(torch.clone, found), fixed


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[Twin]:
    """The batched engine as on a GPU; yields the twins that were made."""
    made: list[Twin] = []

    def twin() -> Twin:
        made.append(Twin())
        return made[-1]

    monkeypatch.setattr(rounds, "Replayer", twin)
    monkeypatch.setattr(run, "Replayer", twin)
    original = Batched.__init__

    def init(self: Batched, chunk: int, replayed: bool = False, convolutions: bool = False) -> None:
        original(self, chunk, True, convolutions)

    monkeypatch.setattr(Batched, "__init__", init)
    return made


def federation(sizes: tuple[int, ...] = (10, 7, 16, 9, 12, 5, 30, 3)) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(n, 6, generator=generator), torch.randint(4, (n,), generator=generator)) for n in sizes]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 4))


def simulated(algorithm: Any, **options: Any) -> ud.Run:
    usual: dict[str, Any] = {
        "test": federation()[0],
        "rounds": 5,
        "cohort": 4,
        "lr": 0.05,
        "batch_size": 4,
        "dtype": "float64",
        "engine": "batched",
        "device": "cpu",
    }
    given = usual | options
    return ud.simulate(algorithm, model(), given.pop("data", federation()), **given)


def figures(of: ud.Run) -> Any:
    return of.history.drop(columns="seconds").to_numpy(dtype=float)


def same(a: ud.Run, b: ud.Run) -> bool:
    close = all(torch.allclose(v, b.parameters[k], rtol=0, atol=1e-10) for k, v in a.parameters.items())
    return close and np.allclose(figures(a), figures(b), rtol=0, atol=1e-10, equal_nan=True)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"epochs": 2, "momentum": 0.9},
    {"steps": 3, "lr_decay": 0.5},
    {"batch_size": None, "weight_decay": 0.1, "clip": 1.0},
    {"data": federation((8,) * 6)},
]


@pytest.mark.parametrize("name", sorted(set(ud.algorithms.available()) - STEP_BY_STEP))
def test_replayed_rounds_are_rounds(name: str, replayed: list[Twin], monkeypatch: pytest.MonkeyPatch) -> None:
    options = {} if name == "fsvrg" else {"lr_decay": 0.7}
    found = simulated(name, **options)
    assert any(twin.functions for twin in replayed)
    monkeypatch.undo()
    assert same(found, simulated(name, **options))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_any_schedule(options: dict[str, Any], replayed: list[Twin], monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulated("scaffold", **options)
    monkeypatch.undo()
    assert same(found, simulated("scaffold", **options))


def test_few_shapes_do_for_all_cohorts(replayed: list[Twin]) -> None:
    sizes = tuple(np.random.default_rng(0).integers(1, 200, 60).tolist())
    simulated("fedavg", data=federation(sizes), rounds=40, cohort=6)
    assert max(len(twin.functions) for twin in replayed) <= 16


def test_divergence_names_its_clients(replayed: list[Twin]) -> None:
    clients = [(torch.full((4, 2), 1e200 if i == 2 else 1.0, dtype=torch.float64), torch.zeros(4)) for i in range(4)]
    with pytest.raises(ud.DivergenceError, match="client 2 ") as caught:
        ud.simulate(
            "fedavg", nn.Linear(2, 1).double(), clients, loss=lambda out, _: out.square().sum(1), engine="batched"
        )
    assert caught.value.clients == [2]
    assert any(twin.functions for twin in replayed)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=12),
    st.integers(1, 6),
    st.one_of(st.none(), st.integers(1, 12)),
    st.integers(1, 3),
    st.booleans(),
)
def test_a_padded_plan_draws_the_same_batches(
    sizes: list[int], count: int, batch: int | None, length: int, by_steps: bool
) -> None:
    schedule = Schedule(batch, None, length) if by_steps else Schedule(batch, length, None)
    data = ud.FederatedData.from_clients([(torch.zeros(n, 1), torch.zeros(n)) for n in sizes])
    table, ids = Table.of(data, torch.device("cpu")), torch.arange(min(count, len(sizes)))
    chosen = data.sizes[ids.numpy()]
    tight, wide = exact(schedule, chosen), padded(schedule, chosen, min(sizes), max(sizes))
    a, b = (
        plan(table, positions=ids, clients=ids, shape=shape, schedule=schedule, seed=3, round=2)
        for shape in (tight, wide)
    )
    steps = tight.steps
    assert wide.steps >= steps
    assert torch.equal(a.counts, b.counts[:, :steps])
    assert not b.counts[:, steps:].any()
    for client, counts in enumerate(a.counts.tolist()):
        for step, n in enumerate(counts):
            assert torch.equal(a.rows[client, step, :n], b.rows[client, step, :n])
    for shape, drawn in ((tight, a), (wide, b)):  # what a shape promises, a plan keeps
        assert all(bool((drawn.counts[:, j] == shape.batch).all()) for j in range(shape.steps) if shape.full[j])
        assert all(bool((drawn.counts[:, j] > 0).all()) for j in range(shape.steps) if shape.all_active[j])
        assert shape.smallest <= int(drawn.sizes.min())
        assert drawn.rows.shape == (len(ids), shape.steps, shape.batch)
