"""The folders of a tuning, and what is kept of it beside them: ``out/tuning.json``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FILE = "tuning.json"
TRIALS, COMPARISON = "tuning", "comparison"  # folders of runs in `out`


class Part(NamedTuple):
    """Of a tuning in `home`: its trials, or the comparison of what it chose."""

    home: Path
    trials: bool


def part_of_tuning(folder: Path) -> Part | None:
    """What a folder of runs is of a tuning; None if it is of none."""
    folder = folder.absolute()
    known = folder.name in (TRIALS, COMPARISON) and (folder.parent / FILE).exists()
    return Part(folder.parent, folder.name == TRIALS) if known else None
