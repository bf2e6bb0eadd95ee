"""FedDyn: a dynamic regulariser that moves every client's optimum to the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import Message, State


@dataclass(frozen=True)
class DynamicRegularizer(Correction):
    """d = g − ĝ_i + α_i (y − x), then ĝ_i ← ĝ_i − α_i (y_i − x), α_i = α/(N p_i); in the limit ĝ_i = ∇f_i(x).

    The server keeps h = Σ_all p_i ĝ_i, which p_i α_i = α/N lets it follow from the updates alone.
    """

    alpha: float

    def server(self, model: Tree) -> State:
        return {"slope": tree.zeros(model)}  # h

    def client(self, model: Tree) -> State:
        return {"slope": tree.zeros(model)}  # ĝ_i

    def stiffness(self, at: At) -> Tensor:
        return self.alpha / at.task.share

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        pulled = tree.add(grad, tree.sub(at.params, at.anchor), self.stiffness(at))
        return tree.sub(pulled, client["slope"]), client

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, {"slope": tree.add(client["slope"], update, -self.stiffness(at))}, {}

    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        # (1/N) Σ_S: a sum over the cohort divided by the population
        weights = heard.cohort.weights.new_full((len(heard.cohort.ids),), 1 / heard.cohort.population)
        return updates, {"slope": tree.add(server["slope"], tree.mean(updates, weights), -self.alpha)}

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        return tree.add(update, server["slope"], -1 / self.alpha), server


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """A linear and a proximal term move the minimum of every client's loss to the global one.

    Paper:
        Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated learning based on dynamic regularization.
        ICLR 2021.
        https://arxiv.org/abs/2111.04263
    Idea:
        A client accumulates its past updates in a linear term ĝ_i, and a proximal term keeps it near the received
        model. In the limit every ĝ_i is the client's gradient, and they sum to zero: the optimum, at FedAvg's traffic.
    Equations:
        y ← y − η (g_i(y) − ĝ_i + α (y − x))
        ĝ_i ← ĝ_i − α (y_i − x)
        h ← h − (α/N) Σ_S (y_i − x);  x ← mean_S y_i − h/α
    Options:
        alpha: strength α of the proximal term; the server divides its correction by it.
    Use:
        Very heterogeneous clients that take part repeatedly, when SCAFFOLD's traffic is too much.
    Pitfalls:
        A small α makes long server steps (h/α) and can diverge with few participants; a large α slows clients. With
        weights by samples client i uses α/(N p_i), which must stay below 1/η. It fixes the server's step, so
        `server_lr` is refused.
    Elsewhere:
        fedsim halves α; fluke 0.8.1 flips the sign of h and multiplies by α twice; RickZack/GHBM flips the sign of h,
        and its gradient of α/2 ‖y − x‖² is zero, as x is not detached from y; others average h over the cohort instead
        of all clients, or lose α y. On quadratics with partial participation these diverge or converge elsewhere. The
        authors average the cohort without weights, as here, and evaluate the mean of all clients' last models; here it
        is x.
    """

    weighting: ClassVar[str] = "uniform"
    own_step: ClassVar[bool] = True

    alpha: float = 0.01

    def __post_init__(self) -> None:
        check.number("alpha", self.alpha, 0, open_low=True)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (DynamicRegularizer(self.alpha),)
