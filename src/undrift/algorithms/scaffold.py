"""SCAFFOLD: control variates remove the difference between a client's gradient and the global one."""

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
class ControlVariates(Correction):
    """d = g − c_i + c on the parameters in `names`; the rest is left alone.

    Option I: c_i⁺ = ∇f_i(x) over all of the client's samples. Option II: c_i⁺ = c_i − c + (x − y_i)/(A_i η).
    """

    names: tuple[str, ...]
    option: str

    def server(self, model: Tree) -> State:
        return {"control": tree.zeros(tree.take(model, self.names))}

    def client(self, model: Tree) -> State:
        return {"control": tree.zeros(tree.take(model, self.names))}

    def broadcast(self, server: State, model: Tree) -> Message:
        return server

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        return tree.add(tree.sub(grad, client["control"]), at.inbox["control"]), client

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        own = client["control"]
        if self.option == "I":
            slope = at.task.full_gradient(at.anchor, at.batch.buffers).gradient
            change = tree.sub(tree.take(slope, self.names), own)
        else:
            change = tree.sub(at.mean_direction(tree.take(update, self.names)), at.inbox["control"])
        return update, {"control": tree.add(own, change)}, {"change": change}

    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        # Σ_S p_i Δc_i, a sum over the cohort divided by the population: c stays the mean of all c_i
        cohort = heard.cohort
        change = tree.mean(heard.replies["change"], cohort.shares / cohort.population)
        return updates, {"control": tree.add(server["control"], change)}


@dataclass(frozen=True)
class SCAFFOLD(Algorithm):
    """Every local step is corrected by the difference between the client's gradient and the global one.

    Paper:
        Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: stochastic controlled averaging for federated
        learning. ICML 2020.
        https://arxiv.org/abs/1910.06378
    Idea:
        A client keeps the mean gradient of its last participation (its control variate), the server the mean of all of
        them. Adding the difference to every step makes the optimum a fixed point, however different clients are.
    Equations:
        y ← y − η (g_i(y) − c_i + c)
        c_i⁺ = c_i − c + (x − y_i) / (K_i η)   (option II)   or   ∇f_i(x)   (option I)
        x ← x + η_g mean_S (y_i − x);  c ← c + (1/N) Σ_S (c_i⁺ − c_i)
    Options:
        option: how a client's control is renewed: "II" from its own path, "I" by a pass over its samples at the
            received model.
    Use:
        Few, reliable, very heterogeneous clients that take part often. Option I costs a pass over the client's samples
        in every round and gives less noisy control variates.
    Pitfalls:
        Twice the traffic. Control variates of clients absent for long are stale. With local momentum ρ the number of
        steps is replaced by FedNova's ‖a_i‖₁, without which it diverges; under Adam and RMSprop the mean of the
        directions is used. Long local paths (rate times steps times curvature over about 1) break it, as with one class
        per client: `clip=1`, fewer steps or a lower rate mend that (docs/stability.md).
    Elsewhere:
        RickZack/GHBM forgets 1/N: c is a sum over clients, which with 100 of them (LeNet, CIFAR-10, one class per
        client) stays at 10 % at rate 0.01, and at 0.0001 acts as a global momentum that reaches 56 % in 1000 rounds.
        pfl-research 0.6 flips the sign of c_i; the repositories of FedDyn and FedDC divide by the rate before its
        decay; others start control variates from the model's weights, divide by epochs instead of steps, or never store
        c_i. Most of these do not converge on two quadratics.
    """

    weighting: ClassVar[str] = "uniform"

    option: str = "II"

    def __post_init__(self) -> None:
        check.choice("option", self.option, ("II", "I"))

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (ControlVariates(setting.layout.names, self.option),)
