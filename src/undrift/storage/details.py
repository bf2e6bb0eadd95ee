"""What evaluations found besides numbers, where it was asked for: a JSON line per evaluated round.

A line holds ``round`` and ``confusion`` [true class][answer] or ``client_accuracy`` [clients], and a checksum of them.
It is written before the row of its round, so that every row has its details.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from undrift.storage import files
from undrift.storage.files import CHECKSUM, DamageError

FILE = "details.jsonl"

Detail = dict[str, Any]


def append(home: Path, detail: Detail) -> None:
    plain = files.as_json(detail)
    line = json.dumps(plain | {CHECKSUM: files.digest(plain)}, separators=(",", ":")) + "\n"
    with files.writing(home / FILE), (home / FILE).open("ab") as log:
        log.write(line.encode())


def last(home: Path, until: int | None = None) -> Detail | None:
    """Those of the last evaluated round, or the last one until a round; None where none were asked for."""
    for line in reversed(_lines(home)):
        detail = _parsed(home, line)
        if until is None or detail["round"] <= until:
            return detail
    return None


def cut(home: Path, round: int) -> None:
    """Drop what comes after a round, as it will be computed again, and lines at the end that are damaged."""
    if not (home / FILE).exists():
        return
    lines = _lines(home)
    while lines and not _is_until(home, lines[-1], round):
        lines.pop()
    content = b"".join(lines)
    if (home / FILE).stat().st_size != len(content):
        files.replace(home / FILE, content)


def _lines(home: Path) -> list[bytes]:
    """Complete lines; one that a crash cut off, or that is being written, has no end."""
    content = files.read(home / FILE) if os.path.lexists(home / FILE) else b""
    return [line + b"\n" for line in content.split(b"\n")[:-1]]


def _parsed(home: Path, line: bytes) -> Detail:
    detail = files.parse(line, f"a line of {home / FILE}")
    if detail.pop(CHECKSUM, None) != files.digest(detail) or type(detail.get("round")) is not int:
        raise DamageError(f"{home / FILE} is damaged or was edited: a line does not match its checksum")
    return detail


def _is_until(home: Path, line: bytes, round: int) -> bool:
    try:
        return bool(_parsed(home, line)["round"] <= round)
    except DamageError:
        return False
