"""A federation's samples: one array for all clients, and the rows of each.

Only two integer arrays grow with the number of clients, so that a million clients cost what their samples cost.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.core import check
from undrift.data import arrays, torch_datasets
from undrift.data.arrays import tensor

Pair = tuple[Any, Any]
Clients = Sequence[Any] | Mapping[Any, Any]  # a pair or a torch Dataset for every client
Ints = np.ndarray[Any, np.dtype[np.int64]]
Scale = tuple[Sequence[float], Sequence[float]]
_MOST_CLASSES = 1 << 20  # larger targets count something else


class LocalTests(NamedTuple):
    """Test samples of every client: rows ``rows[offsets[i] : offsets[i + 1]]`` of `x` and `y` are client i's."""

    x: Tensor
    y: Tensor
    rows: Ints
    offsets: Ints


class FederatedData:
    """Samples `x`, targets `y`, and the rows of every client.

    `clients` is a list with the rows of every client: their numbers, or a mask over all samples; clients may share
    rows. `test` is a pair (x, y) held by the server, of the kind of `x` and `y`. `normalise` is the mean
    and the standard deviation of inputs per channel, for images [C, H, W]; models see (x − mean) / std, computed on
    the device after bytes have become numbers between 0 and 1 and after augmentation.

    `client_names` and `class_names` are there where they are known, in the order of their numbers.
    """

    client_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    features: str | None = None  # which features of images the samples are (`data/features.py`),
    image: tuple[int, ...] = ()  # and the shape of these images

    def __init__(
        self,
        x: Any,
        y: Any,
        clients: Sequence[Any],
        test: Pair | None = None,
        *,
        classes: int | None = None,
        name: str = "",
        normalise: Scale | None = None,
    ) -> None:
        inputs, targets = tensor("x", x), tensor("y", y)
        own = [arrays.rows(f"client {i}", rows, len(inputs)) for i, rows in enumerate(_entries("clients", clients))]
        sizes = np.array([len(rows) for rows in own], dtype=np.int64)
        _refuse_empty(sizes)
        rows = np.concatenate(own)
        self._set(inputs, targets, rows, sizes, test=test, classes=classes, name=name, normalise=normalise)

    @classmethod
    def from_rows(
        cls,
        x: Any,
        y: Any,
        rows: Any,
        sizes: Any,
        test: Pair | None = None,
        *,
        classes: int | None = None,
        name: str = "",
        normalise: Scale | None = None,
    ) -> FederatedData:
        """From the rows of all clients, concatenated, and the size of each: fast for a million clients."""
        numbers, counts = arrays.whole_numbers("rows", rows), arrays.whole_numbers("sizes", sizes)
        total = sum(counts.tolist())  # which cannot overflow
        if total != len(numbers):
            raise ValueError(f"sizes must add up to the number of rows, got {total} and {len(numbers)}")
        _refuse_empty(counts)
        self = cls.__new__(cls)
        self._set(
            tensor("x", x), tensor("y", y), numbers, counts, test=test, classes=classes, name=name, normalise=normalise
        )
        return self

    @classmethod
    def from_hub(
        cls,
        dataset: Any,
        partition: str | None = None,
        clients: int | None = None,
        x: str | Sequence[str] = "image",
        y: str = "label",
        *,
        user: str | None = None,
        test: Any = None,
        seed: int = 0,
        normalise: Scale | None = None,
    ) -> FederatedData:
        """From a Hugging Face data set, a data frame, or anything else whose columns ``dataset["label"]`` gives.

        `x` and `y` name columns; images are decoded, and classes that are words are numbered in alphabetical order.
        Several columns of numbers, ``x=["age", "weight"]``, become the features of a sample.
        `user` names the column with the client of each sample, by which samples are split unless another `partition`
        says otherwise (by default ``iid``). `test` is another such table.
        """
        from undrift.data import own
        from undrift.data.partition import by_owner, owners, parse

        partition = partition or ("iid" if user is None else "natural")
        inputs, targets = own.columns(dataset, x), own.column(dataset, y)
        held = None if test is None else (own.columns(test, x), own.column(test, y))
        names = own.class_words(dataset, y, targets, None if held is None else held[1])
        if targets.dtype.kind in "US" and names is not None:
            targets = own.numbered(targets, names)
            held = None if held is None else (held[0], own.numbered(held[1], names))
        users = None if user is None else own.column(dataset, user)
        rows, sizes = by_owner(owners(partition, targets, clients, seed, users=users))
        classes = None if names is None else len(names)
        self = cls.from_rows(inputs, targets, rows, sizes, test=held, classes=classes, normalise=normalise)
        self.class_names = names
        if users is not None and parse(partition).name == "natural":
            self.client_names = tuple(str(each) for each in users[rows[self.offsets[:-1]]])
        return self

    @classmethod
    def from_folders(
        cls, path: str | Path, test: str | Path | None = None, *, normalise: Scale | None = None
    ) -> FederatedData:
        """From a directory with one folder per client, in alphabetical order.

        A client's folder holds ``x.npy`` and ``y.npy``, or a folder of images for each class; classes are numbered
        in the alphabetical order of all their names. `test` is one more such folder, outside `path`.
        """
        from undrift.data import own

        names = own.class_names(Path(path), test)
        folders = own.subfolders(Path(path))
        if not folders:
            raise ValueError(f"{path} holds no folders; it needs one per client")
        pairs = [own.client(folder, names) for folder in folders]
        held = None if test is None else own.client(Path(test), names)
        self = cls._joined(pairs, held, [folder.name for folder in folders])
        self._classes, self.class_names = len(names) or None, tuple(names) or None
        self.normalise = _checked_scale(normalise, self.x)
        return self

    @classmethod
    def from_clients(cls, clients: Clients, test: Any = None) -> FederatedData:
        """From what every client has, in a list or by its name in a dict.

        That is a pair of arrays (x, y), or a torch Dataset of such samples, or a DataLoader, of which the Dataset is
        read. `test` is one more of them.
        """
        if isinstance(clients, Mapping):
            names = [str(name) for name in clients]
            if len(set(names)) < len(names):
                raise ValueError(f"data: names of clients must differ, got {check.shown(list(clients))}")
            pairs = [_pair(f"client {name!r}", own) for name, own in zip(names, clients.values(), strict=True)]
            return cls._joined(pairs, test, names)
        pairs = [_pair(f"client {i}", own) for i, own in enumerate(_entries("data", clients))]
        return cls._joined(pairs, test)

    @classmethod
    def _joined(cls, clients: Sequence[Pair], test: Any, client_names: Sequence[str] | None = None) -> FederatedData:
        """The samples of all clients in one array."""
        known: Iterable[object] = range(len(clients)) if client_names is None else client_names
        names = [f"client {name!r}" for name in known]
        xs: list[Tensor] = []
        ys: list[Tensor] = []
        for pair, name in zip(clients, names, strict=True):
            x, y = tensor(f"{name}: x", pair[0]), tensor(f"{name}: y", pair[1])
            if len(x) != len(y):
                raise ValueError(f"{name}: x and y must have equally many rows, got shapes {_shape(x)} and {_shape(y)}")
            if not len(x):
                raise ValueError(f"data: every client needs at least one sample; {name} has none")
            if xs and (x.shape[1:] != xs[0].shape[1:] or y.shape[1:] != ys[0].shape[1:]):
                raise ValueError(
                    f"{name}: samples must have {names[0]}'s shape, {_shape(xs[0][0])} and {_shape(ys[0][0])}, "
                    f"got {_shape(x[0])} and {_shape(y[0])}"
                )
            if xs and (x.dtype != xs[0].dtype or y.dtype != ys[0].dtype):
                raise ValueError(
                    f"{name}: samples must have the types of {names[0]}'s, {xs[0].dtype} and {ys[0].dtype}, "
                    f"got {x.dtype} and {y.dtype}"
                )
            xs.append(x)
            ys.append(y)
        sizes = np.array([len(x) for x in xs], dtype=np.int64)
        _refuse_empty(sizes)
        self = cls.__new__(cls)
        self.client_names = None if client_names is None else tuple(client_names)
        self._set(torch.cat(xs), torch.cat(ys), np.arange(int(sizes.sum())), sizes, test=test)
        return self

    def _set(
        self,
        x: Tensor,
        y: Tensor,
        rows: Ints,
        sizes: Ints,
        *,
        test: Pair | None,
        classes: int | None = None,
        name: str = "",
        normalise: Scale | None = None,
    ) -> None:
        if len(x) != len(y):
            raise ValueError(f"x and y must have equally many rows, got {len(x)} and {len(y)}")
        self.x, self.y, self.rows, self.sizes = x, y, rows, sizes
        self.offsets = np.concatenate([[0], np.cumsum(sizes)])
        if rows.min() < 0 or rows.max() >= len(x):
            wrong = int(np.flatnonzero((rows < 0) | (rows >= len(x)))[0])
            raise ValueError(
                f"clients: row numbers must lie in 0..{len(x) - 1}, got {rows.min()}..{rows.max()}, "
                f"the first of them from client {self.client_name(self._holder(wrong))}"
            )
        self.test = None if test is None else held_out(test)
        self.local_tests: LocalTests | None = None
        self.normalise = _checked_scale(normalise, x)
        self.name = name
        self.recipe: dict[str, Any] = {}  # how `load` made it, so that a run can be resumed without the object
        self._classes = _checked_classes(classes, y)
        for what, values in (("x", x), ("y", y)):
            _refuse_nonfinite(what, values, self)

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.sizes)

    def __repr__(self) -> str:
        return (
            f"FederatedData({len(self)} clients, {len(self.rows)} samples of shape {_shape(self.x[0])}"
            f"{', ' + self.name if self.name else ''})"
        )

    @property
    def classes(self) -> int | None:
        """The number of classes, when targets are single whole numbers."""
        if self._classes is None and self.y.ndim == 1 and not self.y.is_floating_point():
            labels = (self.y,) if self.test is None else (self.y, self.test[1])
            most = max(int(y.max()) for y in labels)
            if min(int(y.min()) for y in labels) >= 0 and most < _MOST_CLASSES:
                self._classes = most + 1
        return self._classes

    def client_name(self, index: int) -> str:
        """A client's name in quotes, or its number, for messages."""
        return str(index) if self.client_names is None else repr(self.client_names[index])

    def client(self, index: int) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(self.rows[self.offsets[index] : self.offsets[index + 1]])
        return self.x[rows], self.y[rows]

    def client_test(self, index: int) -> tuple[Tensor, Tensor] | None:
        """A client's own test samples, where clients have some."""
        if self.local_tests is None:
            return None
        x, y, rows, offsets = self.local_tests
        own = torch.from_numpy(rows[offsets[index] : offsets[index + 1]])
        return x[own], y[own]

    def hold_out(self, share: float, seed: int = 0) -> FederatedData:
        """The same federation with a share of every client's samples as its own test set, stratified by class.

        A client keeps at least one sample for training, and tests on at least one if it has two. If the server has no
        test set, it gets the test samples of all clients.
        """
        from undrift.data.holdout import stratified

        check.number("test_share", share, 0, 1, open_low=True, open_high=True)
        held = stratified(np.repeat(np.arange(len(self)), self.sizes), self.y.numpy()[self.rows], share, seed)
        starts = self.offsets[:-1]
        tested = np.add.reduceat(held.astype(np.int64), starts)
        other = copy.copy(self)
        other.rows, other.sizes = self.rows[~held], self.sizes - tested
        other.offsets = np.concatenate([[0], np.cumsum(other.sizes)])
        other.local_tests = LocalTests(self.x, self.y, self.rows[held], np.concatenate([[0], np.cumsum(tested)]))
        if self.test is None:
            all_held = torch.from_numpy(self.rows[held])
            other.test = held_out((self.x[all_held], self.y[all_held]))
        other.recipe = {}
        return other

    def pooled(self) -> FederatedData:
        """The samples of all clients, each once, as those of a single one."""
        other = copy.copy(self)
        other.rows = np.unique(self.rows)
        other.sizes = np.array([len(other.rows)])
        other.offsets = np.concatenate([[0], other.sizes])
        other.client_names = other.local_tests = None
        return other

    def validation(self, share: float, seed: int = 0) -> FederatedData:
        """The same federation with a share of every client's samples, stratified by class, instead of all test sets.

        What is chosen by such a test set has not seen the other one.
        """
        check.number("validation_share", share, 0, 1, open_low=True, open_high=True)
        untested = copy.copy(self)
        untested.test = None
        return untested.hold_out(share, seed)

    def owner(self, row: int) -> int | None:
        """The client that holds a row, if any."""
        found = np.flatnonzero(self.rows == row)
        return None if not len(found) else self._holder(int(found[0]))

    def _holder(self, place: int) -> int:
        """The client at a place of `rows`."""
        return int(np.searchsorted(self.offsets, place, side="right") - 1)

    def fingerprint(self) -> str:
        """A digest of everything that training and evaluation see."""
        digest = hashlib.sha256()
        for part in (self.x, self.y, *(self.test or ())):
            digest.update(repr((tuple(part.shape), str(part.dtype))).encode())
            digest.update(part.contiguous().view(torch.uint8).numpy().data if part.numel() else b"")
        digest.update(np.ascontiguousarray(self.rows).data)
        digest.update(np.ascontiguousarray(self.sizes).data)
        if self.normalise is not None:
            digest.update(repr(self.normalise).encode())
        return digest.hexdigest()


