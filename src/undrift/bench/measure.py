"""One system on one workload, in its own process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from undrift.bench.environments import last_line
from undrift.bench.peers.job import Job
from undrift.bench.process_tree import ProcessTree
from undrift.bench.systems import System

_INTERVAL = 1.0  # seconds between two samples of the memory, which take time themselves


class FailedError(Exception):
    """A driver gave no result; the message is one line with the reason."""


def measure(system: System, job: Job, *, python: Path, warm_up: int, log: Path, limit: float) -> dict[str, Any]:
    """Run the job and return the fields of a `Measurement`; no process is left running, whatever happens."""
    file = Path(job.answer).with_suffix(".job")
    file.write_text(json.dumps(asdict(job)), encoding="utf-8")
    Path(job.answer).unlink(missing_ok=True)
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    environment.pop("GOMP_SPINCOUNT", None)  # set by our command line; drivers run without it
    begun = time.time()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            system.command(python, file),
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is handled here
        )
        peak = _wait(process, begun + limit)
    if process.returncode or not Path(job.answer).exists():
        timed_out = time.time() - begun > limit
        reason = f"timed out after {limit:.0f} s" if timed_out else last_line(log)
        raise FailedError(f"{reason}; log: {log}")
    answer = json.loads(Path(job.answer).read_text(encoding="utf-8"))
    seconds = answer["seconds"][warm_up:]
    return {
        "seconds": seconds,
        "startup": answer["ended"][warm_up - 1] - begun - warm_up * statistics.median(seconds),
        "peak_bytes": None if peak is None else max(peak, answer["process_bytes"]),
        "device_bytes": answer["device_bytes"],
        "accuracy": answer["accuracy"],
        "versions": answer["versions"],
        "note": answer["note"],
    }


def _wait(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    """Wait for the end or the deadline; returns the peak memory."""
    tree = ProcessTree(process)
    try:
        while time.time() < deadline:
            try:
                process.wait(_INTERVAL)
                break
            except subprocess.TimeoutExpired:
                tree.sample_memory()
    finally:
        tree.kill()
    return tree.peak
