"""Tables: parquet files in the layout of the Hugging Face hub, read in blocks of rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from undrift.data.catalogue import Description
from undrift.data.foreign import first_line, printable

_BLOCK = 1024  # rows read together
_ROWS_PER_BYTE = 100  # of a parquet file, at most; what promises more is damaged


class Block(NamedTuple):
    """Some rows of a table, with the columns asked for in their order."""

    rows: pa.RecordBatch
    file: str  # for messages


class Tables:
    """The splits of a data set, from a directory of parquet files.

    They are called ``train.parquet``, ``train-00000-of-00002.parquet`` or ``data/train-*.parquet``.
    """

    def __init__(self, directory: Path, description: Description) -> None:
        self.name = str(directory)
        files = parquet_files(directory)
        if description.config is not None:  # a hub data set with several configurations has a folder for each
            files = [f for f in files if description.config in f.relative_to(directory).parts] or files
        splits = [description.train] + ([description.test] if description.test else [])
        if description.test is None and not any(_belongs(f, description.train) for f in files):
            self.files = {description.train: files}
        else:
            self.files = {split: [f for f in files if _belongs(f, split)] for split in splits}
        for split, found in self.files.items():
            if not found:
                names = ", ".join(f.name for f in files[:5])
                raise ValueError(
                    f"{directory} has no parquet file of the split {split!r} (such as {split}.parquet or "
                    f"{split}-00000-of-00001.parquet); it has {names}"
                )
            _refuse_gaps(split, found)

    def columns(self, split: str) -> list[str]:
        return list(self._open(self.files[split][0]).schema_arrow.names)

    def count(self, split: str) -> int:
        return sum(_rows(file, self._open(file)) for file in self.files[split])

    def blocks(self, split: str, columns: Sequence[str]) -> Iterator[Block]:
        for file in self.files[split]:
            opened = self._open(file)
            names = opened.schema_arrow.names
            missing = [c for c in columns if c not in names]
            if missing:
                raise ValueError(_missing_columns(str(file), missing, columns, names))
            if doubled := [c for c in columns if names.count(c) > 1]:
                raise ValueError(f"{file} has more than one column {doubled[0]!r}")
            try:
                for rows in opened.iter_batches(_BLOCK, columns=list(columns)):
                    rows.validate(full=True)
                    yield Block(rows.select(list(columns)), str(file))
            except (pa.ArrowException, OSError, KeyError) as error:
                raise ValueError(f"{file} is damaged: {first_line(error)}") from error

    @staticmethod
    def _open(file: Path) -> pq.ParquetFile:
        try:
            opened = pq.ParquetFile(file)
            opened.schema_arrow  # noqa: B018  # may be damaged by itself
            return opened
        except Exception as error:  # pyarrow has many names for a damaged footer
            raise ValueError(f"{file} is not a complete parquet file: {first_line(error)}") from error


def parquet_files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.rglob("*.parquet") if file.is_file())


def _rows(file: Path, opened: pq.ParquetFile) -> int:
    rows, size = opened.metadata.num_rows, file.stat().st_size
    if not 0 <= rows <= _ROWS_PER_BYTE * size:
        raise ValueError(f"{file} is damaged: it has {size} bytes and is said to have {rows} rows")
    return int(rows)


def _belongs(file: Path, split: str) -> bool:
    return file.stem == split or file.stem.startswith(f"{split}-")


def _refuse_gaps(split: str, files: list[Path]) -> None:
    """Refuse ``train-00000-of-00003`` without the other two."""
    numbers = [m for f in files if (m := re.search(r"-(\d+)-of-(\d+)", f.stem))]
    if numbers:
        wanted, present = int(numbers[0][2]), {int(m[1]) for m in numbers}
        if missing := sorted(set(range(wanted)) - present):
            raise ValueError(
                f"the split {split!r} has {wanted} files, of which {len(missing)} are missing, the first of them "
                f"{split}-{missing[0]:05d}-of-{wanted:05d}.parquet"
            )


def _missing_columns(where: str, missing: Sequence[str], needed: Sequence[str], present: Sequence[str]) -> str:
    def listed(names: Sequence[str]) -> str:
        return printable(", ".join(map(repr, names)))

    return f"{where} has no column {listed(missing)}; needed: {listed(needed)}; there are: {listed(present)}"