def held_out(test: Any) -> tuple[Tensor, Tensor]:
    """A checked test set, as tensors."""
    test = _read("test", test)
    if not isinstance(test, (tuple, list)) or len(test) != 2:
        raise TypeError(f"test must be a pair (x, y), got {type(test).__name__}")
    x, y = tensor("test x", test[0]), tensor("test y", test[1])
    if not len(x) == len(y) > 0:
        raise ValueError(f"test: x and y must have equally many rows, at least one, got {len(x)} and {len(y)}")
    for what, values in (("test x", x), ("test y", y)):
        _refuse_nonfinite(what, values)
    return x, y


def _checked_scale(normalise: Scale | None, x: Tensor) -> Scale | None:
    if normalise is None:
        return None
    try:
        mean, std = (tuple(float(v) for v in part) for part in normalise)
    except (TypeError, ValueError) as error:
        raise TypeError(f"normalise must be a pair of lists of numbers (mean, std), got {normalise!r}") from error
    if x.ndim != 4 or not len(mean) == len(std) == x.shape[1]:
        raise ValueError(
            f"normalise needs images [channels, height, width] and a mean and a deviation for each channel, "
            f"got {len(mean)} and {len(std)} for samples of shape {_shape(x)[1:]}"
        )
    for value in mean:
        check.number("normalise: a mean", value)
    for value in std:
        check.number("normalise: a standard deviation", value, 0, open_low=True)
    return mean, std


