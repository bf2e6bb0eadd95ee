"""MIFA: the server steps along the mean of all clients' last updates, whoever takes part."""

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
class LatestUpdates(Correction):
    """u_i ← (x − y_i)/(η K_i) for the cohort; the server steps along −ηK Σ_all p_j u_j."""

    def server(self, model: Tree) -> State:
        return {"mean": tree.zeros(model)}  # Σ p_j u_j

    def ledger(self, model: Tree) -> State:
        return {"direction": tree.zeros(model)}  # u_i

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, client, {"walked": at.task.steps * at.task.lr if at.walked is None else at.walked}

    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        directions = tree.rows(updates, -1 / heard.replies["walked"])
        changes = tree.sub(directions, server["ledger"]["direction"])
        change = tree.mean(changes, heard.cohort.shares / heard.cohort.population)
        return updates, {"mean": tree.add(server["mean"], change), "ledger": {"direction": directions}}

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        return tree.scale(server["mean"], -(heard.cohort.weights @ heard.replies["walked"])), server


@dataclass(frozen=True)
class MIFA(Algorithm):
    """Absent clients are represented by their last update.

    Paper:
        Gu, Huang, Zhang, Huang. Fast federated learning in the presence of arbitrary device unavailability.
        NeurIPS 2021.
        https://arxiv.org/abs/2106.04159
    Idea:
        When availability is arbitrary, the mean over participants is biased towards clients that are available often.
        The server keeps every client's last update and always averages over all of them, as SAG does with samples.
    Equations:
        u_i ← (x − y_i) / (η K_i)  for i in S,  u_j = 0 at the start
        x ← x − η_g η K (1/N) Σ_all u_j,  K = Σ w_i K_i
    Use:
        Clients whose availability follows no rule, even one that depends on their data; N models of memory on the
        server.
    Pitfalls:
        Until every client has taken part once, steps are too short: by the fraction of clients seen so far. It
        converges to FedAvg's fixed point under full participation, not to the optimum; stale updates need a small `lr`.
        With local momentum A_i replaces K_i.
    Elsewhere:
        The paper has every client report once before the first round.
    """

    weighting: ClassVar[str] = "uniform"

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (LatestUpdates(),)
