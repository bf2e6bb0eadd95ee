"""Small files with the columns and the layout of the hub's data sets."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from undrift.data.catalogue import CATALOGUE, Images

ROLES = {
    "play/HAMLET": "To be, or not to be: that is the question.\n" * 20,
    "play/OPHELIA": "Good my lord, how does your honour for this many a day?\n" * 20,
    "play/CLOWN": "A pestilence on him for a mad rogue! @ {x}\n" * 12,
}
TESTS = {"tiny-imagenet": "valid", "qqp": "validation"}  # others: "test"


def pixels(name: str, count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    content = CATALOGUE[name].content
    assert isinstance(content, Images)
    shape = (3, 24, 32) if content.resized else content.shape
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def encoded(image: np.ndarray[Any, Any]) -> dict[str, Any]:
    """A cell of an image column: a PNG, which loses nothing."""
    buffer = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def table(name: str, split: str, count: int) -> dict[str, list[Any]]:
    """Columns of a split, as on the hub."""
    rng = np.random.default_rng(len(split))
    if name == "shakespeare":
        return {"character_id": list(ROLES), "text": list(ROLES.values())}
    if name == "stackoverflow":
        words = np.array(["how", "do", "i", "parse", "xml", "with", "a", "regex", "?", "you", "cannot"])
        sentences = [" ".join(rng.choice(words, int(n))) for n in rng.integers(1, 30, count)]
        return {"client_id": [f"user{i % 7:04d}" for i in range(count)], "tokens": sentences}
    if name == "qqp":
        pair = ["How do I learn Python?", "What is the best way to learn Python quickly?"]
        return {
            "question1": [pair[i % 2] for i in range(count)],
            "question2": [pair[i // 2 % 2] for i in range(count)],
            "label": [int(i % 2 == i // 2 % 2) for i in range(count)],
            "idx": list(range(count)),
        }
    description = CATALOGUE[name]
    column, label = description.inputs[0], description.label
    assert label is not None
    columns: dict[str, list[Any]] = {
        column: [encoded(image) for image in pixels(name, count, len(split))],
        label: [i % description.classes for i in range(count)],
    }
    if name == "cifar100":
        columns["coarse_label"] = [0] * count
    if description.user and split == "train":  # the published test sets have no users
        columns[description.user] = [f"photographer {i % 5}" for i in range(count)]
    return columns


def write(path: Path, columns: dict[str, list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def write_all(name: str, directory: Path, count: int = 20) -> Path:
    """A directory as a download of the hub's repository leaves it."""
    if name == "shakespeare":
        write(directory / "roles.parquet", table(name, "train", count))
        return directory
    folder = directory / {"qqp": "qqp", "mnist": "mnist"}.get(name, "data")
    for split in ("train", TESTS.get(name, "test")):
        write(folder / f"{split}-00000-of-00001.parquet", table(name, split, count))
    return directory
