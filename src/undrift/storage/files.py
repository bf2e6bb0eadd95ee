"""Files that replace each other as a whole, and JSON files that carry a checksum of their content.

Damage is always told in one line that names the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from undrift.core.files import StorageError

FORMAT = 3  # of all files of a run; format 2 had checksums of states only
CHECKSUM = "checksum"


class DamageError(ValueError):
    """A file is not as it was written. An older checkpoint may be good."""


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object that `read_json` recognises as complete and unchanged."""
    sealed = {"format": FORMAT} | as_json(content)
    replace(path, (json.dumps(sealed | {CHECKSUM: digest(sealed)}, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """The content of a file that `write_json` wrote, or undrift before there were checksums, with its format."""
    content = parse(read(path), path)
    checksum = content.pop(CHECKSUM, None)
    version = content.setdefault("format", FORMAT - 1)
    if type(version) is not int or version < 1:
        raise DamageError(f"{path} is damaged: its format is {version!r}")
    if version > FORMAT:
        raise ValueError(f"{path} was written by another version of undrift (format {version})")
    if checksum != (digest(content) if version == FORMAT else None):
        raise DamageError(f"{path} is damaged or was edited: its content does not match its checksum")
    return content


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamageError(f"{path} cannot be read: {error.strerror or error}") from None


def parse(text: bytes, name: object) -> dict[str, Any]:
    """A JSON object; `name` says where it is from."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise DamageError(f"{name} is damaged: not valid JSON") from None
    if not isinstance(content, dict):
        raise DamageError(f"{name} is damaged: not a JSON object")
    return content


def digest(content: dict[str, Any]) -> str:
    """Of plain values, whatever the order of their names."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def replace(path: Path, content: bytes) -> None:
    """Write under another name and rename, so that a file is there as a whole or not at all."""
    draft = path.with_name(f".{path.name}.new")
    with writing(path):
        try:
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)  # half a file would take the room that is missing
            raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of the system say which file they are about; those of a full disk do not by themselves."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error


def as_json(value: Any) -> Any:
    """Values that JSON has, as they are when they are read back; NaN becomes null."""
    if isinstance(value, dict):
        return {str(k): as_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
