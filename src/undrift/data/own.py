"""Users' own data: columns of any table, and folders of files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undrift.data import images
from undrift.data.foreign import read_npy

Array = np.ndarray[Any, Any]


def column(dataset: Any, name: str) -> Array:
    """A column as an array; images, encoded or not, become [n, channels, height, width]."""
    known = _columns(dataset)
    if known is not None and name not in known:
        splits = isinstance(dataset, Mapping) and all(hasattr(each, "column_names") for each in dataset.values())
        what = "this is a dict of splits, of which one is needed" if splits else f"there is no column {name!r}"
        raise ValueError(f"{what}; there are: {', '.join(map(repr, known))}")
    try:
        values = _of_hub(dataset, name) if _is_of_hub(dataset) else dataset[name]
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"there is no column {name!r} in {type(dataset).__name__}") from error
    if hasattr(values, "to_pylist"):  # a column of pyarrow
        values = values.to_pylist()
    values = values if isinstance(values, np.ndarray) and values.dtype != object else list(values)
    if not len(values):
        raise ValueError(f"column {name!r} is empty")
    if isinstance(values, list) and (isinstance(values[0], (bytes, dict)) or hasattr(values[0], "convert")):
        return images.decode_all(values, [f"row {row} of column {name!r}" for row in range(len(values))], None)
    for row, value in enumerate(values if isinstance(values, list) else ()):
        if value is None or (isinstance(value, float) and math.isnan(value)):  # as data frames mark it
            raise ValueError(f"column {name!r} has no value in row {row}")
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"column {name!r} has rows of different lengths; pad them first") from error


def columns(dataset: Any, names: str | Sequence[str]) -> Array:
    """A column, or several of numbers side by side [n, columns]."""
    if isinstance(names, str):
        return column(dataset, names)
    found = {name: column(dataset, name) for name in names}
    if not found:
        raise ValueError("x must name at least one column, got none")
    for name, values in found.items():
        if values.ndim != 1 or values.dtype.kind not in "biuf":
            raise ValueError(f"column {name!r} is no column of numbers, which several side by side must be")
    return np.stack(list(found.values()), axis=1).astype(np.float32)


def _is_of_hub(dataset: Any) -> bool:
    """Whether it is a `datasets.Dataset` with columns as they are stored, not as a transform of the user makes them."""
    form = getattr(dataset, "format", None)
    return isinstance(form, Mapping) and form.get("type") != "custom" and hasattr(dataset, "__len__")


def _of_hub(dataset: Any, name: str) -> Any:
    """A column, whatever the format in which the data set gives its rows: numbers as an array, images as they are."""
    images = hasattr(dataset.features[name], "decode_example")
    return dataset.with_format(None if images else "numpy", columns=[name])[:][name]


def class_words(dataset: Any, name: str, *targets: Array | None) -> tuple[str, ...] | None:
    """The names of classes, if a column has words, or numbers that the data set knows the words for."""
    labels = [values for values in targets if values is not None]
    if all(values.dtype.kind in "US" for values in labels):
        return tuple(sorted({str(word) for values in labels for word in np.unique(values.astype(str))}))
    feature = getattr(dataset, "features", None)
    names = getattr(feature[name], "names", None) if isinstance(feature, Mapping) and name in feature else None
    return tuple(map(str, names)) if names else None


def numbered(words: Array, names: Sequence[str]) -> Array:
    """Words as their places among sorted names."""
    return np.searchsorted(np.asarray(names), words.astype(str))


def _columns(dataset: Any) -> list[str] | None:
    for name in ("column_names", "columns", "keys"):
        found = getattr(dataset, name, None)
        found = found() if name == "keys" and callable(found) else found
        if found is not None and not callable(found):
            return [str(each) for each in found]
    return None


def subfolders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise ValueError(f"{str(path)!r} is not a directory")
    return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))


def class_names(path: Path, test: str | Path | None) -> dict[str, int]:
    """Numbers of all classes for which some client has a folder."""
    folders = subfolders(path) + ([] if test is None else [Path(test)])
    names = sorted({child.name for folder in folders for child in subfolders(folder)})
    return {name: number for number, name in enumerate(names)}


def client(folder: Path, names: dict[str, int]) -> tuple[Array, Array]:
    """Samples and targets of one client."""
    if (folder / "x.npy").is_file() and (folder / "y.npy").is_file():
        return read_npy(folder / "x.npy"), read_npy(folder / "y.npy")
    files = [(file, names[kind.name]) for kind in subfolders(folder) for file in sorted(kind.iterdir())]
    files = [(file, label) for file, label in files if file.is_file() and not file.name.startswith(".")]
    if not files:
        raise ValueError(f"{folder} holds neither x.npy and y.npy nor folders of images")
    decoded = images.decode_all([file for file, _ in files], [str(file) for file, _ in files], None)
    return decoded, np.array([label for _, label in files])
