"""The order of the runs of a comparison, kept beside them: ``out/comparison.json``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from undrift.core.log import warning
from undrift.storage import files

_FILE = "comparison.json"


def write_order(home: Path, labels: Sequence[str]) -> None:
    """Labels in the order of the newest comparison, the baseline first; others that were in the folder follow."""
    before = read_order(home)
    after = [*labels, *(label for label in before if label not in labels)]
    if after != before:
        home.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another process that compares into this folder has just written it
            files.write_json(home / _FILE, {"labels": after})


def read_order(home: Path) -> list[str]:
    """The labels of a comparison in their order; empty for a folder without one, or from before it was kept."""
    path = home / _FILE
    if not path.exists():
        return []
    try:
        labels = files.read_json(path).get("labels")
    except ValueError as problem:
        warning(f"{problem}; the runs are in the order of their folders")
        return []
    return [label for label in labels if isinstance(label, str)] if isinstance(labels, list) else []
