"""The folders of the runs of a comparison, and their order, kept beside them: ``out/comparison.json``."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
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


_LONGEST = 100  # characters of a folder's name
_DEVICES = re.compile(r"^(con|prn|aux|nul|com[0-9]|lpt[0-9])(?=\.|$)")  # names that Windows gives to no folder


def folders_of(names: Sequence[str]) -> dict[str, str]:
    """A folder for every run: its name in plain characters, with a checksum where these are too many or not enough."""
    short = {name: _DEVICES.sub(r"run-\g<0>", _plain_characters(name) or "run") for name in names}
    count = Counter(short.values())
    return {
        name: folder if count[folder] == 1 and len(folder) <= _LONGEST else f"{folder[:_LONGEST]}-{_checksum(name)}"
        for name, folder in short.items()
    }


def unique_folder(name: str) -> str:
    """A folder for a run whose company is not known: always with a checksum."""
    return f"{_plain_characters(name)[:_LONGEST]}-{_checksum(name)}"


def _plain_characters(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


def _checksum(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
