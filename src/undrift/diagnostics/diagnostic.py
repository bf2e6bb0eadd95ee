"""What a diagnostic is, and what it sees of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import torch
from torch import Tensor

from undrift.client.task import Observation
from undrift.core import layerwise, tree
from undrift.core.layerwise import Layers
from undrift.core.tree import Nest, Tree


class Gradient(StrEnum):
    """Further gradients at the server's model x, which clients compute for diagnostics only."""

    FULL = "full"  # ∇f_i(x), of all of a client's samples
    BATCH = "batch"  # g_i(x), of the batch of its first local step
    PENALTY = "penalty"  # ρ_i(x) = mean over that batch of ℓ ∇ℓ


@dataclass(frozen=True)
class Seen:
    """A round of one run, as tensors: of clients stacked [n, ...], p_i their weights in the server's mean."""

    layers: Layers
    weights: Tensor  # p_i
    reports: Nest  # what clients observed of their training, by `Observation`
    gradients: Nest  # by `Gradient`
    step: Tree  # the server's model after the round minus that before
    previous: Tree  # the same of the last round; empty where nobody asked

    @property
    def updates(self) -> Tree:
        """Δ_i = y_i − x: the model a client has trained minus the one it received."""
        found: Tree = self.reports[Observation.DISPLACEMENT]
        return found

    @cached_property
    def mean_update(self) -> Tree:
        return tree.mean(self.updates, self.weights)

    @cached_property
    def mean_update_norm(self) -> Tensor:
        return layerwise.norms(self.mean_update, self.layers)

    @cached_property
    def previous_norm(self) -> Tensor:
        return layerwise.norms(self.previous, self.layers)

    @cached_property
    def update_norms(self) -> Tensor:
        return layerwise.row_norms(self.updates, self.layers)

    @cached_property
    def mean_gradient(self) -> Tree:
        """∇f(x) = Σ p_i ∇f_i(x), over the cohort."""
        return tree.mean(self.gradients[Gradient.FULL], self.weights)

    @cached_property
    def mean_gradient_norm(self) -> Tensor:
        return layerwise.norms(self.mean_gradient, self.layers)

    @cached_property
    def mean_of_update_norms(self) -> Tensor:
        return self.mean(self.update_norms)

    def mean(self, figures: Tensor) -> Tensor:
        """Σ p_i over clients [n, 1 + L]."""
        return (self.weights[:, None] * figures).sum(0)

    def mean_cosine(self, cosines: Tensor) -> Tensor:
        """The same over clients that have a direction: of others the cosine is NaN."""
        weighted = self.weights[:, None] * cosines
        return weighted.nansum(0) / self.mean(weighted == weighted)  # NaN is not equal to itself

    def spread(self, rows: Tree, centre: Tree) -> Tensor:
        """Σ p_i ‖row_i − centre‖² [1 + L]."""
        return self.mean(layerwise.row_squares(tree.sub(rows, centre), self.layers))


@dataclass(frozen=True)
class Diagnostic:
    """A figure of a round, of the whole model and of every layer.

    `measure` is pure, tensor operations only, so that it is part of a captured or compiled round; it returns a row for
    each of its statistics, the whole model first: [statistics, 1 + L].
    """

    name: str
    meaning: str
    statistics: tuple[str, ...]
    measure: Callable[[Seen], Tensor]
    reports: frozenset[Observation] = frozenset()
    gradients: frozenset[Gradient] = frozenset()
    previous: bool = False  # whether it needs the server's last step
    one_model: bool = False  # whether it has no meaning where the server keeps several


def cosine(product: Tensor, norm: Tensor, other: Tensor) -> Tensor:
    """NaN where one of the two has no direction."""
    return (product / (norm * other)).clamp(-1, 1)


def lowest(figures: Tensor) -> Tensor:
    """Over clients; NaN where none has a figure."""
    found = figures.nan_to_num(nan=torch.inf).amin(0)
    return found.masked_fill(found.isinf(), torch.nan)
