"""FedDPC: keep the part of each update that is orthogonal to the last global update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import Correction, Heard
from undrift.methods.setting import Setting
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
            # What is left of a parallel update is rounding noise, which must not be scaled up.
            noise = 1e-9 if before.dtype == torch.float64 else 1e-5
            kept = after > noise * before
            factor = torch.where(kept, self.lam + before / torch.where(kept, after, 1), 0)
            residuals = tree.rows(residuals, factor)
        return residuals, server

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        return update, {"previous": update}


@dataclass(frozen=True)
class FedDPC(Algorithm):
    """The server keeps the part of each update orthogonal to the last global update, and lengthens it.

    Paper:
        Sen, Nag. FedDPC: handling data heterogeneity and partial client participation in federated learning.
    Idea:
        The part of an update along the last global update was applied already; the orthogonal part is new. Each update
        is projected onto the orthogonal complement and lengthened to ‖Δ_i‖ + λ ‖r_i‖: its length before the projection,
        and λ times that after it.
    Equations:
        Δ_i = (x − y_i)/η
        r_i = Δ_i − (⟨Δ_i, Δ⁻⟩ / ⟨Δ⁻, Δ⁻⟩) Δ⁻
        r_i ← (λ + ‖Δ_i‖ / ‖r_i‖) r_i
        Δ = mean_S r_i;  x ← x − η_g η Δ
        All of it is homogeneous in Δ: with y_i − x, which clients send, for Δ_i, the same step is x ← x + η_g Δ.
    Options:
        lam: λ, added to the factor by which a projected update is scaled; greater than −1, as the first round goes
            λ + 1 times as far as FedAvg's. The paper uses 1, and shows −0.5 to 3 (Fig. 7), where
            negative ones learn poorly.
        projection: remove the part along the last global update.
        scaling: lengthen what is left.
    Use:
        Partial participation of heterogeneous clients, at FedAvg's traffic and without any state on clients.
    Pitfalls:
        Successive global updates are orthogonal, so the model never moves in a straight line; the factor λ + 1 makes
        the first round (λ + 1) times as long as FedAvg's. An update that is nearly parallel to the last one is scaled
        up by a large factor.
    Elsewhere:
        Algorithm 1 of the paper prints the scaling ratio as 1; Eq. 3 is the right one. The paper divides each class by
        Dirichlet(α) "same as the implementation of" Yurochkin et al., whose public code balances sizes and draws again
        while a client has fewer than ten samples: `dirichlet:0.2,balanced,min=10`.
    """

    weighting: ClassVar[str] = "uniform"

    lam: float = 1.0
    projection: bool = True
    scaling: bool = True

    def __post_init__(self) -> None:
        check.number("lam", self.lam, -1, open_low=True)
        check.flag("projection", self.projection)
        check.flag("scaling", self.scaling)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Projection(self.lam, self.projection, self.scaling),)
