"""FedDPC: keep the part of each update that is new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm, Setting
from undrift.methods.correction import Correction, Heard
from undrift.protocol import State


@dataclass(frozen=True)
class Projection(Correction):
    """r_i = Δ_i − (⟨Δ_i, Δ⁻⟩/⟨Δ⁻, Δ⁻⟩) Δ⁻, then r_i ← (λ + ‖Δ_i‖/‖r_i‖) r_i (Eq. 3); Δ⁻ is the last global update."""

    lam: float
    projection: bool
    scaling: bool

    def server(self, model: Tree) -> State:
        return {"previous": tree.zeros(model)}

    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        previous, residuals = server["previous"], updates
        if self.projection:
            size = tree.dot(previous, previous)
            along = tree.dots(updates, previous) / torch.where(size > 0, size, 1)  # [n]
            residuals = {k: u - along.view(-1, *[1] * previous[k].ndim) * previous[k] for k, u in updates.items()}
        if self.scaling:
            before, after = tree.squares(updates).sqrt(), tree.squares(residuals).sqrt()  # [n]
            # What is left of a parallel update is rounding noise; scaling it up would make the model wander.
            noise = 1e-9 if before.dtype == torch.float64 else 1e-5
            kept = after > noise * before
            factor = torch.where(kept, self.lam + before / torch.where(kept, after, 1), 0)
            residuals = tree.rows(residuals, factor)
        return residuals, server

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        return update, {"previous": update}


@dataclass(frozen=True)
class FedDPC(Algorithm):
    """The server keeps the part of each update across the previous global update, grown to size.

    Paper:
        Sen, Nag. FedDPC: handling data heterogeneity and partial client participation in federated learning.
    Idea:
        What clients repeat of the last global update was applied already; what is across it is news. Each update is
        projected onto that complement and grown back to its length, so that one client's size does not drown another's
        direction.
    Equations:
        Δ_i = (x − y_i)/η
        r_i = Δ_i − (⟨Δ_i, Δ⁻⟩ / ⟨Δ⁻, Δ⁻⟩) Δ⁻
        r_i ← (λ + ‖Δ_i‖ / ‖r_i‖) r_i
        Δ = mean_S r_i;  x ← x − η_g η Δ
    Use:
        Partial participation with unequal clients, at FedAvg's traffic and without any state on clients.
    Pitfalls:
        Successive global updates are orthogonal, so the model never walks a straight line; the factor λ + 1 makes the
        first round (λ + 1) times as long as FedAvg's.
    Elsewhere:
        Algorithm 1 of the paper prints the scaling ratio as 1; Eq. 3 is the right one.
    """

    weighting: ClassVar[str] = "uniform"

    lam: float = 1.0
    projection: bool = True
    scaling: bool = True

    def __post_init__(self) -> None:
        check.number("lam", self.lam, 0)
        check.flag("projection", self.projection)
        check.flag("scaling", self.scaling)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Projection(self.lam, self.projection, self.scaling),)
