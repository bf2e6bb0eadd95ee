"""Rounds compiled for a CPU give the same numbers.

For every algorithm, the traced graph is run without a compiler; the compiler itself, which takes seconds, is tried on
one.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from laws import one_of_every_kind
from undrift.core import torch_private
from undrift.diagnostics import DIAGNOSTICS
from undrift.engines import compiled
from undrift.reporting.record import TIMES

pytestmark = pytest.mark.usefixtures("networks_are_tried_once")
STEP_BY_STEP = {"mafsvrg", "gafsvrg"}  # what they do depends on the round, which the host must know
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def federation(sizes: tuple[int, ...] = (8,) * 6, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 6, generator=generator), torch.randint(4, (n,), generator=generator)) for n in sizes]


def model(tiny: bool = False, plain: bool = False) -> nn.Module:
    torch.manual_seed(0)
    if tiny:
        return nn.Linear(6, 4)
    if plain:  # traced in half the time
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 4))


def simulated(
    algorithm: Any, engine: str, data: Any = None, tiny: bool = False, plain: bool = False, **options: Any
) -> ud.Run:
    defaults: dict[str, Any] = {
        "rounds": 4,
        "cohort": 3,
        "lr": 0.05,
        "batch_size": 4,
        "dtype": "float64",
        "device": "cpu",
    }
    return ud.simulate(algorithm, model(tiny, plain), data or federation(), engine=engine, **defaults | options)


def same(a: ud.Run, b: ud.Run) -> bool:
    close = all(torch.allclose(v, b.parameters[k], rtol=0, atol=1e-10) for k, v in a.parameters.items())
    mine, other = (run.history.drop(columns=TIMES).to_numpy(dtype=float) for run in (a, b))
    return close and np.allclose(mine, other, rtol=0, atol=1e-10, equal_nan=True)


def is_compiled(run: ud.Run) -> bool:
    return run.engine.startswith("compiled (as asked") and "not compiled" not in run.engine


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Graphs are run without being compiled; the list of them."""
    graphs: list[Any] = []

    def keep(graph: Any, given: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch_private, "compile_graph", keep)
    monkeypatch.setattr(compiled, "_missing_compiler", lambda: None)
    return graphs


@pytest.mark.parametrize("name", one_of_every_kind(sorted(set(ud.algorithms.available()) - STEP_BY_STEP)))
def test_every_algorithm(name: str, traced: list[Any]) -> None:
    options: dict[str, Any] = {} if name == "fsvrg" else {"lr_decay": 0.7}
    options |= {"plain": name != "fedbn", "rounds": 3, "batch_size": None}  # steps are all traced, so one is enough
    found = simulated(name, "compiled", **options)
    assert len(traced) == 1
    assert is_compiled(found)
    assert same(found, simulated(name, "batched", **options))


@pytest.mark.parametrize("name", sorted(STEP_BY_STEP))
def test_what_cannot_be_traced_runs_step_by_step(name: str, traced: list[Any]) -> None:
    found = simulated(name, "compiled")
    assert not traced
    assert "rounds are not compiled: " in found.engine
    assert same(found, simulated(name, "batched"))


OPTIONS: list[dict[str, Any]] = [
    {"epochs": 2, "momentum": 0.9, "weight_decay": 0.1, "tiny": True},
    {"batch_size": None, "clip": 0.1, "cohort": None},
    {"data": federation((8, 7, 5, 6)), "cohort": None},
    {"data": federation((9, 10, 12, 11, 10, 9)), "epochs": 2, "tiny": True},
    {"data": federation((9, 10, 12, 11, 10, 9)), "batch_size": None, "tiny": True},
    {"data": federation((9, 10, 12, 11, 10, 9)), "steps": 3, "batch_size": 5, "engine": "compiled:2", "tiny": True},
    {"cohort": [[0, 1], [3, 2], [5, 4], [1, 0]], "tiny": True},
    {"engine": "compiled:2", "tiny": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options))
def test_any_schedule(options: dict[str, Any], traced: list[Any]) -> None:
    given = dict(options)
    engine = given.pop("engine", "compiled")
    found = simulated("scaffold", engine, **given)
    assert len(traced) == 1
    assert same(found, simulated("scaffold", engine.replace("compiled", "batched"), **given))


def test_several_runs_together(traced: list[Any]) -> None:
    given: dict[str, Any] = {"rounds": 4, "cohort": 3, "batch_size": 4, "seeds": [0, 1], "lr": [0.05, 0.1]}
    data = ud.FederatedData.from_clients(federation())
    both = [
        ud.compare(["scaffold"], model(plain=True).double(), data, engine=engine, **given)
        for engine in ("compiled", "batched")
    ]
    assert len(traced) == 1
    for a, b in zip(*(comparison.records for comparison in both), strict=True):
        np.testing.assert_allclose(a.history.train_loss, b.history.train_loss, rtol=1e-9)


def test_runs_of_other_sizes_are_compiled_alone(traced: list[Any]) -> None:
    """Together they would need another shape, and another compilation, in almost every round."""

    def dealt(seed: int) -> ud.FederatedData:
        sizes = (8, 9, 10, 11, 12) if seed == 0 else (12, 13, 14, 15, 16)
        x, y = (torch.cat(parts) for parts in zip(*federation((16,) * 5), strict=True))
        return ud.FederatedData(x, y, [list(range(16 * i, 16 * i + n)) for i, n in enumerate(sizes)], classes=4)

    ud.compare(["fedavg"], model(tiny=True), dealt, engine="compiled", rounds=6, cohort=2, batch_size=4, seeds=2)
    assert len(traced) == 2


