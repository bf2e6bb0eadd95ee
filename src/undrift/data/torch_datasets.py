"""Samples of torch's `Dataset` and `DataLoader`, read once into arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
    default_convert,
)

from undrift.core import check
from undrift.core.log import notice

Array = np.ndarray[Any, Any]


def is_dataset(value: Any) -> bool:
    return isinstance(value, Dataset | DataLoader)


def read(name: str, source: Any) -> tuple[Any, Any]:
    """All samples and targets of a map-style Dataset of pairs (x, y); of a DataLoader, those of its Dataset.

    Random transforms are applied once, here; what is to be drawn anew in every step is `augment`.
    """
    dataset = _of_loader(name, source) if isinstance(source, DataLoader) else source
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise TypeError(f"{name}: {type(dataset).__name__} has no length; give a Dataset with __len__ and __getitem__")
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[0], dataset.tensors[1]
    items = [_item(name, dataset, number) for number in range(len(dataset))]
    if not items:
        raise ValueError(f"data: every client needs at least one sample; {name} has none")
    return _stacked(name, [x for x, _ in items]), _stacked(name, [y for _, y in items])


def _of_loader(name: str, loader: DataLoader[Any]) -> Any:
    """The samples that a loader yields, in the order of its Dataset; batches are made by undrift."""
    if loader.collate_fn not in (default_collate, default_convert):
        raise ValueError(f"{name}: a collate_fn is not called; give a Dataset that returns samples (x, y) as they are")
    sampler: Any = loader.sampler
    if isinstance(sampler, SubsetRandomSampler):
        return Subset(loader.dataset, list(sampler.indices))
    if not isinstance(sampler, SequentialSampler | RandomSampler):
        raise ValueError(
            f"{name}: a sampler of its own is not called ({type(sampler).__name__}); "
            "give the samples it chooses as a torch.utils.data.Subset"
        )
    notice("data: of a DataLoader, the Dataset is read; order and size of batches are those of batch_size= and seed=")
    return loader.dataset


def _item(name: str, dataset: Any, number: int) -> tuple[Any, Any]:
    with check.one_line(f"{name}: sample {number} of its {type(dataset).__name__}"):
        item = dataset[number]
    if not isinstance(item, tuple | list) or len(item) != 2:
        got = f"a {type(item).__name__} of {len(item)}" if isinstance(item, Sequence) else type(item).__name__
        table = "; for a table with columns there is FederatedData.from_hub" if isinstance(item, dict) else ""
        raise TypeError(f"{name}: samples must be pairs (x, y), got {got}{table}")
    return item[0], item[1]


def _stacked(name: str, values: list[Any]) -> Any:
    """Values of all samples [n, ...]; images become bytes [n, channels, height, width]."""
    if hasattr(values[0], "convert"):
        from undrift.data import images  # imports Pillow, which other data do not need

        return images.decode_all(values, [f"{name}: sample {number}" for number in range(len(values))], None)
    if isinstance(values[0], Tensor):
        return values
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{name}: samples must have one shape; pad or crop them") from None
