"""Peak memory of large models: four models for each worker, the states and replies of clients, and the server's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks/memory.py"
WORKERS, CLIENTS = 2, 10
linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")


@linux
@pytest.mark.long
def test_peak() -> None:
    states, replies, server = 1, 2, 16  # of SCAFFOLD, in models
    command = [sys.executable, str(BENCHMARK), "--json", "--parameters", "4e6", "--algorithm", "scaffold"]
    (found,) = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["models"] < 4 * WORKERS + (states + replies) * CLIENTS + server
