"""Measurements: stored in a JSON file to which runs are added, and summarised in a row per system."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from undrift.bench.systems import System, cores
from undrift.bench.workloads import WORKLOADS, Workload

_FORMAT = 1


@dataclass(frozen=True)
class Measurement:
    """The timed rounds of a system on a workload, from one process."""

    work: str
    system: str
    label: str
    setup: str
    turn: str  # systems measured in the same turn are compared with each other
    seconds: list[float]  # of every round
    startup: float  # seconds from the start of the process to the first round, compiling included
    peak_bytes: int | None  # memory of the process and all it started
    device_bytes: int | None
    accuracy: float | None
    versions: dict[str, str]
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class NotMeasured:
    """A system that was requested and not measured."""

    work: str
    system: str
    label: str
    setup: str
    why: str


@dataclass(frozen=True)
class Row:
    """A system on a workload, over all turns; None for what is not known."""

    work: str
    system: str
    label: str
    setup: str
    seconds: float | None = None
    fastest: float | None = None  # median of the fastest turn
    slowest: float | None = None
    ratio: float | None = None  # how many times faster than the plain loop of the same turn
    startup: float | None = None
    peak_bytes: float | None = None
    device_bytes: float | None = None
    accuracy: float | None = None
    why: str = ""  # why it was not measured


def machine(device: str) -> dict[str, Any]:
    """Results of different machines are not compared."""
    return {
        "processor": _processor(),
        "cores": cores(),
        "system": platform.system(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor() or platform.machine()


@dataclass
class Results:
    machine: dict[str, Any]
    precision: str | None
    works: dict[str, dict[str, Any]] = field(default_factory=dict)  # rounds, warm_up and data of each
    measurements: list[Measurement] = field(default_factory=list)
    absent: list[NotMeasured] = field(default_factory=list)
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))

    @classmethod
    def read(cls, file: Path) -> Results:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
                raise ValueError("another format")
            content["measurements"] = [Measurement(**each) for each in content["measurements"]]
            content["absent"] = [NotMeasured(**each) for each in content["absent"]]
            return cls(**content)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} does not hold results of undrift bench; give --json another file") from error

    def write(self, file: Path) -> None:
        """Write to a temporary file and rename it, so that earlier results are never lost."""
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.part")
        draft.write_text(json.dumps({"format": _FORMAT} | asdict(self), indent=1) + "\n", encoding="utf-8")
        os.replace(draft, file)

    def check_compatible(self, other: Results, file: Path) -> None:
        """Refuse to mix results that cannot be compared."""
        for what in ("machine", "precision"):
            mine, theirs = getattr(self, what), getattr(other, what)
            if mine != theirs:
                raise ValueError(f"{file} holds results of another {what}: {mine}, not {theirs}")
        for name in self.works.keys() & other.works.keys():
            if self.works[name] != other.works[name]:
                raise ValueError(f"{file} holds {name} with {self.works[name]}, not {other.works[name]}")

    def skip(self, work: Workload, system: System, why: str) -> None:
        """Record why a system is not measured, in place of an earlier reason."""
        self.absent = [a for a in self.absent if (a.work, a.system) != (work.name, system.name)]
        self.absent.append(
            NotMeasured(work=work.name, system=system.name, label=system.label, setup=system.setup, why=why)
        )

    def rows(self) -> list[Row]:
        """A row for every system on every workload, in the order of the workloads and of first appearance."""
        rows = []
        for work in (w for name, w in WORKLOADS.items() if name in self.works):
            mine = [m for m in self.measurements if m.work == work.name]
            plain = {m.turn: m.median for m in mine if m.system == "plain"}
            names = dict.fromkeys(m.system for m in mine)
            rows += [_row(work, [m for m in mine if m.system == name], plain) for name in names]
            absent = [a for a in self.absent if a.work == work.name and a.system not in names]
            rows += [Row(a.work, a.system, a.label, a.setup, why=a.why) for a in absent]
        return rows


def _row(work: Workload, measured: list[Measurement], plain: dict[str, float]) -> Row:
    medians = [m.median for m in measured]
    ratios = [plain[m.turn] / m.median for m in measured if m.turn in plain]
    last = measured[-1]
    return Row(
        work.name,
        last.system,
        last.label,
        last.setup,
        seconds=statistics.median(medians),
        fastest=min(medians),
        slowest=max(medians),
        ratio=_median(ratios),
        startup=_median([m.startup for m in measured]),
        peak_bytes=_median([m.peak_bytes for m in measured]),
        device_bytes=_median([m.device_bytes for m in measured]),
        accuracy=_median([m.accuracy for m in measured]),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
