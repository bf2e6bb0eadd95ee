"""Aggregation rules that bound what a few clients can do to the model, whatever they send.

All are tensor operations on the stacked updates [n, ...], so that rounds can be captured in a CUDA graph. They work
with any number of clients, such as those that are left of a cohort; whether a cohort is large enough for a rule to
promise anything is checked before the first round (`Rule.check`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.core.wide import wide
from undrift.methods.options import HasOptions, text_of


@dataclass(frozen=True)
class Rule(HasOptions):
    """An aggregation rule with options: (stacked updates [n, ...], weights [n] that sum to one) -> one update."""

    name: ClassVar[str]  # the name users type

    def __call__(self, updates: Tree, weights: Tensor) -> Tree:
        raise NotImplementedError

    def check(self, clients: int) -> None:
        """Refuses cohorts of so few clients."""

    def __str__(self) -> str:
        """As users write it: ``krum(share=0.2)``."""
        return text_of(self.name, self)


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """In every coordinate the mean without the f largest and the f smallest values, f = ⌈share · n⌉ (Yin et al. 2018).

    The others keep their weights, scaled to sum to one.
    """

    name: ClassVar[str] = "trimmed-mean"
    share: float = 0.1

    def __post_init__(self) -> None:
        check.number("share", self.share, 0, 0.5, open_high=True)

    def check(self, clients: int) -> None:
        _check_size(self, clients, 2 * _count(self.share, clients) + 1)

    def __call__(self, updates: Tree, weights: Tensor) -> Tree:
        count = len(weights)
        cut = min(_count(self.share, count), (count - 1) // 2)
        return {k: _trimmed(u, weights.to(u.dtype), cut) for k, u in updates.items()}


def _trimmed(values: Tensor, weights: Tensor, cut: int) -> Tensor:
    values, order = values.sort(dim=0, stable=True)  # equal values: the order of the cohort
    kept = slice(cut, len(values) - cut)
    mass = weights[order[kept]]
    return (mass * values[kept]).sum(0) / mass.sum(0)


@dataclass(frozen=True)
class Krum(Rule):
    """The mean of the `keep` updates that are nearest to their neighbours (Blanchard et al. 2017; several: Multi-Krum).

    Near: Σ ‖u_i − u_j‖² over the n − f − 2 nearest others j, f = ⌈share · n⌉. Of equals the first of the cohort wins.
    """

    name: ClassVar[str] = "krum"
    share: float = 0.2
    keep: int = 1

    def __post_init__(self) -> None:
        check.number("share", self.share, 0, 0.5, open_high=True)
        check.integer("keep", self.keep, 1)

    def check(self, clients: int) -> None:
        expected = _count(self.share, clients)
        _check_size(self, clients, 2 * expected + 3)
        if self.keep > clients - expected:
            raise ValueError(
                f"aggregate={str(self)!r} keeps {self.keep} updates, but of a cohort of {clients} clients at most "
                f"{clients - expected} are taken to be honest"
            )

    def __call__(self, updates: Tree, weights: Tensor) -> Tree:
        count = len(weights)
        squares = _square_distances(updates)  # [n, n]
        neighbours = min(max(count - _count(self.share, count) - 2, 1), count - 1)
        scores = squares.sort(1).values[:, 1 : neighbours + 1].sum(1)  # each is its own nearest
        chosen = scores.argsort(stable=True)[: min(self.keep, count)]
        mass = weights[chosen]
        return tree.mean(tree.row(updates, chosen), mass / mass.sum())


def _square_distances(updates: Tree) -> Tensor:
    """‖u_i − u_j‖² [n, n] from products of rows, in double precision, as differences of large numbers are small."""
    products = torch.stack([(rows := _rows(u)) @ rows.T for u in updates.values()]).sum(0)
    norms = products.diagonal()
    apart = (norms[:, None] + norms - 2 * products).clamp_min(0)
    return apart.masked_fill(torch.eye(len(apart), dtype=torch.bool, device=apart.device), -1)  # first when sorted


def _rows(value: Tensor) -> Tensor:
    return wide(value).reshape(len(value), -1)


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """The point v that minimises Σ w_i ‖u_i − v‖, by `iterations` of Weiszfeld's (RFA, Pillutla et al. 2022).

    v ← Σ β_i u_i / Σ β_i, β_i = w_i / max(ν, ‖u_i − v‖), ν = `smoothing`, from the median of every coordinate.
    """

    name: ClassVar[str] = "geometric-median"
    iterations: int = 16
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        check.integer("iterations", self.iterations, 1, 1000)
        check.number("smoothing", self.smoothing, 0, open_low=True)

    def __call__(self, updates: Tree, weights: Tensor) -> Tree:
        middle = {k: _middle(u) for k, u in updates.items()}
        for _ in range(self.iterations):
            apart = tree.squares(tree.sub(updates, middle)).sqrt()  # [n]
            pull = wide(weights) / wide(apart).clamp_min(self.smoothing)
            middle = tree.mean(updates, pull / pull.sum())
        return middle


@dataclass(frozen=True)
class NormClip(Rule):
    """The mean of updates whose norms are clipped to `limit`; None: to the cohort's median norm (Sun et al. 2019)."""

    name: ClassVar[str] = "norm-clip"
    limit: float | None = None

    def __post_init__(self) -> None:
        if self.limit is not None:
            check.number("limit", self.limit, 0, open_low=True)

    def __call__(self, updates: Tree, weights: Tensor) -> Tree:
        norms = tree.squares(updates).sqrt()  # [n]
        limit = _middle(norms) if self.limit is None else self.limit
        return tree.mean(updates, weights * (limit / norms.clamp_min(1e-30)).clamp_max(1))


def _middle(values: Tensor) -> Tensor:
    """The median over the first axis, the lower of two."""
    return values.sort(0).values[(len(values) - 1) // 2]


def _count(share: float, clients: int) -> int:
    """How many of the clients a share is, rounded up; what rounding of the product adds is not counted."""
    return math.ceil(share * clients - 1e-9)


def _check_size(rule: TrimmedMean | Krum, clients: int, needed: int) -> None:
    if clients < needed:
        expected = _count(rule.share, clients)
        raise ValueError(
            f"aggregate={str(rule)!r} expects {expected} of a cohort's {clients} clients to send anything, for which "
            f"the cohort needs at least {needed}; give a larger cohort or a smaller share"
        )


RULES: tuple[type[Rule], ...] = (TrimmedMean, Krum, GeometricMedian, NormClip)
