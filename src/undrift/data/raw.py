"""Raw files of data sets, as torchvision downloads them: MNIST's idx files and CIFAR's batches.

A file says how large it is, and may lie: nothing is allocated before the bytes are there, and no file may be larger
than such files are. CIFAR's batches are pickles, of which only plain arrays and lists of numbers are made.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from undrift.data import pickles
from undrift.data.foreign import first_line
from undrift.data.pickles import Call, Name

Array = np.ndarray[Any, Any]
_LARGEST = 1 << 28  # bytes of a file, uncompressed; CIFAR-100's training set has 156 million
_PIXELS = 3 * 32 * 32  # bytes of a CIFAR image


class Labelled(NamedTuple):
    x: Array  # [n, channels, height, width], bytes
    y: Array  # [n]


# MNIST


def idx(directory: Path, train: bool) -> Labelled | None:
    """Images and labels in MNIST's own format, compressed or not; None if they are not there."""
    part = "train" if train else "t10k"
    images, labels = _find(directory, f"{part}-images-idx3-ubyte"), _find(directory, f"{part}-labels-idx1-ubyte")
    if images is None or labels is None:
        return None
    x, y = _read_idx(images, 3)[:, None], _read_idx(labels, 1).astype(np.int64)
    if len(x) != len(y):
        raise ValueError(f"{images} has {len(x)} images, but {labels} has {len(y)} labels")
    return Labelled(x, y)


def _find(directory: Path, stem: str) -> Path | None:
    found = sorted(f for f in directory.rglob(f"{stem}*") if f.name in (stem, f"{stem}.gz") and f.is_file())
    return found[0] if found else None


def _read_idx(file: Path, axes: int) -> Array:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            magic, *shape = struct.unpack(f">{1 + axes}I", stream.read(4 * (1 + axes)))
            if magic != 0x0800 + axes:
                raise ValueError(f"it begins with {magic:#x}, not {0x0800 + axes:#x}")
            content = _exactly(stream, math.prod(shape))
        return np.frombuffer(content, dtype=np.uint8).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise ValueError(f"{file} is not a complete idx file: {first_line(error)}") from error


def _exactly(stream: Any, size: int) -> bytearray:
    """The rest of a stream, which must have this size. It is read in pieces: a stream may allocate what it is asked."""
    if size > _LARGEST:
        raise ValueError(f"it is said to hold {size} bytes, more than {_LARGEST}")
    content = bytearray()
    while len(content) <= size and (piece := stream.read(min(1 << 20, size + 1 - len(content)))):
        content += piece
    if len(content) != size:
        raise ValueError(f"{size} bytes were to follow, there are {'more' if len(content) > size else len(content)}")
    return content


# CIFAR


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
    """Images [n, 3072] and labels [n]."""
    try:
        size = file.stat().st_size
        if size > _LARGEST:
            raise ValueError(f"it has {size} bytes, more than {_LARGEST}")
        content = file.read_bytes()
        if file.suffix == ".bin":
            rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, labels + _PIXELS)
            return rows[:, labels:], rows[:, labels - 1].astype(np.int64)
        x, y = _unpickled(content, "labels" if labels == 1 else "fine_labels")
        if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != _PIXELS:
            raise ValueError(f"its images are {x.dtype} of shape {x.shape}, not uint8 of shape (n, {_PIXELS})")
        if y.shape != (len(x),):
            raise ValueError(f"it has {len(x)} images and labels of shape {y.shape}")
        return x, y.astype(np.int64)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not a complete CIFAR batch: {first_line(error)}") from error


def _unpickled(content: bytes, labels: str) -> tuple[Array, Array]:
    batch = pickles.read(content)
    if not isinstance(batch, dict):
        _refuse(batch)
        raise ValueError(f"it holds no dictionary of arrays, but {type(batch).__name__}")
    named = {_text(key): value for key, value in batch.items()}
    for key in ("data", labels):
        if key not in named:
            raise ValueError(f"it has no {key!r}")
    numbers = named[labels]
    if not isinstance(numbers, list):
        return _array(named["data"]), _array(numbers)
    if not all(type(number) is int and 0 <= number < 256 for number in numbers):
        raise ValueError(f"its {labels!r} are not all numbers in 0..255")
    return _array(named["data"]), np.array(numbers, dtype=np.int64)


# How NumPy pickles arrays: as a call of one of these functions, which are not called here.
_KNOWN = {
    Name(f"numpy.{core}.{module}", name): name
    for core in ("core", "_core")
    for module, name in (("multiarray", "_reconstruct"), ("numeric", "_frombuffer"))
}
_TYPES = ("u1", "i4", "i8")


def _array(value: Any) -> Array:
    """The array that NumPy would make of a pickled one, if it is a plain one."""
    _refuse(value)
    match value:
        case Call(_, (Name("numpy", "ndarray"), _, _), (1, shape, number, bool(columns_first), content)):
            order: Literal["C", "F"] = "F" if columns_first else "C"
        case Call(_, (content, number, shape, ("C" | "F") as order), None):
            pass
        case _:
            raise ValueError(f"it has a {type(value).__name__.lower()} in place of a plain array")
    dtype, content = _dtype(number), _bytes(content)
    proper = isinstance(shape, tuple) and len(shape) <= 2
    if not proper or not all(type(length) is int and 0 <= length <= _LARGEST for length in shape):
        raise ValueError("it has an array without a proper shape")
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"it has an array of {len(content)} bytes, which do not fit its shape")
    return np.frombuffer(content, dtype=dtype).reshape(shape, order=order)


def _dtype(value: Any) -> np.dtype[Any]:
    match value:
        case Call(Name("numpy", "dtype"), (str(code), *_), (3, ("|" | "<" | ">") as order, *_)) if code in _TYPES:
            found: np.dtype[Any] = np.dtype(order + code)
            return found
    raise ValueError(f"it has an array of another type than {', '.join(str(np.dtype(code)) for code in _TYPES)}")


def _bytes(value: Any) -> bytes | bytearray:
    match value:
        case bytes() | bytearray():
            return value
        case str(text) | Call(Name("_codecs", "encode"), (str(text), "latin1"), None):
            return text.encode("latin-1")  # Python 2 made no difference, and protocol 2 does not know bytes
    raise ValueError("it has an array without bytes")


def _text(key: Any) -> Any:
    """A key of a dictionary as text, where it is bytes in one of the ways that pickles write them."""
    match key:
        case bytes():
            return key.decode("latin-1")
        case Call(Name("_codecs", "encode"), (str(text), "latin1"), None):
            return text
    return key


def _refuse(value: Any) -> None:
    """Say by name which function a pickle wants called, if it is none that arrays need."""
    if isinstance(value, Call) and not (isinstance(value.function, Name) and value.function in _KNOWN):
        what = ".".join(value.function) if isinstance(value.function, Name) else type(value.function).__name__
        raise ValueError(f"it refers to {what}")
