"""Aggregation rules: how the updates of a cohort become one. To add one, write it here and list it in `AGGREGATES`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from undrift.core import tree
from undrift.core.check import nearest, shown
from undrift.core.tree import Tree
from undrift.core.wide import wide

# (stacked updates [n, ...], weights [n] that sum to one) -> one update; tensor operations only, so that rounds can be
# captured in a CUDA graph
Aggregate = Callable[[Tree, Tensor], Tree]


def mean(updates: Tree, weights: Tensor) -> Tree:
    """Σ w_i u_i."""
    return tree.mean(updates, weights)


def median(updates: Tree, weights: Tensor) -> Tree:
    """In every coordinate an x that minimises Σ w_i |x − u_i|: the middle of them all where there are several."""
    return {k: _weighted_median(u, weights) for k, u in updates.items()}


_ONE = 1 << 52  # a weight of one, in whole numbers: their sums are exact, on every device and in any order


def _weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    values, order = values.sort(0)
    below = (wide(weights) * _ONE).to(torch.int64)[order].cumsum(0)  # [n, ...] weight of the values up to each
    total = below[-1]
    tie = 2 * (len(values) + int(torch.finfo(weights.dtype).eps * _ONE))  # rounded weights may miss one half
    first = (2 * below < total - tie).sum(0, keepdim=True)
    last = (2 * below <= total + tie).sum(0, keepdim=True)
    return ((values.gather(0, first) + values.gather(0, last)) / 2)[0]


AGGREGATES: dict[str, Aggregate] = {"mean": mean, "median": median}


def find(value: str | Aggregate) -> Aggregate:
    """A rule by its name; a function is returned as it is."""
    if isinstance(value, str):
        if value not in AGGREGATES:
            raise ValueError(f"aggregate: unknown aggregation rule {shown(value)}{nearest(value, AGGREGATES)}")
        return AGGREGATES[value]
    if not callable(value):
        raise TypeError(f"aggregate must be a name or a function (updates, weights) -> update, got {shown(value)}")
    return value
