"""FedExP: the server's step grows where clients disagree."""

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
class Extrapolation(Correction):
    """η_g = max(1, Σ w_i ‖Δ_i‖² / (2 (‖Σ w_i Δ_i‖² + ε))); evaluation uses the mean of the last two iterates."""

    eps: float

    def server(self, model: Tree) -> State:
        return {"previous": model}

    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        weights = heard.cohort.weights
        mean = tree.mean(updates, weights)
        size = tree.dot(mean, mean) + self.eps
        ratio = weights @ tree.squares(updates) / (2 * size)
        # Where the mean is zero, so is the step, whatever the factor.
        return tree.scale(updates, torch.where(size > 0, ratio, 1).clamp_min(1)), server

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        # The initial model is no iterate: after the first round x¹ is evaluated alone.
        first = 1.0 * (heard.cohort.round == 1)
        return update, {"previous": tree.add(heard.model, update, first)}

    def present(self, model: Tree, server: State) -> Tree:
        return tree.mix(model, server["previous"], 0.5)


@dataclass(frozen=True)
class FedExP(Algorithm):
    """The server extrapolates beyond the average when clients' updates point in different directions.

    Paper:
        Jhunjhunwala, Wang, Joshi. FedExP: speeding up federated averaging via extrapolation. ICLR 2023.
        https://arxiv.org/abs/2301.09604
    Idea:
        Projection onto several sets converges faster when it overshoots the mean of the projections; averaging clients
        is similar. The more their updates cancel, the longer the server's step, computed from the updates themselves.
    Equations:
        Δ_i = y_i − x,  Δ = Σ w_i Δ_i
        η_g = max(1, Σ w_i ‖Δ_i‖² / (2 (‖Δ‖² + ε)))
        x ← x + η_g Δ
        evaluated, and `run.parameters`: (x^t + x^{t−1})/2, x¹ alone after the first round; training goes on from x^t
    Options:
        eps: ε, which bounds the server's step when updates cancel; in the unit of a squared update.
    Use:
        Large models that can fit all clients at once; no server rate to tune.
    Pitfalls:
        Near the end Δ vanishes while different clients' Δ_i do not, so η_g approaches Σ w_i ‖Δ_i‖² / (2 ε): with a
        small `eps` the model oscillates. ε has the unit of a squared update and should shrink with `lr`.
    Elsewhere:
        The authors' code multiplies ε by the size of the cohort and by the squared decay of the rate; with the product
        as `eps`, numbers are the same.
    """

    weighting: ClassVar[str] = "uniform"
    own_step: ClassVar[bool] = True

    eps: float = 1e-3

    def __post_init__(self) -> None:
        check.number("eps", self.eps, 0)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Extrapolation(self.eps),)
