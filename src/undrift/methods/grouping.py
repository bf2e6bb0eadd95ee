"""Groups among stacked trees: their principal plane, and k-means in it.

Whole trees enter only through products of rows, so the cost is linear in the size of the model.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from undrift.core import random, tree
from undrift.core.random import Key, Stream
from undrift.core.tree import Tree

_SETTLED = 1e-4  # change of the total distance below which Lloyd's iterations end
_ITERATIONS = 100


class Plane(NamedTuple):
    """The plane through the mean of stacked trees along their principal directions; points are float64, on the CPU."""

    mean: Tree
    centred: Tree  # [n, ...]
    directions: Tensor  # [n, k], column j: the j-th principal direction as a combination of the centred rows
    points: Tensor  # [n, k] the rows in the plane

    @classmethod
    def through(cls, rows: Tree, dimensions: int) -> Plane:
        """From the eigenvectors V of the Gram matrix [n, n]: U = Z V Λ^(−1/2), never from a [d, d] matrix."""
        mean = {k: v.mean(0) for k, v in rows.items()}
        centred = tree.sub(rows, mean)
        gram = tree.products(centred, centred).cpu().double()
        if not bool(gram.isfinite().all()):  # a client has diverged, so that the plane is undefined
            undefined = gram.new_full((len(gram), dimensions), torch.nan)
            return cls(mean, centred, directions=undefined, points=undefined)
        values, vectors = torch.linalg.eigh(gram)  # increasing
        values, vectors = values.flip(0)[:dimensions], vectors.flip(1)[:, :dimensions]
        # Directions with only rounding errors, of the products or of the rows themselves, are set to zero.
        eps = torch.finfo(next(iter(rows.values())).dtype).eps
        noise = len(gram) * eps * (gram.trace() + eps * tree.squares(rows).sum().cpu())
        directions = vectors * torch.where(values > noise, values.clamp_min(0).rsqrt(), 0)
        return cls(mean, centred, directions=directions, points=gram @ directions)

    def project(self, stacked: Tree, centred: bool = True) -> Tensor:
        """Stacked trees in the plane [m, k]: U^T (z − z̄), or U^T z unless they are `centred`."""
        given = tree.sub(stacked, self.mean) if centred else stacked
        return tree.products(given, self.centred).cpu().double() @ self.directions

    def lift(self, points: Tensor) -> Tree:
        """Points [m, k] of the plane as stacked trees."""
        parts = points @ self.directions.T  # [m, n]
        return tree.add(
            {k: v.expand(len(points), *v.shape) for k, v in self.mean.items()},
            {k: torch.tensordot(parts.to(v), v, dims=1) for k, v in self.centred.items()},
        )


class Groups(NamedTuple):
    centres: Tensor  # [m, k]
    members: Tensor  # [n] the group of every point


def lloyd(points: Tensor, centres: Tensor) -> Groups:
    """k-means from these centres; a group without members keeps its centre."""
    before = torch.inf
    for _ in range(_ITERATIONS):
        members = _distances(points, centres).argmin(1)
        belongs = torch.nn.functional.one_hot(members, len(centres)).to(points.dtype)  # [n, m]
        sizes = belongs.sum(0)[:, None]
        centres = torch.where(sizes > 0, belongs.T @ points / sizes.clamp_min(1), centres)
        distance = float((points - centres[members]).norm(dim=1).sum())
        if abs(before - distance) < _SETTLED:
            break
        before = distance
    return Groups(centres, members)


def plus_plus(points: Tensor, count: int, seed: int, round: int, clients: Tensor) -> Tensor:
    """The starting centres of k-means++ [count, k]: points drawn by their squared distance to those drawn before.

    Points are drawn by comparing exponential variables, one per client, so that the order of clients does not matter.
    """
    key = Key(seed, round, clients.cpu()[:, None])
    reach = torch.ones(len(points), dtype=points.dtype)
    chosen: list[int] = []
    for turn in range(count):
        drawn = random.uniform(key, Stream.GROUPS, turn, (1,))[:, 0].double()  # [n]
        clock = (-torch.log1p(-drawn)).clamp_min(1e-9)
        chosen.append(int((clock / reach).argmin()))
        reach = _distances(points, points[chosen]).amin(1).square()
    return points[chosen]


def _distances(points: Tensor, centres: Tensor) -> Tensor:
    distances: Tensor = torch.linalg.vector_norm(points[:, None] - centres, dim=2)
    return distances  # [n, m]
