"""Every algorithm of the table obeys its laws (see `laws.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import undrift as ud
from laws import FIRST, LAWS, SHORT, SIZES, TERRAIN, UNEQUAL_STEPS, Golden, Law, Neutral, classified, terrain
from quadratics import Terrain
from undrift import Algorithm
from undrift.algorithms import FedAvg
from undrift.core import tree
from undrift.reporting.record import TIMES
from undrift.simulation.place import PLACES, Place


def name_of(each: Law | str) -> str:
    return each if isinstance(each, str) else each.name


every_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
# Of an algorithm's further entries with --all.
first_laws = pytest.mark.parametrize(
    "law", [pytest.param(law, marks=() if law in FIRST else pytest.mark.long, id=law.name) for law in LAWS]
)
SCALARS = 64  # bytes a client may send beside whole models


@contextmanager
def held(law: Law, request: pytest.FixtureRequest, *keys: str) -> Iterator[None]:
    """What follows holds; or it has to fail if the law is excused, or to be refused as the table says."""
    for key in keys:
        if key in law.excused:
            request.applymarker(pytest.mark.xfail(strict=True, raises=AssertionError, reason=law.excused[key]))
        if key in law.refused:
            with pytest.raises(ValueError, match=law.refused[key]):
                yield
            return
    yield


def test_what_is_excused_or_refused_is_a_law() -> None:
    known = {"difference", "limit", "partial", "engines", "traffic", "state", "resume", "permutation", "translation"}
    assert {key.split()[0] for law in LAWS for key in (*law.excused, *law.refused)} <= known


_PLAIN: dict[str, ud.Run] = {}  # runs that several laws look at


def train(law: Law, algorithm: ud.Algorithm | None = None, **options: Any) -> ud.Run:
    """A few rounds on the classification problem."""
    chosen = algorithm or law.algorithm
    settings = {**SHORT, **law.options, **options}
    key = repr((chosen, law.model, settings))
    if key not in _PLAIN or {"out", "callbacks"} & settings.keys():
        _PLAIN[key] = ud.simulate(chosen, law.model(), classified(), **settings)
    return _PLAIN[key]


COHORTS = [[0, 1, 2, 3], [1, 2, 4], [4, 0, 2]]


@cache
def watched(name: str) -> tuple[ud.Run, list[dict[str, tree.Tree]]]:
    """A run of the law of this name with given cohorts, and what was remembered after each of its rounds."""
    law = next(each for each in LAWS if each.name == name)
    history: list[dict[str, tree.Tree]] = []
    return train(law, cohort=COHORTS, callbacks=[lambda row, run: history.append(memory(run))]), history


def settle(law: Law, rounds: int, **options: Any) -> np.ndarray:
    """The point reached on quadratics, after `rounds` at most."""
    path: list[np.ndarray] = [np.full(2, np.inf)] * 5

    def at_rest(row: dict[str, Any], run: ud.Run) -> bool:
        path.append(run.parameters["point"].numpy().copy())
        return bool((np.ptp(path[-5:], axis=0) < 1e-8).all())

    # At the server rates that adaptive methods have for networks, they would be on their way for thousands of rounds.
    settings = {"lr": law.lr, "server_lr": 1.0, **UNEQUAL_STEPS, **options}
    TERRAIN.run(law.algorithm, rounds, callbacks=[at_rest], **settings)
    return path[-1]


def memory(run: ud.Run) -> dict[str, tree.Tree]:
    """All that is remembered: the server's state, and the states and ledger rows of all clients, stacked."""
    everyone = np.arange(len(SIZES))
    return {
        "server": tree.flatten(run.memory.server),
        "clients": tree.flatten(run.memory.own.gather(everyone)),
        "ledger": tree.flatten(run.memory.ledger.gather(everyone)),
    }


def test_every_algorithm_has_a_law() -> None:
    built_in = {k for k, kind in ud.algorithms.available().items() if kind.__module__.startswith("undrift.")}
    assert {law.algorithm.name() for law in LAWS} == built_in
    assert len({law.name for law in LAWS}) == len(LAWS), "a second entry of an algorithm needs a label"


NEUTRAL = [(law, case) for law in LAWS for case in law.neutrals]


@pytest.mark.parametrize(("law", "case"), NEUTRAL, ids=lambda part: part.name if isinstance(part, Law) else "")
def test_neutral(law: Law, case: Neutral) -> None:
    common = {"weighting": law.algorithm.weighting, **case.options}
    mine = train(law, case.algorithm, **common, **case.mine).models[0]
    theirs = train(law, case.equals, **common, **case.theirs).models[0]
    tolerance = 0.0 if case.exact else 1e-12
    assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def others(law: Law) -> Iterator[Algorithm]:
    """What an entry could be taken for: FedAvg, what it equals elsewhere, and other entries of the same algorithm."""
    yield FedAvg()
    yield from (case.equals for case in law.neutrals if case.equals not in law.always)
    for each in LAWS:
        alike = type(each.algorithm) is type(law.algorithm) and each.model is law.model
        if alike and each != law and each.algorithm not in law.always and law.algorithm not in each.always:
            yield each.algorithm


@every_law
def test_difference(law: Law, request: pytest.FixtureRequest) -> None:
    """Otherwise its other laws would say little."""
    mine = train(law).parameters
    with held(law, request, "difference"):
        for other in others(law):
            theirs = train(law, other, weighting=law.algorithm.weighting).parameters
            assert any(not torch.allclose(v, theirs[k]) for k, v in mine.items()), f"it is {other!r}"


def test_only_moon_has_no_limit() -> None:
    """In any of its forms; quadratics have no representations that it could compare."""
    known = {law.algorithm.name() for law in LAWS if law.limit and "limit" not in law.excused}
    assert {law.algorithm.name() for law in LAWS} - known == {"moon"}


