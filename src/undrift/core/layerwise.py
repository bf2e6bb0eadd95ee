"""Norms and inner products by layer: the whole first, then every layer [..., 1 + L]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from undrift.core import torch_private
from undrift.core.tree import Tree

Layers = Mapping[str, tuple[str, ...]]  # the names of each layer's parameters


def norms(tree: Tree, layers: Layers) -> Tensor:
    """Of one tree [1 + L]; not for `vmap`."""
    return together(torch.stack(torch_private.norms(list(_values(tree, layers)))), layers)


def parameter_norms(tree: Tree, layers: Layers) -> Tensor:
    """Of every parameter of a tree [P], for `together`."""
    return torch.stack([torch.linalg.vector_norm(value) for value in _values(tree, layers)])


def together(lengths: Tensor, layers: Layers) -> Tensor:
    """The norms of layers [..., 1 + L] from those of their parameters [..., P]."""
    return _squares(lengths, layers).sqrt()


def products(tree: Tree, other: Tree, layers: Layers) -> Tensor:
    """Inner products of two trees [1 + L]."""
    pairs = zip(_values(tree, layers), _values(other, layers), strict=True)
    return _sums(torch.stack([torch.dot(a.flatten(), b.flatten()) for a, b in pairs]), layers)


# Stacked trees: every tensor has a leading axis [n], one row per client.


def row_norms(stacked: Tree, layers: Layers) -> Tensor:
    """Of every row [n, 1 + L]."""
    return row_squares(stacked, layers).sqrt()


def row_squares(stacked: Tree, layers: Layers) -> Tensor:
    """Squared norms of every row [n, 1 + L]."""
    lengths = [torch.linalg.vector_norm(_flat(value), dim=1) for value in _values(stacked, layers)]
    return _squares(torch.stack(lengths, dim=1), layers)


def row_products(stacked: Tree, other: Tree, layers: Layers) -> Tensor:
    """Inner products of every row with one tree [n, 1 + L]."""
    pairs = zip(_values(stacked, layers), _values(other, layers), strict=True)
    return _sums(torch.stack([_flat(rows) @ single.flatten() for rows, single in pairs], dim=1), layers)


def pair_products(stacked: Tree, other: Tree, layers: Layers) -> Tensor:
    """Inner products of every row with the same row of another stacked tree [n, 1 + L]."""
    pairs = zip(_values(stacked, layers), _values(other, layers), strict=True)
    return _sums(torch.stack([(_flat(a) * _flat(b)).sum(1) for a, b in pairs], dim=1), layers)


def _values(tree: Tree, layers: Layers) -> Iterator[Tensor]:
    return (tree[name] for names in layers.values() for name in names)


def _squares(lengths: Tensor, layers: Layers) -> Tensor:
    return _sums(lengths.square(), layers)


def _sums(figures: Tensor, layers: Layers) -> Tensor:
    """Figures of parameters [..., P], added up."""
    sizes = [len(names) for names in layers.values()]
    if len(set(sizes)) == 1:  # weight and bias each: one kernel on a GPU instead of one for every layer
        found = figures.unflatten(-1, (len(sizes), -1)).sum(-1)
    else:
        found = torch.stack([part.sum(-1) for part in figures.split(sizes, dim=-1)], dim=-1)
    return torch.cat([figures.sum(-1, keepdim=True), found], dim=-1)


def _flat(stacked: Tensor) -> Tensor:
    """[n, m]; a stacked number, too, is a vector of one."""
    return stacked.unsqueeze(-1).flatten(1)
