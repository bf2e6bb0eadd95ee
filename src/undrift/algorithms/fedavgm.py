"""FedAvgM: momentum on the server."""

from __future__ import annotations

from dataclasses import dataclass

from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import State


@dataclass(frozen=True)
class ServerMomentum(Correction):
    """v ← β v + Δ; the server steps along v (heavy ball) or Δ + β v (Nesterov), Δ being the mean update."""

    beta: float
    nesterov: bool

    def server(self, model: Tree) -> State:
        return {"velocity": tree.zeros(model)}

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        velocity = tree.add(update, server["velocity"], self.beta)
        step = tree.add(update, velocity, self.beta) if self.nesterov else velocity
        return step, {"velocity": velocity}


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """FedAvg with momentum in the server's steps.

    Paper:
        Hsu, Qi, Brown. Measuring the effects of non-identical data distribution for federated visual classification.
        2019.
        https://arxiv.org/abs/1909.06335
    Idea:
        Different cohorts pull the model in different directions; a running sum of their mean updates keeps what they
        have in common. Clients train as in FedAvg.
    Equations:
        Δ = Σ w_i (y_i − x)
        v ← β v + Δ
        x ← x + η_g v;  nesterov: x ← x + η_g (Δ + β v)
    Options:
        beta: momentum β of the server's steps; 0 is FedAvg.
        nesterov: Nesterov's form of the momentum.
    Use:
        Small cohorts of heterogeneous clients, at FedAvg's traffic and without any state on clients.
    Pitfalls:
        v accumulates: it grows to Δ / (1 − β), so that β = 0.99 needs a `server_lr` of 0.1 or less. The fixed point is
        FedAvg's, not the optimum.
    Elsewhere:
        Three conventions share the name: this one, Nesterov's, and the averaged v ← β v + (1 − β) Δ, which is this one
        with η_g (1 − β). fluke 0.8.1 loses the first round.
    """

    beta: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        check.number("beta", self.beta, 0, 1, open_high=True)
        check.flag("nesterov", self.nesterov)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (ServerMomentum(self.beta, self.nesterov),)
