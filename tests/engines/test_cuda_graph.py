"""Rounds that are captured once and replayed: nothing of the captured round may be left in the others.

Without a GPU, a replay calls the function that was captured, so that whatever it took from its own round besides
tensors would be noticed. `test_gpu.py` repeats this with CUDA graphs.
"""

from __future__ import annotations

import sys
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
from undrift.diagnostics import DIAGNOSTICS
from undrift.engines import Batched, cuda_graph
from undrift.engines.cuda_graph import Captured, CudaGraphs, Function
from undrift.reporting.record import TIMES

pytestmark = pytest.mark.usefixtures("networks_are_tried_once")
STEP_BY_STEP = {"mafsvrg", "gafsvrg"}  # what they do depends on the round, which the host must know


class Replays:
    """How many functions were captured, and how often they were replayed."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def capture(self, function: Function, inputs: Nest, pool: Any) -> Captured:
        """Stands in for `cuda_graph.capture` where there is no GPU."""
        own = tree.map_nest(torch.clone, inputs)
        results, fixed = function(own)
        results = tree.map_nest(torch.clone, results)
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            cuda_graph.copy_nest(results, function(own)[0])

        return Captured(replay, own, results, fixed=fixed, pool=None)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    """The batched engine as on a GPU, but for the capture."""
    found = Replays()
    monkeypatch.setattr(cuda_graph, "capture", found.capture)
    choose = sys.modules["undrift.engines.choose"]  # of the package, the function of this name hides it
    monkeypatch.setattr(choose, "Batched", lambda *args, **options: Batched(*args, **options | {"replayed": True}))
    return found


def federation(sizes: tuple[int, ...] = (10, 7, 16, 9, 12, 5, 15, 3)) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(n, 6, generator=generator), torch.randint(4, (n,), generator=generator)) for n in sizes]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 4))


def simulated(algorithm: Any, **options: Any) -> ud.Run:
    defaults: dict[str, Any] = {
        "test": federation()[0],
        "rounds": 5,
        "cohort": 4,
        "lr": 0.05,
        "batch_size": 4,
        "dtype": "float64",
        "engine": "batched",
        "device": "cpu",
    }
    given = defaults | options
    return ud.simulate(algorithm, model(), given.pop("data", federation()), **given)


def figures(of: ud.Run) -> Any:
    return of.history.drop(columns=TIMES).to_numpy(dtype=float)


def same(a: ud.Run, b: ud.Run) -> bool:
    close = all(torch.allclose(v, b.parameters[k], rtol=0, atol=1e-10) for k, v in a.parameters.items())
    return close and np.allclose(figures(a), figures(b), rtol=0, atol=1e-10, equal_nan=True)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"epochs": 2, "momentum": 0.9},
    {"steps": 3, "lr_decay": 0.5},
    {"optimizer": "rmsprop", "weight_decay": 0.1},  # without it rounding alone moves a bias before a BatchNorm
    {"batch_size": None, "weight_decay": 0.1, "clip": 1.0},
    {"data": federation((8,) * 6)},
]


@pytest.mark.parametrize("name", [*sorted(set(ud.algorithms.available()) - STEP_BY_STEP), "fedpgvc(form='normalised')"])
def test_replayed_rounds_give_the_same_numbers(name: str, replays: Replays, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {} if name == "fsvrg" else {"lr_decay": 0.7}
    found = simulated(name, **options)
    assert replays.replayed > replays.captured > 0
    monkeypatch.undo()
    assert same(found, simulated(name, **options))


@pytest.mark.parametrize(("name", "blocks"), [("scaffold", 1), ("mime", 2)])
def test_blocks_by_size_where_clients_look_at_all_their_samples(
    name: str, blocks: int, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["undrift.engines.batched"], "_BUSY", 1e3)
    choose, here = sys.modules["undrift.engines.choose"], {"replayed": True, "flops": 100.0}
    monkeypatch.setattr(choose, "Batched", lambda *args, **options: Batched(*args, **options | here))
    data = federation((10, 7, 160, 9, 120, 5, 150, 3))
    found = simulated(name, data=data, cohort=8, steps=2)
    experiment = found.experiment
    sizes = experiment.data.sizes
    arrangement = experiment.engine.arrange(experiment.schedule, sizes, (int(sizes.min()), int(sizes.max())))
    assert len(arrangement.shapes) == blocks
    assert replays.replayed > replays.captured > 0
    monkeypatch.undo()
    assert same(found, simulated(name, data=data, cohort=8, steps=2))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_any_schedule(options: dict[str, Any], replays: Replays, monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulated("scaffold", **options)
    assert replays.captured
    monkeypatch.undo()
    assert same(found, simulated("scaffold", **options))


@pytest.mark.parametrize(
    "options",
    [
        {"aggregate": "trimmed-mean(share=0.25)", "attack": "noise(share=0.3)"},
        {"aggregate": "krum(share=0, keep=2)", "attack": "label-flip"},
        {"aggregate": "geometric-median", "compress": "random-k(share=0.3)"},
        {"aggregate": "norm-clip", "compress": "quantise"},
        {"privacy": "gaussian(clip=0.1)"},
    ],
    ids=str,
)
def test_what_acts_on_updates(options: dict[str, Any], replays: Replays, monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulated("fedavg", buffers="dropped", **options)
    assert replays.replayed > replays.captured > 0
    monkeypatch.undo()
    assert same(found, simulated("fedavg", buffers="dropped", **options))


def test_a_few_shapes_cover_every_cohort(replays: Replays) -> None:
    sizes = tuple(np.random.default_rng(0).integers(1, 200, 60).tolist())
    simulated("fedavg", data=federation(sizes), rounds=40, cohort=6, batch_size=16)
    assert replays.captured <= 16
    assert replays.replayed >= 20


def test_divergence_names_its_clients(replays: Replays) -> None:
    clients = [(torch.full((4, 2), 1e200 if i == 2 else 1.0, dtype=torch.float64), torch.zeros(4)) for i in range(4)]
    with pytest.raises(ud.DivergenceError, match="client 2 ") as caught:
        ud.simulate(
            "fedavg", nn.Linear(2, 1).double(), clients, loss=lambda out, _: out.square().sum(1), engine="batched"
        )
    assert caught.value.clients == [2]
    assert replays.captured == 0  # the first round runs as it is


class TestCudaGraphs:
    def test_the_first_call_runs_and_the_second_is_captured(self, replays: Replays) -> None:
        graphs = CudaGraphs()
        for call in range(4):
            x, y = torch.tensor(float(call)), torch.tensor(10.0)
            inputs = {"x": x, "y": y} if call % 2 else {"y": y, "x": x}  # in any order
            results, fixed = graphs("key", lambda given: ({"sum": given["x"] + given["y"]}, "fixed"), inputs)
            assert (float(results["sum"]), fixed) == (10.0 + call, "fixed")
        assert (replays.captured, replays.replayed) == (1, 3)

    def test_the_least_recently_used_graph_is_dropped(self, replays: Replays, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cuda_graph, "_MAX_GRAPHS", 2)
        graphs = CudaGraphs()
        for key in "aabbacc" + "a" + "bb":
            graphs(key, lambda given: (given, None), {"x": torch.ones(1)})
        assert replays.captured == 4  # a, b, c, and b again

    def test_a_failed_capture_is_reported_and_not_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(function: Function, inputs: Nest, pool: Any) -> Captured:
            try:
                raise RuntimeError("waits for the device\nmore")
            except RuntimeError:
                raise RuntimeError("the capture failed") from None

        monkeypatch.setattr(cuda_graph, "capture", fail)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        graphs = CudaGraphs()
        for call in range(3):
            results, _ = graphs("key", lambda given: (given, None), {"x": torch.tensor(call)})
            assert int(results["x"]) == call
        assert graphs.refusal == "waits for the device"


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


def test_diagnostics_are_captured(replays: Replays, monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulated("scaffold", diagnostics=list(DIAGNOSTICS))
    assert replays.replayed > replays.captured > 0
    assert found.history["global_cosine/value"].notna().sum() == 4
    monkeypatch.undo()
    assert same(found, simulated("scaffold", diagnostics=list(DIAGNOSTICS)))
