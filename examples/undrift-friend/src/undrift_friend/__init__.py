"""FedFriend: an algorithm for undrift in a package of its own."""

from __future__ import annotations

from dataclasses import dataclass

from undrift import Algorithm, check, tree
from undrift.algorithm import Setting
from undrift.correction import At, Correction
from undrift.protocol import Message, State
from undrift.tree import Tree


@dataclass(frozen=True)
class Friend(Correction):
    """d = g + μ (y − ½ (x + y_last)): pull towards the midpoint of the server's model and the client's last one."""

    mu: float

    def client(self, model: Tree) -> State:
        return {"last": model}

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        middle = tree.mix(at.anchor, client["last"], 0.5)
        return tree.add(grad, tree.sub(at.params, middle), self.mu), client

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, {"last": at.params}, {}


@dataclass(frozen=True)
class FedFriend(Algorithm):
    """Clients stay near their own last model.

    Paper:
        None: an example of how to add an algorithm.
    Idea:
        FedProx pulls a client back to the server's model only. Here half of the pull is towards the model that the
        client trained last time.
    Equations:
        y ← y − η (g_i(y) + μ (y − ½ (x + y_i^last)))
        x ← x + η_g Σ w_i (y_i − x)
    Options:
        mu: strength μ of the pull; 0 is FedAvg.
    Use:
        As a template.
    Pitfalls:
        The fixed point is not the optimum.
    Elsewhere:
        Nowhere.
    """

    mu: float = 0.1

    def __post_init__(self) -> None:
        check.number("mu", self.mu, 0)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Friend(self.mu),)
