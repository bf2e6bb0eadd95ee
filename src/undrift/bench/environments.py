"""Virtual environments of other libraries, created once from PyPI and kept in the cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from undrift.bench.systems import DRIVERS, System
from undrift.data import cache


class MissingError(Exception):
    """A system cannot be run here; the message is one line with the reason."""


def python(system: System, notify: Callable[[str], None]) -> Path:
    """The interpreter of a system: this one, or that of the system's own environment."""
    if system.environment is not None:
        return _installed(system.environment, notify)
    if find_spec(system.module) is None:
        raise MissingError(f"{system.label} needs {system.module}, which is not installed here")
    return Path(sys.executable)


def _installed(name: str, notify: Callable[[str], None]) -> Path:
    """The interpreter of an environment with the pinned versions, created if there is none."""
    requirements = DRIVERS / f"{name}.txt"
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:8]
    home = cache.home() / "bench" / f"{name}-{digest}"
    interpreter = home / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    ready = home / "ready"
    if ready.exists():
        return interpreter
    notify(f"installing {name} (once)")
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    log = log_file(f"install-{name}")
    pip = [str(interpreter), "-m", "pip", "--disable-pip-version-check", "install"]
    with log.open("w", encoding="utf-8") as output:
        _call([sys.executable, "-m", "venv", str(home)], output, log, name)
        # PyTorch comes first and alone: together with other requirements, pip may choose another build of it.
        for line in requirements.read_text(encoding="utf-8").splitlines():
            if line.startswith("torch=="):
                _call([*pip, line], output, log, name)
        _call([*pip, "-r", str(requirements)], output, log, name)
    ready.touch()
    return interpreter


def log_file(name: str) -> Path:
    """The file for the output of a process."""
    logs = cache.home() / "bench" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return logs / f"{name}.log"


def last_line(log: Path) -> str:
    """The last line of a log, preferably one with an error: mostly the reason why the process ended."""
    text = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    lines = [line.strip() for line in text if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[-1][:200]


def _call(command: list[str], output: object, log: Path, name: str) -> None:
    if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode:  # type: ignore[call-overload]
        raise MissingError(f"{name} cannot be installed: {last_line(log)}; log: {log}")
