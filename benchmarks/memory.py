"""Peak memory of runs of a large model, in models (the bytes of its parameters) above what the process had before.

    python benchmarks/memory.py                                          # a table
    python benchmarks/memory.py --json                                   # the same as JSON
    python benchmarks/memory.py --algorithm scaffold --engine auto --parameters 50e6

Ten clients, all of them in every round, two threads, two rounds of two steps, an evaluation after each. Every run has
a process of its own, in which a small model is trained first, so that libraries are loaded. Its C library returns freed
memory at once: how much it would keep depends on which thread freed what, and when. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

CLIENTS, THREADS, LAYERS = 10, 2, 10
RETURNS_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**16), "MALLOC_ARENA_MAX": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--algorithm", action="append", help="repeatable")
    parser.add_argument("--engine", action="append", help="repeatable")
    parser.add_argument("--parameters", type=float, default=10e6, help="of the model")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    algorithms, engines = options.algorithm or ["fedavg", "scaffold"], options.engine or ["sequential"]
    if options.one:
        print(json.dumps(measure(algorithms[0], engines[0], options.parameters)))
        return
    rows = []
    for algorithm in algorithms:
        for engine in engines:
            given = ["--algorithm", algorithm, "--engine", engine, "--parameters", str(options.parameters)]
            command = [sys.executable, __file__, "--one", *given]
            rows.append(json.loads(subprocess.check_output(command, env=os.environ | RETURNS_FREED_MEMORY)))
            if not options.json:
                row = rows[-1]
                print(
                    f"{algorithm:<12} {engine:<12} peak {row['models']:.1f} models of {row['model_mb']:.0f} MB "
                    f"above {row['before_mb']:.0f} MB; {row['engine']}",
                    flush=True,
                )
    if options.json:
        print(json.dumps(rows, indent=2))


def measure(algorithm: str, engine: str, parameters: float) -> dict[str, Any]:
    import torch
    from torch import nn

    import undrift as ud

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    width = round((parameters / LAYERS) ** 0.5)
    data = [(torch.randn(16, width), torch.randint(10, (16,))) for _ in range(CLIENTS)]
    ud.simulate(algorithm, nn.Linear(width, 10), data, rounds=1, engine=engine, cohort=1.0, batch_size=8)
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    size = sum(p.nbytes for p in model.parameters())
    with contextlib.suppress(OSError):  # forget the peak so far, where that is allowed
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = memory("VmRSS")
    run = ud.simulate(algorithm, model, data, test=data[0], rounds=2, engine=engine, cohort=1.0, batch_size=8)
    return {
        "algorithm": algorithm,
        "engine": run.engine,
        "model_mb": size / 1e6,
        "before_mb": before / 1e6,
        "models": (memory("VmHWM") - before) / size,
    }


def memory(name: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return 1024 * int(found[1])


if __name__ == "__main__":
    main()
