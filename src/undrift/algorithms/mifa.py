"""MIFA: the server steps along everybody's last update, whoever is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undrift.core import tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm, Setting
from undrift.methods.correction import At, Correction, Heard
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
        news = tree.sub(directions, server["ledger"]["direction"])
        change = tree.mean(news, heard.cohort.shares / heard.cohort.population)
        return updates, {"mean": tree.add(server["mean"], change), "ledger": {"direction": directions}}

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        return tree.scale(server["mean"], -(heard.cohort.weights @ heard.replies["walked"])), server


@dataclass(frozen=True)
class MIFA(Algorithm):
    """Absent clients take part with their last update.

    Paper:
        Gu, Huang, Zhang, Huang. Fast federated learning in the presence of arbitrary device unavailability.
        NeurIPS 2021.
    Idea:
        When clients come and go as they please, the mean over those present is biased towards the ones that are there
        often. The server keeps everybody's last update and always averages over all, as SAG does with samples.
    Equations:
        u_i ← (x − y_i) / (η K_i)  for i in S,  u_j = 0 at the start
        x ← x − η_g η K (1/N) Σ_all u_j,  K = Σ w_i K_i
    Use:
        Clients whose availability follows no rule, even one that depends on their data; N models of memory on the
        server.
    Pitfalls:
        Until everybody was heard once, steps are too short by the part that was. It ends at FedAvg's point for full
        participation, not at the optimum; stale updates want a small `lr`. With local momentum A_i takes the place of
        K_i.
    Elsewhere:
        The paper has every client report once before the first round.
    """

    weighting: ClassVar[str] = "uniform"

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (LatestUpdates(),)
