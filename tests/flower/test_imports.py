"""What a client's process imports: Flower starts one for every message, so that each module is paid for every time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, random, sys
import torch
from flwr.clientapp import ClientApp
theirs, state = set(sys.modules), random.getstate()

from undrift.flower import client_app
from undrift.simulation.prepare import find_algorithm

find_algorithm("scaffold")
assert random.getstate() == state
print(json.dumps(sorted(set(sys.modules) - theirs)))
"""
NEEDED = {"undrift", "filelock", "safetensors"}  # besides PyTorch, Flower and what they import
NOT_FOR_CLIENTS = (
    *(
        "bench",
        "cli",
        "explain",
        "flower.server",
        "overview",
        "profile",
        "recommendation",
        "reproduce",
        "trackers",
        "tuning",
        "ui",
    ),
    *("reporting.report", "reporting.charts", "reporting.table", "simulation.run", "simulation.loop"),
    *("simulation.compare", "simulation.simulate", "simulation.on_ray", "engines.compiled", "data.picture"),
)


def test_a_client_imports_what_it_needs_and_the_algorithm_it_trains() -> None:
    pytest.importorskip("flwr", reason="Flower is an extra")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = json.loads(done.stdout)
    others = {name.partition(".")[0] for name in imported} - NEEDED
    assert not others - sys.stdlib_module_names, sorted(others)
    ours = {name.removeprefix("undrift.") for name in imported if name.startswith("undrift.")}
    assert not ours & {*NOT_FOR_CLIENTS}
    algorithms = {name for name in ours if name.startswith("algorithms.")}
    assert algorithms == {"algorithms.scaffold", "algorithms.centralised", "algorithms.text"}
