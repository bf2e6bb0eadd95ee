"""FedVARP: the server keeps every client's last update and uses it while the client is absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undrift.core import tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import Message, State


@dataclass(frozen=True)
class ReducedVariance(Correction):
    """v = (1/|S|) Σ_S N p_i (Δ_i − u_i) + Σ_all p_j u_j, then u_i ← Δ_i; the server steps along −ηK v.

    Δ_i = (x − y_i)/(η K_i). Every row of the cohort is replaced by its term, so that their weighted mean is the step.
    """

    def server(self, model: Tree) -> State:
        return {"mean": tree.zeros(model)}  # Σ p_j u_j

    def ledger(self, model: Tree) -> State:
        return {"direction": tree.zeros(model)}  # u_i

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, client, {"walked": at.task.steps * at.task.lr if at.walked is None else at.walked}

    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        cohort, walked, mean = heard.cohort, heard.replies["walked"], server["mean"]
        directions = tree.rows(updates, -1 / walked)
        changes = tree.sub(directions, server["ledger"]["direction"])
        terms = tree.add(tree.rows(changes, cohort.shares / (len(cohort.ids) * cohort.weights)), mean)
        return tree.scale(terms, -(cohort.weights @ walked)), {
            "mean": tree.add(mean, tree.mean(changes, cohort.shares / cohort.population)),
            "ledger": {"direction": directions},
        }


@dataclass(frozen=True)
class FedVARP(Algorithm):
    """Absent clients are represented by their last update, without bias.

    Paper:
        Jhunjhunwala, Sharma, Nagarkatti, Joshi. FedVARP: tackling the variance due to partial client participation in
        federated learning. UAI 2022.
        https://arxiv.org/abs/2207.14130
    Idea:
        Which clients happen to take part makes the mean update noisy. The server keeps the last update of every client
        and lets the cohort correct their mean, as SAGA does with samples, so that this noise vanishes.
    Equations:
        Δ_i = (x − y_i) / (η K_i)
        v = (1/|S|) Σ_S (Δ_i − u_i) + (1/N) Σ_all u_j
        x ← x − η_g η K v,  K = Σ w_i K_i;  u_i ← Δ_i for i in S,  u_j = 0 at the start
    Use:
        Small cohorts of clients that cannot keep a state, and a server that can: N models of memory.
    Pitfalls:
        It removes the noise of sampling, not drift: it converges to FedAvg's fixed point under full participation.
        Updates of clients that have been absent for long are stale. With local momentum A_i replaces K_i.
    Elsewhere:
        No code by its authors is known. Versions that keep y_i − x as it is need equal K_i and a constant rate.
    """

    weighting: ClassVar[str] = "uniform"

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (ReducedVariance(),)
