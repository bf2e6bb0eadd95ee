"""FedCM: every local step is mixed with the mean direction of the last round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import Message, State


@dataclass(frozen=True)
class ClientMomentum(Correction):
    """d = α g + (1 − α) Δ, Δ the mean direction of the last cohort's steps; weight decay is not scaled by α."""

    alpha: float

    def server(self, model: Tree) -> State:
        return {"momentum": tree.zeros(model)}

    def broadcast(self, server: State, model: Tree) -> Message:
        return server

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        # Weight decay in both terms adds up to the full weight decay, as if the optimiser applied it.
        common = at.task.decayed(at.inbox["momentum"], at.params)
        return tree.mix(common, grad, self.alpha), client

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        if at.walked is None:  # Adam: the update does not determine its directions
            return update, client, {"direction": at.mean_direction(update)}
        return update, client, {"walked": at.walked}

    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        replies = heard.replies
        directions = tree.rows(updates, -1 / replies["walked"]) if "walked" in replies else replies["direction"]
        return updates, {"momentum": tree.mean(directions, heard.cohort.weights)}


@dataclass(frozen=True)
class FedCM(Algorithm):
    """Clients follow the mean direction of the last round, corrected by their own gradients.

    Paper:
        Xu, Wang, Wang, Yao. FedCM: federated learning with client-level momentum. 2021.
        https://arxiv.org/abs/2106.10874
    Idea:
        The server sends the mean direction of the last round's steps, and clients' own gradients make up only a
        fraction α of every step. Drift shrinks by that factor, and the direction includes clients that are absent now.
    Equations:
        y ← y − η (α g_i(y) + (1 − α) Δ + λ y),  λ the weight decay
        Δ ← Σ w_i (x − y_i) / (η K_i)
        x ← x + η_g Σ w_i (y_i − x)
    Options:
        alpha: share α of the client's own gradient in a step; 1 is FedAvg with equal weights.
    Use:
        A small fraction of many clients in every round; clients need no state.
    Pitfalls:
        The first round has no momentum and is 1/α times slower; this is intended. `lr` may be about 1/α times FedAvg's.
        Weight decay is not multiplied by α but returns in Δ, so it acts 1/α times as strongly in the long run. With
        local momentum A_i replaces K_i; with Adam and RMSprop clients send the mean of their directions, which
        doubles the upload.
    Elsewhere:
        RickZack/GHBM sends the last tensor of Δ only; several others run heavy-ball momentum on clients under this
        name.
    """

    weighting: ClassVar[str] = "uniform"

    alpha: float = 0.1

    def __post_init__(self) -> None:
        check.number("alpha", self.alpha, 0, 1, open_low=True)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (ClientMomentum(self.alpha),)
