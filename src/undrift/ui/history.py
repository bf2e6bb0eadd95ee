"""The rows of a run as columns of numbers, read from where the last look ended."""

from __future__ import annotations

import io
import json
import math
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import json as arrow_json

Numbers = NDArray[np.float64]
_FILE = "rounds.jsonl"
_TAIL = 64 << 10  # bytes in which the last row is
_MOST = 64 << 20  # bytes that are read at once; longer files take several looks


class History:
    """What `rounds.jsonl` holds so far. `problem`: where it is damaged; `generation`: how often it began anew."""

    def __init__(self, home: Path) -> None:
        self._path = home / _FILE
        self._offset = 0  # behind the last complete line that was read
        self._last = b""  # that line: if it is not there any more, the file was replaced
        self._columns: dict[str, Numbers] = {}
        self._peeked: dict[str, Any] = {}  # the last row, as long as not all were read
        self.generation = 0
        self.problem = ""

    def __len__(self) -> int:
        return len(self.column("round"))

    def column(self, name: str) -> Numbers:
        """A value for every round, NaN where there is none."""
        found = self._columns.get(name)
        if found is not None:
            return found
        rows = self._columns.get("round")
        return np.full(0 if rows is None else len(rows), np.nan)

    def last(self, name: str) -> float | None:
        """The last value of a column that is a number, at first only if it is in the last row."""
        if self._peeked:
            value = self._peeked.get(name)
            return None if value is None or not math.isfinite(value) else float(value)
        values = self.column(name)
        finite = values[np.isfinite(values)]
        return float(finite[-1]) if len(finite) else None

    def peek(self) -> None:
        """Read the last row only, which takes no time; `follow` reads the others."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, self._path.stat().st_size - _TAIL))
                lines = file.read().rpartition(b"\n")[0].splitlines()
        except OSError:
            return
        self._peeked = (_row(lines[-1]) if lines else None) or {}

    def names(self) -> list[str]:
        return list(self._columns)

    def follow(self) -> bool:
        """Read what is new; whether there may be more, as only so much is read at once."""
        try:
            found = self._path.stat()
            if not stat.S_ISREG(found.st_mode):
                self._start_again(f"{_FILE} is no file")
                return False
            if found.st_size == self._offset:
                return False
            with self._path.open("rb") as file:
                if self._offset:
                    file.seek(self._offset - len(self._last))
                    if found.st_size < self._offset or file.read(len(self._last)) != self._last:
                        self._start_again()
                        file.seek(0)
                new = file.read(_MOST)
        except FileNotFoundError:
            self._start_again()
            return False
        except OSError as error:
            self.problem = f"{_FILE} cannot be read: {error.strerror or error}"
            return False
        if self.problem:
            return False  # what follows damage is not trusted
        self._peeked = {}
        end = new.rfind(b"\n") + 1  # a line that is being written has no end yet
        if not end and len(new) == _MOST:
            self.problem = f"{_FILE} is damaged: line {len(self) + 1} has no end"
        if end:
            self._keep(new[:end])
        return len(new) == _MOST

    def _start_again(self, problem: str = "") -> None:
        """The rows are gone: a run that is continued drops those after its last checkpoint."""
        if self._offset or self._columns:
            self.generation += 1
        self._offset, self._last, self._columns, self.problem = 0, b"", {}, problem

    def _keep(self, lines: bytes) -> None:
        try:
            table = _parsed(lines, self.names() or _names_in(lines))
        except (pa.ArrowInvalid, ValueError):
            table = self._good_rows(lines)
        start, rounds = len(self), table.get("round", np.empty(0))
        wrong = np.flatnonzero(rounds != np.arange(start + 1, start + len(rounds) + 1))
        if len(wrong):
            self.problem = f"{_FILE} is damaged: line {start + int(wrong[0]) + 1} is of another round"
            table = {name: values[: wrong[0]] for name, values in table.items()}
        if table:
            self._columns = {
                name: np.concatenate([self._columns[name], values]) if self._columns else values
                for name, values in table.items()
            }
        self._offset += len(lines)
        self._last = lines[lines.rfind(b"\n", 0, -1) + 1 :]

    def _good_rows(self, lines: bytes) -> dict[str, Numbers]:
        """The rows before the first one that is damaged, which is named."""
        rows: list[Mapping[str, Any]] = []
        names = self.names()
        for line in lines.splitlines():
            row = _row(line)
            names = names or list(row or ())
            if row is None or list(row) != names or "round" not in row:
                self.problem = f"{_FILE} is damaged: line {len(self) + len(rows) + 1} is not as it was written"
                break
            rows.append(row)
        return _columns_of(rows, names) if rows else {}


def _names_in(lines: bytes) -> list[str]:
    row = _row(lines[: lines.index(b"\n")])
    if row is None or "round" not in row:
        raise ValueError("the first line is damaged")
    return list(row)


def _parsed(lines: bytes, names: Sequence[str]) -> dict[str, Numbers]:
    """Columns of lines that all have these names; a parser in C reads a million rows in a second or two."""
    schema = pa.schema([(name, pa.bool_() if name == "diverged" else pa.float64()) for name in names])
    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    table = arrow_json.read_json(io.BytesIO(lines), parse_options=options)
    if table.num_rows != lines.count(b"\n"):
        raise ValueError("an empty line")
    return {name: table.column(name).cast(pa.float64()).to_numpy().copy() for name in names}


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and all(map(_is_figure, row.values())) else None


def _is_figure(value: Any) -> bool:
    return value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _columns_of(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Numbers]:
    return {name: np.array([row[name] for row in rows], dtype=np.float64) for name in names}
