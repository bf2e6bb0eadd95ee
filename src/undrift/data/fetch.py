"""Fetching a named data set once, from the hub or from files, into the cache.

A new kind of content needs a reader here, registered in `_READERS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from undrift.data import cache, hub, images, progress, raw, text
from undrift.data.cache import Draft
from undrift.data.catalogue import Characters, Description, Images, Pairs, Words
from undrift.data.foreign import printable
from undrift.data.raw import Labelled
from undrift.data.sources import Block, Tables, parquet_files

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
    if source is None:
        with hub.downloaded(name, description) as directory:
            _import(name, description, directory, hub.address(description))
    else:
        _import(name, description, source, str(source))


def _import(name: str, description: Description, directory: Path, source: str) -> None:
    """Read the files of a directory into the cache; `source` is where they came from."""
    arrays = _raw(directory, description)
    tables = _parquet(directory, description) if arrays is None else None
    with cache.writing(name, {"source": source}) as draft:
        for split, (x, y) in (arrays or {}).items():
            _check_shape(x, source, description)
            _check_labels(y, f"{source}: labels of the split {split!r}", description)
            draft.put(f"{split}_x", x)
            draft.put(f"{split}_y", y)
        if tables is not None:
            _READERS[type(description.content)](tables, description, draft)


def _needed(description: Description) -> str:
    columns = [*([description.user] if description.user else []), *description.inputs]
    return ", ".join(columns + ([description.label] if description.label else []))


def _parquet(directory: Path, description: Description) -> Tables:
    if not parquet_files(directory):
        raw_files = {"idx": ", idx files (train-images-idx3-ubyte)", "cifar": ", CIFAR batches (data_batch_1)"}
        raise ValueError(
            f"{directory} has none of the supported files: parquet (train.parquet, "
            f"train-00000-of-00001.parquet){raw_files.get(description.raw or '', '')}"
        )
    return Tables(directory, description)


def _raw(directory: Path, description: Description) -> dict[str, Labelled] | None:
    """Arrays from the raw files that torchvision downloads, if there are any."""
    found = {}
    for split, train in (("train", True), ("test", False)):
        if description.raw == "idx":
            found[split] = raw.idx(directory, train)
        elif description.raw == "cifar":
            found[split] = raw.cifar(directory, train, description.classes)
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
            end = done + len(block.rows)
            where = [f"{block.file}: row {row} of the split {split!r}" for row in range(done, end)]
            x[done:end] = images.decode_all(_cells(block, column, _IMAGE), where, content.shape, content.resized)
            y[done:end] = _labels(block, label, split, description)
            if user:
                owner[done:end] = [users.setdefault(name, len(users)) for name in _names(block, user)]
            done = end
        draft.put(f"{part}_y", y)
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
        columns_of_text = (_cells(block, column, _TEXT) for column in (("x", "y") if samples else ("text",)))
        for role, *cells in zip(_names(block, user), *columns_of_text, strict=True):
            piece = "".join(cell or "" for cell in cells)
            pieces = texts.setdefault(role, [])
            pieces.append(piece[-1:] if samples and pieces and piece[:-1] == last[1:] else piece)
            last = piece
    return (text.characters("".join(pieces)) for pieces in texts.values())


def _read_words(tables: Tables, description: Description, draft: Draft) -> None:
    content, user, column = description.content, description.user or "", description.inputs[0]
    assert isinstance(content, Words)
    size, users = content.vocabulary, dict[str, int]()
    train = _blocks(tables, description.train, [user, column])
    known = text.vocabulary((words for block in train for words in _sentences(block, column) if words), size)
    for part, split in _splits(description):
        count = tables.count(split)
        chosen = np.ones(count, dtype=bool)
        if part == "test":
            chosen[np.random.default_rng(0).permutation(count)[_TEST_SENTENCES:]] = False
        rows, owner, seen, done = list[Array](), list[Array](), Counter[int](), 0
        for block in _blocks(tables, split, [user, column]):
            sentences = _sentences(block, column)
            numbers = np.array([users.setdefault(name, len(users)) for name in _names(block, user)], dtype=np.int32)
            for place, number in enumerate(numbers.tolist()):
                seen[number] += 1
                wanted = part == "test" or seen[number] <= content.most
                chosen[done + place] &= wanted and sentences[place] is not None
            kept = np.flatnonzero(chosen[done : done + len(numbers)])
            words = [sentences[i] or [] for i in kept]
            rows.append(text.encode(words, known, size=size, length=content.length + 1, marks=True))
            owner.append(numbers[kept])
            done += len(numbers)
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
        (text.tokenise(s) for block in train for c in description.inputs for s in _cells(block, c, _TEXT)), size
    )
    for part, split in _splits(description):
        x, y = list[Array](), list[Array]()
        for block in _blocks(tables, split, [*description.inputs, label]):
            sides = [[text.tokenise(s) for s in _cells(block, c, _TEXT)] for c in description.inputs]
            x.append(
                np.stack([text.encode(s, known, size=size, length=content.length, marks=False) for s in sides], axis=1)
            )
            y.append(_labels(block, label, split, description))
        draft.put(f"{part}_x", np.concatenate(x))  # [n, 2, length]
        draft.put(f"{part}_y", np.concatenate(y))


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


def _blocks(tables: Tables, split: str, columns: Sequence[str]) -> Iterator[Block]:
    """Blocks of rows, as many as the source says it has, and how far that is."""
    count, done = tables.count(split), 0
    if not count:
        raise ValueError(f"the split {split!r} of {tables.name} is empty")
    with progress.reading(split, count) as advance:
        for block in tables.blocks(split, columns):
            done += len(block.rows)
            if done > count:
                break
            yield block
            advance(len(block.rows))
    if done != count:
        raise ValueError(f"the split {split!r} of {tables.name} is damaged: it has another number of rows than it says")


# Columns


class _Kind(NamedTuple):
    """What a column holds, and a test of its type."""

    words: str
    fits: Callable[[pa.DataType], bool]


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_image(kind: pa.DataType) -> bool:
    in_struct = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    return bool(in_struct and _is_bytes(kind.field("bytes").type)) or _is_bytes(kind) or bool(pa.types.is_null(kind))


def _is_words(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return _is_text(kind.value_type if is_list else kind)


_IMAGE = _Kind("encoded images", _is_image)
_TEXT = _Kind("text", lambda kind: _is_text(kind) or bool(pa.types.is_null(kind)))
_WORDS = _Kind("words", _is_words)
_NAME = _Kind("names", lambda kind: _is_text(kind) or bool(pa.types.is_integer(kind)))
_NUMBER = _Kind("whole numbers", lambda kind: bool(pa.types.is_integer(kind)))


def _cells(block: Block, column: str, kind: _Kind) -> list[Any]:
    """The values of a column, if it holds such; a cell may be None."""
    values = block.rows.column(column)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not kind.fits(values.type):
        raise ValueError(f"{block.file}: column {column!r} must hold {kind.words}, got {printable(str(values.type))}")
    found: list[Any] = values.to_pylist()
    return found


def _without_gaps(block: Block, column: str, kind: _Kind) -> list[Any]:
    cells = _cells(block, column, kind)
    if None in cells:
        raise ValueError(f"{block.file}: column {column!r} must hold {kind.words}, a cell is empty")
    return cells


def _names(block: Block, column: str) -> list[str]:
    return [str(cell) for cell in _without_gaps(block, column, _NAME)]


def _sentences(block: Block, column: str) -> list[list[str] | None]:
    """Tokenised text: words separated by spaces, or lists of them; None where a cell is empty."""
    sentences = [text.words(cell) if cell else None for cell in _cells(block, column, _WORDS)]
    if any(None in words for words in sentences if words):
        raise ValueError(f"{block.file}: column {column!r} must hold {_WORDS.words}, one of them is missing")
    return sentences


def _labels(block: Block, column: str, split: str, description: Description) -> Array:
    found = np.array(_without_gaps(block, column, _NUMBER))
    _check_labels(found, f"{block.file}: labels of the split {split!r}", description)
    return found.astype(np.int64)


# Checks


def _check_labels(y: Array, what: str, description: Description) -> None:
    if not len(y):
        raise ValueError(f"{what}: there are none")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= description.classes:
        raise ValueError(f"{what} must lie in 0..{description.classes - 1}, got {low}..{high}")


def _check_shape(x: Array, source: str, description: Description) -> None:
    content = description.content
    assert isinstance(content, Images)
    if x.shape[1:] != content.shape:
        raise ValueError(f"{source}: images must be of shape {content.shape}, got {x.shape[1:]}")
