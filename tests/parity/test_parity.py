"""undrift computes what other people's code computes: a case of `index.json` is one run of theirs, and one of ours.

`index.json` says whose code in which version, on which clients, with which settings of `ud.simulate` that correspond;
`trajectories.npz` has the model after every round, `problem.npz` the start and the clients. docs/agreement.md is made
from the same index.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud

HERE = Path(__file__).parent
INDEX = json.loads((HERE / "index.json").read_text("utf-8"))
CASES: dict[str, dict[str, Any]] = INDEX["cases"]
Array = np.ndarray[Any, np.dtype[np.float64]]

with np.load(HERE / "trajectories.npz") as _theirs, np.load(HERE / "problem.npz") as _problem:
    THEIRS: dict[str, Array] = dict(_theirs)  # [rounds, parameters]
    PROBLEM: dict[str, Tensor] = {name: torch.from_numpy(values) for name, values in _problem.items()}
START = {name.removeprefix("start/"): value for name, value in PROBLEM.items() if name.startswith("start/")}
CLIENTS = {
    kind: ud.FederatedData.from_clients([(PROBLEM[f"{kind}/{i}/x"], PROBLEM[f"{kind}/{i}/y"]) for i in range(6)])
    for kind in ("unequal", "equal", "repeated", "single")
}
NETWORK = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
NETWORK.load_state_dict(START)
# The sequential engine goes part of the way: in two rounds everybody, or some, have taken part twice.
ROUNDS = {"batched": 5, "sequential": 2}


def joined(model: dict[str, Tensor]) -> Array:
    return np.concatenate([model[name].numpy().ravel() for name in START])


@cache
def ours(corresponding: str, engine: str) -> Array:
    """The model after every round [rounds, parameters]; several cases may correspond to the same run."""
    clients, cohorts, algorithm, options, settings = json.loads(corresponding)
    path: list[Array] = []
    ud.simulate(
        ud.algorithms.find(algorithm)(**options),
        NETWORK,
        CLIENTS[clients],
        cohort=INDEX["cohorts"][cohorts][: ROUNDS[engine]],
        rounds=ROUNDS[engine],
        engine=engine,
        callbacks=[lambda row, run: path.append(joined(run.models[0]))],
        **settings,
    )
    return np.array(path)


@pytest.mark.usefixtures("networks_are_tried_once")
@pytest.mark.parametrize("engine", ROUNDS)
@pytest.mark.parametrize("name", CASES)
def test_models_are_theirs(name: str, engine: str) -> None:
    case = CASES[name]
    corresponding = [case[key] for key in ("clients", "cohorts", "algorithm", "options", "settings")]
    found = ours(json.dumps(corresponding, sort_keys=True), engine)
    theirs = THEIRS[name][: len(found)]
    moved = np.abs(theirs - joined(START)).max()
    assert moved > 0.01
    assert np.abs(found - theirs).max(axis=1) / moved == pytest.approx(0, abs=1e-6 if case.get("single") else 1e-12)


def test_the_index_is_whole() -> None:
    assert THEIRS.keys() == CASES.keys()
    assert {name.split(".")[0] for name in CASES} == INDEX["sources"].keys()
    assert {entry["source"] for entry in INDEX["differences"]} <= INDEX["sources"].keys()
    named = {entry["algorithm"] for entry in [*CASES.values(), *INDEX["differences"]]}
    assert named <= ud.algorithms.available().keys()
