"""Fetching a named data set once, from the hub or from files, into the cache.

A new kind of content needs a reader here, registered in `_READERS`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from undrift.data import cache, images, sources, text
from undrift.data.cache import Draft
from undrift.data.catalogue import Characters, Description, Images, Pairs, Words
from undrift.data.sources import Hub, Labelled, Parquet, Tables

Array = np.ndarray[Any, Any]
_TEST_SHARE = 0.2  # of a role's text
_TEST_SENTENCES = 10_000  # drawn once from all, as many as in the paper of FedHBM


def fetch(name: str, description: Description, source: Path | None) -> None:
    """From the hub, or from the directory `source`."""
    if source is None and description.hub is None:
        raise ValueError(
            f"{name} is not on the hub as a federation; import parquet files with the columns "
            f"{_needed(description)}: undrift data get {name} --from DIR"
        )
    if source is not None and not source.is_dir():
        raise ValueError(f"{str(source)!r} is not a directory")
    arrays = None if source is None else _raw(source, description)
    tables: Tables | None = None
    if arrays is None:
        tables = Hub(description) if source is None else _parquet(source, description)
    with cache.writing(name, {"source": tables.name if tables else str(source)}) as draft:
        for split, (x, y) in (arrays or {}).items():
            _checked_shape(x, description)
            draft.put(f"{split}_x", x)
            draft.put(f"{split}_y", _checked_labels(y, split, description))
        if tables is not None:
            _READERS[type(description.content)](tables, description, draft)


def _needed(description: Description) -> str:
    columns = [*([description.user] if description.user else []), *description.inputs]
    return ", ".join(columns + ([description.label] if description.label else []))


def _parquet(directory: Path, description: Description) -> Parquet:
    if not any(directory.rglob("*.parquet")):
        raw_files = {"idx": ", idx files (train-images-idx3-ubyte)", "cifar": ", CIFAR batches (data_batch_1)"}
        raise ValueError(
            f"{directory} has none of the supported files: parquet (train.parquet, "
            f"train-00000-of-00001.parquet){raw_files.get(description.raw or '', '')}"
        )
    return Parquet(directory, description)


def _raw(directory: Path, description: Description) -> dict[str, Labelled] | None:
    """Arrays from the raw files that torchvision downloads, if there are any."""
    found = {}
    for split, train in (("train", True), ("test", False)):
        if description.raw == "idx":
            found[split] = sources.idx(directory, train)
        elif description.raw == "cifar":
            found[split] = sources.cifar(directory, train, description.classes)
    if not any(part is not None for part in found.values()):
        return None
    missing = [split for split, part in found.items() if part is None]
    if missing:
        raise ValueError(f"{directory} has the files of one split only, those of {missing[0]!r} are missing")
    return {split: part for split, part in found.items() if part is not None}


# Tables


def _read_images(tables: Tables, description: Description, draft: Draft) -> None:
    content, column, label = description.content, description.inputs[0], description.label
    assert isinstance(content, Images)
    assert label is not None
    users: dict[str, int] = {}
    for part, split in _splits(description):
        count = tables.count(split)
        user = description.user if description.user in tables.columns(split) or part == "train" else None
        x = draft.array(f"{part}_x", (count, *content.shape), np.uint8)
        y, owner, done = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int32), 0
        for block in _blocks(tables, split, [column, label, *([user] if user else [])]):
            end = done + len(block)
            where = [f"row {row} of the split {split!r}" for row in range(done, end)]
            x[done:end] = images.decode_all(block.column(column).to_pylist(), where, content.shape, content.resized)
            y[done:end] = _whole_numbers(block.column(label), label)
            if user:
                names = block.column(user).to_pylist()
                owner[done:end] = [users.setdefault(str(name), len(users)) for name in names]
            done = end
        draft.put(f"{part}_y", _checked_labels(y, split, description))
        if user:
            draft.put(f"{part}_user", owner)


def _read_characters(tables: Tables, description: Description, draft: Draft) -> None:
    """Roles' texts; the last fifth of each is for testing, so that no test window overlaps a training one."""
    content, user, split = description.content, description.user, description.train
    assert isinstance(content, Characters)
    assert user is not None
    parts: dict[str, list[Array]] = {f"{p}_{k}": [] for p in ("train", "test") for k in ("x", "y", "user")}
    for number, codes in enumerate(_roles(tables, split, user)):
        cut = int(len(codes) * (1 - _TEST_SHARE))
        tested = round(content.most * _TEST_SHARE / (1 - _TEST_SHARE))
        for part, piece, most in (("train", codes[:cut], content.most), ("test", codes[cut:], tested)):
            x, y = text.windows(piece, content.length, most)
            parts[f"{part}_x"].append(x)
            parts[f"{part}_y"].append(y)
            parts[f"{part}_user"].append(np.full(len(y), number, dtype=np.int32))
    joined = {name: np.concatenate(values) for name, values in parts.items() if values}
    if not joined or not len(joined["train_y"]) or not len(joined["test_y"]):
        raise ValueError(f"{tables.name} has no text long enough for {content.length} characters and one more")
    for name, values in joined.items():
        draft.put(name, values)


