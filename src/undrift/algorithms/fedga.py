"""FedGA: clients start from points that align their gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undrift.client.task import Task
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import Message, State


@dataclass(frozen=True)
class FreshAlignment(Correction):
    """y starts at x − β (G − G_i), G_i = ∇f_i(x) taken in a survey and G = Σ_S w_i G_i: displacements cancel."""

    beta: float

    def server(self, model: Tree) -> State:
        return {"gradient": tree.zeros(model)}

    def survey(self, anchor: Tree, client: State, task: Task, buffers: Tree) -> tuple[Message, State]:
        own = {"gradient": task.full_gradient(anchor, buffers).gradient}
        return own, own  # kept until training begins

    def digest(self, server: State, heard: Heard) -> State:
        return {"gradient": tree.mean(heard.replies["gradient"], heard.cohort.weights)}

    def broadcast(self, server: State, model: Tree) -> Message:
        return server

    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        return tree.add(start, tree.sub(client["gradient"], at.inbox["gradient"]), self.beta), {}


@dataclass(frozen=True)
class StaleAlignment(Correction):
    """y starts at x + v_i, v_i = −β (ū − u_i), u_i = (y_{i,0} − y_i)/(A_i η) of the client's last participation and ū
    their mean in the last round; displacements do not cancel, so they are taken out of the update.
    """

    beta: float

    def server(self, model: Tree) -> State:
        return {"direction": tree.zeros(model)}

    def client(self, model: Tree) -> State:
        return {"direction": tree.zeros(model), "seen": next(iter(model.values())).new_zeros(())}

    def broadcast(self, server: State, model: Tree) -> Message:
        return server

    def displacement(self, client: State, at: At) -> Tree:
        return tree.scale(tree.sub(client["direction"], at.inbox["direction"]), self.beta * client["seen"])

    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        return tree.add(start, self.displacement(client, at)), client

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        update = tree.sub(update, self.displacement(client, at))
        mine = {"direction": at.mean_direction(update), "seen": torch.ones_like(client["seen"])}
        return update, mine, {"walked": at.walked}

    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        weights = -heard.cohort.weights / heard.replies["walked"]
        return updates, {"direction": tree.mean(updates, weights)}


@dataclass(frozen=True)
class FedGA(Algorithm):
    """Every client starts from a displaced point, so that its steps align the clients' gradients.

    Paper:
        Dandi, Barba, Jaggi. Implicit gradient alignment in distributed and federated learning. AAAI 2022.
        https://arxiv.org/abs/2106.13897
    Idea:
        Starting from x − β (G − G_i) makes the average step descend f + (β/2) Σ w_i ‖∇f_i − ∇f‖² to first order:
        solutions on which clients agree. Local steps have the opposite effect, which β = η(K−1)/2 cancels.
    Equations:
        G_i = ∇f_i(x), sent up;  G = Σ_S w_i G_i, sent down
        y ← x − β (G − G_i);  y ← y − η g_i(y)  for K_i steps
        x ← x + η_g Σ_S w_i (y_i − x)
        form "stale":  u_i = (y_{i,0} − y_i)/(K_i η) of the client's last participation, ū its mean in the last round,
        y ← x − β (ū − u_i)  (first participation: x);  x ← x + η_g Σ_S w_i (y_i − y_{i,0})
    Options:
        beta: how far a client's start is displaced, β; 0 is FedAvg.
        form: gradients for the displacement: "fresh", by an exchange before training, or "stale", from the last
            participation.
    Use:
        "fresh" as in the paper: two exchanges and a pass over the samples in every round. "stale" has one exchange, no
        extra pass, and one model of memory per client.
    Pitfalls:
        The fixed point is not the optimum, by design. β is not decayed with the rate. "stale" computes a gradient from
        the displacement, which is impossible under Adam and RMSprop.
    Elsewhere:
        The authors' code takes fresh gradients and decays β with the rate. Comparisons that count no extra pass for
        FedGA use something like "stale".
    """

    beta: float = 0.01
    form: str = "fresh"

    def __post_init__(self) -> None:
        check.number("beta", self.beta, 0)
        check.choice("form", self.form, ("fresh", "stale"))

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        if self.form == "fresh":
            return (FreshAlignment(self.beta),)
        if setting.optimizer.gain(torch.ones(())) is None:
            raise ValueError(
                f"FedGA(form='stale') needs steps that are linear in the gradient, "
                f"got {type(setting.optimizer).__name__}; use optimizer='sgd' or form='fresh'"
            )
        return (StaleAlignment(self.beta),)
