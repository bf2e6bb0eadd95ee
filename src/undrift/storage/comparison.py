"""The folders of the runs of a comparison; their order and what they are measured by: ``out/comparison.json``."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from undrift.core.log import warning
from undrift.storage import files

FILE = "comparison.json"


class Kept(NamedTuple):
    """What a folder keeps of its newest comparison, besides the runs."""

    labels: Sequence[str] = ()  # in their order, the baseline first
    targets: Any = None  # of `compare`, as they were given
    last_k: int | None = None


def write(home: Path, labels: Sequence[str], targets: Any = None, last_k: int | None = None) -> None:
    """Labels that were in the folder and are not in this comparison come after the others."""
    before = read(home)
    after = Kept([*labels, *(each for each in before.labels if each not in labels)], files.as_json(targets), last_k)
    if after != before:
        home.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another process that compares into this folder has just written it
            files.write_json(home / FILE, after._asdict())


def read(home: Path) -> Kept:
    """Nothing for a folder without a comparison, or from before it was kept."""
    path = home / FILE
    if not path.exists():
        return Kept()
    try:
        content = files.read_json(path)
    except ValueError as problem:
        warning(f"{problem}; the runs are in the order of their folders")
        return Kept()
    labels, targets, last_k = (content.get(name) for name in Kept._fields)
    return Kept(
        [label for label in labels if isinstance(label, str)] if isinstance(labels, list) else (),
        targets if isinstance(targets, list | str | float | int) else None,
        last_k if isinstance(last_k, int) else None,
    )


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
    return re.sub(r"[^a-z0-9.]+", "-", name.lower().replace("\N{MINUS SIGN}", "minus-")).strip("-.")


def _checksum(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
