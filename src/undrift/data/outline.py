"""What samples of a named data set look like, where it is not here."""

from __future__ import annotations

import torch
from torch import Tensor

from undrift.data import features as feature_kinds
from undrift.data.catalogue import CATALOGUE, BuiltIn, Characters, Images, Pairs, Words


def random_samples(name: str, count: int, features: str | None = None) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the right shapes with random content, to time a model with."""
    description = CATALOGUE[name]
    generator = torch.Generator().manual_seed(0)

    def numbers(below: int, *shape: int) -> Tensor:
        return torch.randint(below, (count, *shape), generator=generator)

    match description.content:
        case BuiltIn(read):
            arrays = read()
            x, y = (torch.from_numpy(arrays[part][:count]) for part in ("train_x", "train_y"))
        case Images(shape):
            x, y = torch.rand(count, *shape, generator=generator), numbers(description.classes)
        case Characters(length):
            x, y = numbers(description.classes, length), numbers(description.classes)
        case Words(length):
            x, y = numbers(description.classes, length), numbers(description.classes, length)
        case Pairs(length, vocabulary):
            x, y = numbers(vocabulary, 2, length), numbers(description.classes)
    return x if features is None else feature_kinds.compute(features, x), y
