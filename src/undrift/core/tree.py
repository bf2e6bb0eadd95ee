"""Arithmetic on trees of tensors.

A *tree* is ``{name: tensor}``: a model, a gradient, an update. A *nest* is a dict of nests and tensors: a state, a
message. Two conventions carry the whole project:

* An update is client minus server and is added. Gradients are subtracted in one line only (`averaging.py`).
* Partial trees replace masks: `add(grad, control)` acts where `control` has the name and leaves the rest unchanged,
  so that last-layer variants automatically store and send less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Tensor]
Nest = dict[str, Any]
State = Nest  # stays where it is; same names, shapes and dtypes before and after a round
Message = Nest  # travels


def add(tree: Tree, other: Tree, scale: float | Tensor = 1.0) -> Tree:
    """``tree + scale * other`` where `other` has the name; `tree` elsewhere."""
    if isinstance(scale, Tensor):
        return {k: torch.addcmul(v, other[k], scale) if k in other else v for k, v in tree.items()}
    return {k: torch.add(v, other[k], alpha=scale) if k in other else v for k, v in tree.items()}


def sub(tree: Tree, other: Tree) -> Tree:
    """``tree - other`` where `other` has the name; `tree` elsewhere."""
    return {k: v - other[k] if k in other else v for k, v in tree.items()}


def scale(tree: Tree, factor: float | Tensor) -> Tree:
    return {k: factor * v for k, v in tree.items()}


def mix(tree: Tree, other: Tree, share: float) -> Tree:
    """``(1 - share) * tree + share * other`` where `other` has the name; `tree` elsewhere."""
    return {k: (1 - share) * v + share * other[k] if k in other else v for k, v in tree.items()}


def take(tree: Tree, names: Iterable[str]) -> Tree:
    """The part of `tree` under `names`, which must all exist."""
    return {k: tree[k] for k in names}


def drop(tree: Tree, names: Iterable[str]) -> Tree:
    """`tree` without `names`."""
    gone = set(names)
    return {k: v for k, v in tree.items() if k not in gone}


def zeros(tree: Tree) -> Tree:
    return {k: torch.zeros_like(v) for k, v in tree.items()}


_SMALL = 1 << 20  # numbers: a larger tree takes longer to copy than what its tensors cost one by one


def to_vectors(tree: Tree) -> Tree:
    """The tensors of a small tree, in the order of their names, as one vector of each dtype: one kernel for all."""
    if sum(v.numel() for v in tree.values()) > _SMALL:
        return tree
    return {name: torch.cat([tree[k].flatten() for k in names]) for name, names in _by_dtype(tree).items()}


def from_vectors(vectors: Tree, like: Tree) -> Tree:
    """The tree that `to_vectors` was given, as views with the names and shapes of `like`."""
    if vectors.keys() == like.keys():
        return vectors
    views: Tree = {}
    for name, names in _by_dtype(like).items():
        parts = vectors[name].split([like[k].numel() for k in names])
        views |= {k: part.view(like[k].shape) for k, part in zip(names, parts, strict=True)}
    return {k: views[k] for k in like}


def _by_dtype(tree: Tree) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in sorted(tree):
        found.setdefault(str(tree[name].dtype), []).append(name)
    return found


def dot(a: Tree, b: Tree) -> Tensor:
    """The inner product over the names of `b`."""
    return torch.stack([(a[k] * b[k]).sum() for k in b]).sum()


# Stacked trees: every tensor has a leading axis [n], one row per client.


def rows(tree: Tree, factors: Tensor) -> Tree:
    """Row i of a stacked tree times ``factors[i]``."""
    return {k: factors.to(v.dtype).view(-1, *[1] * (v.ndim - 1)) * v for k, v in tree.items()}


def dots(stacked: Tree, single: Tree) -> Tensor:
    """Inner product of every row with one tree: [n]."""
    return torch.stack([_flat(v) @ single[k].flatten() for k, v in stacked.items()]).sum(0)


def products(stacked: Tree, other: Tree) -> Tensor:
    """Inner product of every row of one stacked tree with every row of another: [n, m]."""
    return torch.stack([_flat(v) @ _flat(other[k]).T for k, v in stacked.items()]).sum(0)


def squares(stacked: Tree) -> Tensor:
    """Squared norm of every row: [n]."""
    return torch.stack([_flat(v).square().sum(1) for v in stacked.values()]).sum(0)


def _flat(stacked: Tensor) -> Tensor:
    """[n, m]; a stacked number, too, is a vector of one."""
    return stacked.unsqueeze(-1).flatten(1)


def mean(stacked: Tree, weights: Tensor) -> Tree:
    """Weighted sum of the rows; a mean if `weights` [n] sum to one."""
    return {k: torch.tensordot(weights.to(v.dtype), v, dims=1) for k, v in stacked.items()}


# Nests


def map_nest(f: Callable[..., Any], nest: Nest, *others: Nest) -> Nest:
    """Apply `f` leaf by leaf to nests of one structure."""
    return {
        k: map_nest(f, v, *(o[k] for o in others)) if isinstance(v, dict) else f(v, *(o[k] for o in others))
        for k, v in nest.items()
    }


def leaves(nest: Nest) -> list[Tensor]:
    return [leaf for v in nest.values() for leaf in (leaves(v) if isinstance(v, dict) else [v])]


def where(condition: Tensor, nest: Nest, other: Nest) -> Nest:
    """`nest` if the (0-dimensional, possibly batched) condition holds, else `other`."""
    return map_nest(lambda a, b: a if a is b else torch.where(condition, a, b), nest, other)


def stack(nests: Sequence[Nest]) -> Nest:
    first = nests[0]
    return {
        k: stack([n[k] for n in nests]) if isinstance(v, dict) else torch.stack([n[k] for n in nests])
        for k, v in first.items()
    }


def concat(nests: Sequence[Nest]) -> Nest:
    """Stacked nests, one after another along their leading axis."""
    if len(nests) == 1:
        return nests[0]
    first = nests[0]
    return {
        k: concat([n[k] for n in nests]) if isinstance(v, dict) else torch.cat([n[k] for n in nests])
        for k, v in first.items()
    }


def row(stacked: Nest, index: Any) -> Nest:
    """Row (or rows, for a slice or an index tensor) of a stacked nest."""
    return map_nest(lambda v: v[index], stacked)


def repeat(nest: Nest, count: int) -> Nest:
    """A stacked nest whose `count` rows are all `nest` (a view: never write to it)."""
    return map_nest(lambda v: v.expand(count, *v.shape), nest)


def nbytes(nest: Nest) -> int:
    return sum(leaf.nbytes for leaf in leaves(nest))


def flatten(nest: Nest) -> Tree:
    """A nest as one flat tree, as in files: names joined by ``/``, escaped as in JSON pointers. Drops empty nests."""
    return {name: leaf for name, leaf in entries(nest).items() if leaf is not None}


def unflatten(flat: Tree) -> Nest:
    """The nest that `flatten` was given, without its empty parts."""
    return from_entries(flat)


def entries(nest: Nest, prefix: str = "") -> dict[str, Tensor | None]:
    """All of a nest by its paths, as in `flatten`; a branch without tensors is None, and its path ends in ``/``."""
    found: dict[str, Tensor | None] = {}
    for k, v in nest.items():
        name = prefix + k.replace("~", "~0").replace("/", "~1")
        if isinstance(v, dict):
            found |= entries(v, f"{name}/") if v else {f"{name}/": None}
        else:
            found[name] = v
    return found


def from_entries(found: Mapping[str, Tensor | None]) -> Nest:
    """The nest that `entries` was given."""
    nest: Nest = {}
    for name, leaf in found.items():
        *path, last = (key.replace("~1", "/").replace("~0", "~") for key in name.split("/"))
        branch = nest
        for key in path:
            branch = branch.setdefault(key, {})
        if leaf is not None:
            branch[last] = leaf
    return nest


def ordered_like(nest: Nest, like: Nest) -> Nest:
    """`nest` with its names in the order of `like`, as the order of a sum decides its last bits."""
    return {k: ordered_like(nest.get(k, {}), v) if isinstance(v, dict) else nest[k] for k, v in like.items()}


def same_structure(a: Nest, b: Nest) -> bool:
    """Whether names, shapes and dtypes are the same, as a state must keep them from round to round."""
    flat_a, flat_b = flatten(a), flatten(b)
    return flat_a.keys() == flat_b.keys() and all(
        v.shape == flat_b[k].shape and v.dtype == flat_b[k].dtype for k, v in flat_a.items()
    )
