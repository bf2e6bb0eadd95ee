"""One system on one work, in a process of its own."""

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
from undrift.bench.family import Family
from undrift.bench.peers.job import Job
from undrift.bench.systems import System

_WATCHED_EVERY = 1.0  # seconds between two looks at the memory, which are not free


class FailedError(Exception):
    """A driver did not answer; the message says why, in a line."""


def measure(system: System, python: Path, job: Job, warm_up: int, log: Path, limit: float) -> dict[str, Any]:
    """Play the job's rounds and return what was measured; nothing is left running, whatever happens."""
    file = Path(job.answer).with_suffix(".job")
    file.write_text(json.dumps(asdict(job)), encoding="utf-8")
    Path(job.answer).unlink(missing_ok=True)
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    environment.pop("GOMP_SPINCOUNT", None)  # set by the command line for itself; libraries are measured as they are
    begun = time.time()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            system.command(python, file),
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        peak = _wait(process, begun + limit)
    if process.returncode or not Path(job.answer).exists():
        late = time.time() - begun > limit
        why = f"still busy after {limit:.0f} s" if late else last_line(log)
        raise FailedError(f"{why}; log: {log}")
    said = json.loads(Path(job.answer).read_text(encoding="utf-8"))
    usual = statistics.median(said["seconds"][warm_up:])
    return {
        "seconds": said["seconds"][warm_up:],
        "startup": said["ended"][warm_up - 1] - begun - warm_up * usual,
        "peak_bytes": None if peak is None else max(peak, said["process_bytes"]),
        "device_bytes": said["device_bytes"],
        "accuracy": said["accuracy"],
        "versions": said["versions"],
        "note": said["note"],
    }


def _wait(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    """Until the end, or the deadline; the largest memory seen."""
    family = Family(process)
    try:
        while time.time() < deadline:
            try:
                process.wait(_WATCHED_EVERY)
                break
            except subprocess.TimeoutExpired:
                family.look()
    finally:
        family.end()
    return family.peak
