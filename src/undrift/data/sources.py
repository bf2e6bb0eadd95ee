"""Where data come from: parquet files in the hub's layout, the hub itself, and raw files as torchvision downloads them.

The first two are tables, read column by column in blocks; raw files are read as arrays.
"""

from __future__ import annotations

import gzip
import pickle
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from undrift.data.catalogue import Description

Array = np.ndarray[Any, Any]
_BLOCK = 1024  # rows read together


class Labelled(NamedTuple):
    x: Array  # [n, channels, height, width], bytes
    y: Array  # [n]


class Tables(Protocol):
    """Splits of a data set as tables."""

    name: str  # for messages, and for the manifest

    def columns(self, split: str) -> list[str]: ...

    def count(self, split: str) -> int: ...

    def blocks(self, split: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]: ...


class Parquet:
    """A directory of parquet files: ``train.parquet``, ``train-00000-of-00002.parquet``, ``data/train-*.parquet``."""

    def __init__(self, directory: Path, description: Description) -> None:
        self.name = str(directory)
        files = sorted(directory.rglob("*.parquet"))
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
        return sum(self._open(file).metadata.num_rows for file in self.files[split])

    def blocks(self, split: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for file in self.files[split]:
            opened = self._open(file)
            missing = [c for c in columns if c not in opened.schema_arrow.names]
            if missing:
                raise ValueError(_missing_columns(str(file), missing, columns, opened.schema_arrow.names))
            try:
                yield from opened.iter_batches(_BLOCK, columns=list(columns))
            except (pa.ArrowException, OSError) as error:
                raise ValueError(f"{file} is damaged: {_first_line(error)}") from error

    @staticmethod
    def _open(file: Path) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(file)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{file} is not a complete parquet file: {_first_line(error)}") from error


class Hub:
    """A data set of the Hugging Face hub, read with the `datasets` library."""

    def __init__(self, description: Description) -> None:
        try:
            import datasets
        except ImportError:
            raise ValueError("fetching from the hub needs an extra: pip install 'undrift[hub]'") from None
        assert description.hub is not None
        self.name = f"https://huggingface.co/datasets/{description.hub}"
        self._tables: dict[str, Any] = {}
        for split in (description.train, description.test):
            if split is not None:
                try:
                    table = datasets.load_dataset(description.hub, description.config, split=split)
                except (OSError, ValueError) as error:
                    raise ValueError(f"cannot fetch {self.name}: {_first_line(error)}") from error
                for column, feature in table.features.items():
                    if isinstance(feature, datasets.Image):  # the encoded bytes, to be decoded here
                        table = table.cast_column(column, datasets.Image(decode=False))
                self._tables[split] = table.with_format("arrow")

    def columns(self, split: str) -> list[str]:
        return list(self._tables[split].column_names)

    def count(self, split: str) -> int:
        return len(self._tables[split])

    def blocks(self, split: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        missing = [c for c in columns if c not in self.columns(split)]
        if missing:
            raise ValueError(_missing_columns(self.name, missing, columns, self.columns(split)))
        for block in self._tables[split].select_columns(list(columns)).iter(_BLOCK):
            yield from block.to_batches()


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
        return ", ".join(map(repr, names))

    return f"{where} has no column {listed(missing)}; needed: {listed(needed)}; there are: {listed(present)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# Raw files, as torchvision downloads them


def idx(directory: Path, train: bool) -> Labelled | None:
    """Images and labels in MNIST's own format, compressed or not; None if they are not there."""
    part = "train" if train else "t10k"
    images, labels = _find(directory, f"{part}-images-idx3-ubyte"), _find(directory, f"{part}-labels-idx1-ubyte")
    if images is None or labels is None:
        return None
    return Labelled(_read_idx(images, 3)[:, None], _read_idx(labels, 1).astype(np.int64))


def _find(directory: Path, stem: str) -> Path | None:
    found = sorted(f for f in directory.rglob(f"{stem}*") if f.name in (stem, f"{stem}.gz"))
    return found[0] if found else None


def _read_idx(file: Path, axes: int) -> Array:
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        magic, *shape = struct.unpack_from(f">{1 + axes}I", content)
        if magic != 0x0800 + axes:
            raise ValueError(f"it begins with {magic:#x}, not {0x0800 + axes:#x}")
        return np.frombuffer(content, dtype=np.uint8, offset=4 * (1 + axes)).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise ValueError(f"{file} is not a complete idx file: {_first_line(error)}") from error


def cifar(directory: Path, train: bool, classes: int) -> Labelled | None:
    """CIFAR's batches, as pickles (the Python version) or as bytes (the binary one); None if they are not there."""
    if classes == 10:
        stems = [f"data_batch_{i}" for i in range(1, 6)] if train else ["test_batch"]
    else:
        stems = ["train" if train else "test"]
    labels = 1 if classes == 10 else 2  # bytes before an image; the last of them is the (fine) label
    for ending in ("", ".bin"):
        found = [sorted(f for f in directory.rglob(stem + ending) if f.is_file()) for stem in stems]
        if any(found):
            if not all(found):
                raise ValueError(f"{directory} has no {stems[[bool(f) for f in found].index(False)]}{ending}")
            parts = [_read_batch(f[0], labels) for f in found]
            x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
            return Labelled(x.reshape(-1, 3, 32, 32), y)
    return None


def _read_batch(file: Path, labels: int) -> tuple[Array, Array]:
    try:
        if file.suffix == ".bin":
            rows = np.frombuffer(file.read_bytes(), dtype=np.uint8).reshape(-1, labels + 3072)
            return rows[:, labels:], rows[:, labels - 1].astype(np.int64)
        with file.open("rb") as stream:
            batch = _ArrayUnpickler(stream, encoding="bytes").load()
        x = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3072)
        return x, np.asarray(batch[b"labels" if labels == 1 else b"fine_labels"], dtype=np.int64)
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, pickle.UnpicklingError) as error:
        raise ValueError(f"{file} is not a complete CIFAR batch: {_first_line(error)}") from error


class _ArrayUnpickler(pickle.Unpickler):
    """Reads pickles of arrays and refuses all others, which may run any code."""

    _ALLOWED = (
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)
