"""The numbers of version 0.1: what is reorganised must not change them.

`trajectories.json` was recorded with commit 7fa1e14, before the modules became packages: sums of the parameters after
five rounds, training losses and traffic, for every algorithm with its defaults on both engines, in double precision.
An algorithm whose defaults are changed on purpose is recorded anew with
`PYTHONPATH=tests/support python tests/algorithms/test_trajectories.py NAME`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from laws import TRAINING, classified, normed

FILE = Path(__file__).with_name("trajectories.json")
RECORDED: dict[str, dict[str, Any]] = json.loads(FILE.read_text())


def trajectory(name: str, engine: str) -> dict[str, Any]:
    options = TRAINING | {"engine": engine, "rounds": 5, "cohort": 3, "lr": 0.05}
    run = ud.simulate(name, normed(), classified(), **options)
    history = {column: run.history[column].tolist() for column in ("train_loss", "bytes_down", "bytes_up")}
    return {"parameters": {k: [float(v.sum()), float(v.square().sum())] for k, v in run.models[0].items()}} | history


@pytest.mark.parametrize("case", RECORDED)
def test_numbers_are_those_recorded(case: str) -> None:
    expected, found = RECORDED[case], trajectory(*case.split())
    assert found["bytes_down"] == expected["bytes_down"]
    assert found["bytes_up"] == expected["bytes_up"]
    assert found["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-9)
    assert found["parameters"].keys() == expected["parameters"].keys()
    for name, sums in expected["parameters"].items():
        assert found["parameters"][name] == pytest.approx(sums, rel=1e-8, abs=1e-10)


if __name__ == "__main__":
    for chosen in sys.argv[1:]:
        RECORDED |= {f"{chosen} {engine}": trajectory(chosen, engine) for engine in ("sequential", "batched")}
    FILE.write_text(json.dumps(RECORDED, separators=(",", ":")))
