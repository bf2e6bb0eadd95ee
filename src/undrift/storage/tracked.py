"""Under which names trackers have a run, so that a run that is resumed continues there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from undrift.storage import files

FILE = "trackers.json"


def read(directory: Path) -> dict[str, dict[str, str]]:
    """What every tracker that has seen the run knows it by."""
    path = directory / FILE
    if not path.exists():
        return {}
    content: Any = files.read_json(path).get("trackers")
    if not isinstance(content, dict) or not all(_is_identity(each) for each in content.values()):
        raise files.DamageError(f"{path} is damaged: it does not say which runs it is about")
    return content


def write(directory: Path, identities: Mapping[str, Mapping[str, str]]) -> None:
    files.write_json(directory / FILE, {"trackers": {name: dict(each) for name, each in identities.items()}})


def _is_identity(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