@pytest.mark.parametrize("law", [law for law in LAWS if law.limit], ids=name_of)
def test_limit(law: Law, request: pytest.FixtureRequest) -> None:
    with held(law, request, "limit"):
        assert law.limit is not None
        np.testing.assert_allclose(settle(law, law.rounds), law.limit(terrain(law.lr)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("law", [law for law in LAWS if law.partial], ids=name_of)
def test_partial(law: Law, request: pytest.FixtureRequest) -> None:
    with held(law, request, "partial"):
        assert law.partial is not None
        reached = settle(law, law.partial_rounds, cohort=2)
        np.testing.assert_allclose(reached, law.partial(terrain(law.lr)), rtol=0, atol=1e-6)


LOCAL: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.9, "lr": 0.02, "rounds": 2},
    "adam": {"optimizer": "adam", "lr": 0.02, "rounds": 2},
}


@pytest.mark.parametrize(
    ("law", "local"),
    [(law, local) for law in LAWS for local in LOCAL if local == "sgd" or law in FIRST],
    ids=name_of,
)
def test_engines(law: Law, local: str, request: pytest.FixtureRequest) -> None:
    with held(law, request, "engines", f"engines {local}"):
        alone = memory(train(law, engine="sequential", **LOCAL[local]))
        together = memory(train(law, **LOCAL[local]))
        assert_close(together, alone, rtol=1e-10, atol=1e-10)


@every_law
def test_traffic(law: Law, request: pytest.FixtureRequest) -> None:
    with held(law, request, "traffic"):
        model = sum(p.nbytes for p in law.model().parameters() if p.requires_grad)
        history = train(law).history.iloc[law.warm_up :]
        for column, sizes in (("bytes_down", law.down), ("bytes_up", law.up)):
            sent = (history[column] / history["participants"]).to_numpy(dtype=float)
            surplus = sent - sizes * model
            assert ((surplus > -1e-6) & (surplus <= SCALARS)).all(), f"{sent / model} model sizes instead of {sizes}"


@every_law
def test_state(law: Law, request: pytest.FixtureRequest) -> None:
    with held(law, request, "state"):
        run, history = watched(law.name)
        assert bool(history[0]["clients"]) == law.remembers
        assert bool(history[0]["ledger"]) == law.ledger
        for before, after, cohort in zip(history, history[1:], COHORTS[1:], strict=False):
            for part in before:
                assert tree.same_structure(before[part], after[part])
            absent = [i for i in range(len(SIZES)) if i not in cohort]
            for part in ("clients", "ledger"):
                for name, rows in before[part].items():
                    assert torch.equal(rows[absent], after[part][name][absent])
        assert all(v.isfinite().all() for v in run.parameters.values())


@first_laws
def test_resume(law: Law, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with held(law, request, "resume"):
        whole = train(law, engine="sequential")
        train(law, engine="sequential", out=tmp_path / "run", callbacks=[lambda row, run: row["round"] == 2])
        again = ud.resume(tmp_path / "run", algorithm=law.algorithm, model=law.model(), data=classified())
        assert_close(memory(again), memory(whole), rtol=0, atol=0)
        assert again.history.drop(columns=TIMES).equals(whole.history.drop(columns=TIMES))


@every_law
def test_transport(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the batched engine; on Flower's messages (`tests/flower`) it holds with the sequential one."""
    monkeypatch.setitem(PLACES, "in-process", Place)
    fused = watched(law.name)[0]
    split = train(law, cohort=COHORTS, place="in-process")
    assert_close(memory(split), memory(fused), rtol=0, atol=0)
    assert split.history.drop(columns=TIMES).equals(fused.history.drop(columns=TIMES))


GOLDEN = [(law, golden) for law in LAWS for golden in law.golden]


@pytest.mark.parametrize(("law", "golden"), GOLDEN, ids=lambda p: repr(p.algorithm) if isinstance(p, Golden) else "")
def test_golden(law: Law, golden: Golden) -> None:
    problem = golden.problem
    path, _ = problem.run(golden.algorithm, len(golden.points), **golden.options)
    np.testing.assert_allclose(path[:, 0], golden.points, rtol=1e-9)
    if golden.limit is not None and golden.algorithm == law.algorithm:
        assert law.limit is not None
        clients = len(problem.a)
        seen = Terrain(
            a=problem.a,
            b=problem.b,
            p=np.full((clients, 1), 1 / clients),
            k=np.full((clients, 1), problem.steps),
            lr=problem.lr,
            start=np.array(problem.start),
        )
        np.testing.assert_allclose(law.limit(seen), [golden.limit], rtol=1e-9)


@first_laws
def test_permutation(law: Law, request: pytest.FixtureRequest) -> None:
    with held(law, request, "permutation"):
        forwards, _ = watched(law.name)
        backwards = train(law, cohort=[c[::-1] for c in COHORTS])
        assert_close(backwards.parameters, forwards.parameters, rtol=1e-10, atol=1e-10)


@first_laws
def test_translation(law: Law, request: pytest.FixtureRequest) -> None:
    with held(law, request, "translation"):
        problem, options = TERRAIN, {"weighting": "samples"}
        offset = np.array([3.0, -2.0])
        moved = replace(
            problem,
            centre=tuple(tuple(b + offset) for b in problem.b),
            start=tuple(np.array(problem.start) + offset),
        )
        cohorts = [[0, 1, 2], [1, 3], [0, 2], [2, 3, 0]]
        here, _ = problem.run(law.algorithm, 4, cohort=cohorts, lr=law.lr, **options)
        there, _ = moved.run(law.algorithm, 4, cohort=cohorts, lr=law.lr, **options)
        np.testing.assert_allclose(there, here + offset, atol=1e-9)