def _roles(tables: Tables, split: str, user: str) -> Iterator[Array]:
    """The text of every role as numbers; LEAF's overlapping samples (`x`, next character `y`) are joined again."""
    columns = set(tables.columns(split))
    samples = "text" not in columns and {"x", "y"} <= columns
    texts: dict[str, list[str]] = {}
    last = ""
    for block in _blocks(tables, split, [user, "x", "y"] if samples else [user, "text"]):
        roles, *columns_of_text = (column.to_pylist() for column in block.columns)
        for role, *cells in zip(roles, *columns_of_text, strict=True):
            piece = "".join(cell or "" for cell in cells)
            pieces = texts.setdefault(role, [])
            pieces.append(piece[-1:] if samples and pieces and piece[:-1] == last[1:] else piece)
            last = piece
    return (text.characters("".join(pieces)) for pieces in texts.values())


def _read_words(tables: Tables, description: Description, draft: Draft) -> None:
    content, columns = description.content, [description.user or "", *description.inputs]
    assert isinstance(content, Words)
    size, users = content.vocabulary, dict[str, int]()
    train = _blocks(tables, description.train, columns)
    known = text.vocabulary((text.words(s) for block in train for s in block.column(1).to_pylist() if s), size)
    for part, split in _splits(description):
        count = tables.count(split)
        chosen = np.ones(count, dtype=bool)
        if part == "test":
            chosen[np.random.default_rng(0).permutation(count)[_TEST_SENTENCES:]] = False
        rows, owner, seen, done = list[Array](), list[Array](), Counter[int](), 0
        for block in _blocks(tables, split, columns):
            names, sentences = (column.to_pylist() for column in block.columns)
            numbers = np.array([users.setdefault(str(name), len(users)) for name in names], dtype=np.int32)
            for place, number in enumerate(numbers.tolist()):
                seen[number] += 1
                chosen[done + place] &= bool(sentences[place]) and (part == "test" or seen[number] <= content.most)
            kept = np.flatnonzero(chosen[done : done + len(block)])
            words = [text.words(sentences[i]) for i in kept]
            rows.append(text.encode(words, known, size=size, length=content.length + 1, marks=True))
            owner.append(numbers[kept])
            done += len(block)
        joined = np.concatenate(rows)  # [n, length + 1]
        if not len(joined):
            raise ValueError(f"the split {split!r} of {tables.name} has no sentences")
        targets = joined[:, 1:]
        draft.put(f"{part}_x", np.ascontiguousarray(joined[:, :-1]))
        draft.put(f"{part}_y", np.where(targets == text.PADDING, np.int16(text.IGNORED), targets))
        draft.put(f"{part}_user", np.concatenate(owner))


def _read_pairs(tables: Tables, description: Description, draft: Draft) -> None:
    content, label = description.content, description.label or ""
    assert isinstance(content, Pairs)
    size = content.vocabulary
    train = _blocks(tables, description.train, description.inputs)
    known = text.vocabulary(
        (text.tokenise(s) for block in train for column in block.columns for s in column.to_pylist()), size
    )
    for part, split in _splits(description):
        x, y = list[Array](), list[Array]()
        for block in _blocks(tables, split, [*description.inputs, label]):
            sides = [[text.tokenise(s) for s in block.column(c).to_pylist()] for c in description.inputs]
            x.append(
                np.stack([text.encode(s, known, size=size, length=content.length, marks=False) for s in sides], axis=1)
            )
            y.append(_whole_numbers(block.column(label), label))
        draft.put(f"{part}_x", np.concatenate(x))  # [n, 2, length]
        draft.put(f"{part}_y", _checked_labels(np.concatenate(y), split, description))


_READERS: dict[type, Callable[[Tables, Description, Draft], None]] = {
    Images: _read_images,
    Characters: _read_characters,
    Words: _read_words,
    Pairs: _read_pairs,
}


def _splits(description: Description) -> list[tuple[str, str]]:
    """Our name of each split, and the source's."""
    assert description.test is not None
    return [("train", description.train), ("test", description.test)]


def _blocks(tables: Tables, split: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Blocks of rows, with a progress bar on a terminal."""
    count = tables.count(split)
    if not count:
        raise ValueError(f"the split {split!r} of {tables.name} is empty")
    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    quiet = not sys.stderr.isatty()
    with Progress(*shown, console=Console(stderr=True), transient=True, disable=quiet) as progress:
        bar = progress.add_task(f"reading {split}", total=count)
        for block in tables.blocks(split, columns):
            yield block
            progress.advance(bar, len(block))


def _whole_numbers(column: pa.Array, name: str) -> Array:
    try:
        return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.int64, casting="same_kind")
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {name!r} must hold whole numbers, got {column.type}") from error


def _checked_labels(y: Array, split: str, description: Description) -> Array:
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= description.classes:
        raise ValueError(f"labels of the split {split!r} must lie in 0..{description.classes - 1}, got {low}..{high}")
    return y


def _checked_shape(x: Array, description: Description) -> None:
    content = description.content
    assert isinstance(content, Images)
    if x.shape[1:] != content.shape:
        raise ValueError(f"images must be of shape {content.shape}, got {x.shape[1:]}")