def test_divergence_names_its_clients(traced: list[Any]) -> None:
    clients = [(torch.full((4, 2), 1e200 if i == 2 else 1.0, dtype=torch.float64), torch.zeros(4)) for i in range(4)]
    with pytest.raises(ud.DivergenceError, match="client 2 "):
        ud.simulate(
            "fedavg", nn.Linear(2, 1).double(), clients, loss=lambda out, _: out.square().sum(1), engine="compiled"
        )
    assert traced


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = simulated("fedavg", "compiled")
    assert "rounds are not compiled: there is no C++ compiler 'no-such-compiler'" in found.engine
    assert same(found, simulated("fedavg", "batched"))


def test_without_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make_fx` is not public; with a version of PyTorch that lacks it, rounds run step by step."""

    def missing(function: Any, inputs: list[Tensor]) -> None:
        raise ImportError("cannot import name 'make_fx'")

    monkeypatch.setattr(torch_private, "trace", missing)
    monkeypatch.setattr(compiled, "_missing_compiler", lambda: None)
    found = simulated("fedavg", "compiled")
    assert "rounds are not compiled: cannot import name 'make_fx'" in found.engine
    assert same(found, simulated("fedavg", "batched"))


@pytest.mark.parametrize(
    ("chosen", "replaced"), [(None, True), ("default", True), ("/var/mine", False), ("/var/torchinductor_me", False)]
)
def test_code_is_cached_with_our_data(chosen: str | None, replaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the user chose a directory; PyTorch sets the variable to its own default."""
    monkeypatch.setenv("UNDRIFT_CACHE", "/our/cache")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    if chosen == "default":
        importlib.import_module("torch._inductor.runtime.cache_dir_utils").cache_dir()
    elif chosen is not None:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", chosen)
    compiled._set_cache_directory()
    assert (os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/our/cache/compiled") == replaced
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")


def chosen(monkeypatch: pytest.MonkeyPatch, data: Any = None, **options: Any) -> str:
    """The engine that `auto` chooses where three rounds count as many."""
    monkeypatch.setattr(sys.modules["undrift.engines.choose"], "_ROUNDS_TO_COMPILE", 3)
    return simulated("fedavg", "auto", data, tiny=True, **options).engine


def test_auto_compiles_long_runs_only(traced: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, rounds=3).startswith("compiled (clients train together, for 3 rounds")
    assert chosen(monkeypatch, rounds=2).startswith("batched")
    assert chosen(monkeypatch, target=0.5, test=federation()[0]).startswith("batched")  # it may stop at any time
    assert chosen(monkeypatch, federation((8, 9, 8, 8)), cohort=2).startswith("compiled")  # padding is cheaper
    assert chosen(monkeypatch, federation((8, 13, 8, 8)), cohort=2).startswith("batched")
    assert chosen(monkeypatch, federation((8, 13, 8, 8)), cohort=None).startswith("compiled")
    assert chosen(monkeypatch, cohort=[[0], [1], [2], [3, 4]]).startswith("batched")
    assert chosen(monkeypatch, epochs=20).startswith("batched")  # a long wait before the first round


def test_rounds_of_several_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one shape, but those sampled have between 8 and 13 samples; use 'batched'"):
        simulated("fedavg", "compiled", federation((8, 13, 8)), cohort=2)
    with pytest.raises(ValueError, match=r"one shape, but they have between 1 and 2 clients; use 'batched'"):
        simulated("fedavg", "compiled", cohort=[[0], [1], [2], [3, 4]])


@needs_compiler
def test_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Correct, reproducible, the same when resumed, and cached for other seeds and learning rates."""
    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    given: dict[str, Any] = {"tiny": True, "batch_size": None}
    found = simulated("fedavg", "compiled", **given)
    assert is_compiled(found)
    assert same(found, simulated("fedavg", "batched", **given))
    assert set((tmp_path / "compiled").rglob("*.so"))

    simulated("fedavg", "compiled", rounds=2, out=tmp_path / "run", **given)
    again = ud.resume(tmp_path / "run", rounds=4, model=model(tiny=True), data=federation())
    assert is_compiled(again)
    assert torch.equal(again.parameters["weight"], found.parameters["weight"])

    kernels = set((tmp_path / "compiled").rglob("*.so"))
    other = simulated("fedavg", "compiled", seed=7, lr=0.3, **given)
    assert same(other, simulated("fedavg", "batched", seed=7, lr=0.3, **given))
    assert set((tmp_path / "compiled").rglob("*.so")) == kernels


@needs_compiler
@pytest.mark.long
def test_compiled_by_what_is_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path))
    given: dict[str, Any] = {"tiny": True, "batch_size": None}
    monkeypatch.delattr(torch._inductor, "standalone_compile")  # private; without it, `torch.compile`
    public = simulated("fedavg", "compiled", **given)
    assert is_compiled(public)
    assert same(public, simulated("fedavg", "batched", **given))


def test_diagnostics_are_part_of_the_graph(traced: list[Any]) -> None:
    options: dict[str, Any] = {"diagnostics": list(DIAGNOSTICS), "tiny": True, "batch_size": None, "rounds": 3}
    found = simulated("scaffold", "compiled", **options)
    assert len(traced) == 1
    assert is_compiled(found)
    assert same(found, simulated("scaffold", "batched", **options))