def _checked_classes(classes: int | None, y: Tensor) -> int | None:
    if classes is None:
        return None
    check.integer("classes", classes, 1)
    if y.ndim == 1 and not y.is_floating_point() and len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise ValueError(
            f"labels must lie in 0..{classes - 1} where there are classes={classes}, got {int(y.min())}..{int(y.max())}"
        )
    return int(classes)


def _entries(what: str, values: Any) -> Iterable[Any]:
    """The entries of a list, one per client, which may be endless: whoever reads them checks one by one."""
    if isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be a list with an entry per client, got {type(values).__name__}")
    return values


def _pair(name: str, own: Any) -> Pair:
    pair = _read(name, own)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"data: {name} must be a pair (x, y) or a torch Dataset, got {type(pair).__name__}")
    return pair[0], pair[1]


def _read(name: str, own: Any) -> Any:
    """The pair of arrays in a Dataset or a DataLoader of torch; anything else stays as it is."""
    return torch_datasets.read(name, own) if torch_datasets.is_dataset(own) else own


def _refuse_empty(sizes: Ints) -> None:
    if not len(sizes):
        raise ValueError("data: a federation needs at least one client, got none")
    empty = np.flatnonzero(sizes <= 0)
    if len(empty):
        raise ValueError(f"data: every client needs at least one sample; client {empty[0]} has none")


def _refuse_nonfinite(what: str, values: Tensor, data: FederatedData | None = None) -> None:
    if values.is_floating_point() and not bool(torch.isfinite(values).all()):
        bad = int((~torch.isfinite(values.flatten(1) if values.ndim > 1 else values[:, None])).any(1).nonzero()[0])
        owner = None if data is None else data.owner(bad)
        whose = "" if owner is None or data is None else f" of client {data.client_name(owner)}"
        raise ValueError(f"data: {what} must be finite; a sample{whose} (row {bad}) has NaN or infinity")


def _shape(values: Tensor) -> tuple[int, ...]:
    return tuple(values.shape)
