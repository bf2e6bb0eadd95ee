"""LoSAC: the estimate of everybody's gradient is refreshed at every local step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.client.learner import Batch
from undrift.client.task import Task
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm, Setting
from undrift.methods.correction import At, Correction, Heard
from undrift.protocol import Message, State


@dataclass(frozen=True)
class LocalAverageControl(Correction):
    """d = q − s_m + Q, then Q ← Q + p_i r_m (q − s_m) and s_m ← q: SAGA across clients and their partitions.

    q is the gradient of partition m, s_m the one of its last visit, r_m its part of the client's samples (1/M when
    they are of one size). Q starts at the server's Φ = Σ_i p_i Σ_m r_m s_m, which thus stays up to date.
    """

    partitions: int
    population: int

    def server(self, model: Tree) -> State:
        return {"estimate": tree.zeros(model)}

    def client(self, model: Tree) -> State:
        table = {k: v.new_zeros(self.partitions, *v.shape) for k, v in model.items()}  # s_m
        return {"table": table, "turn": next(iter(model.values())).new_zeros((), dtype=torch.int64)}

    def broadcast(self, server: State, model: Tree) -> Message:
        return server

    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        return start, client | {"estimate": at.inbox["estimate"]}

    def pick(self, batch: Batch, client: State, at: At) -> Batch:
        """Partition m: every M-th of the client's samples from the m-th on. With a single one, the batch as it is."""
        if self.partitions == 1:
            return batch
        task, everything = at.task, torch.cat([rows for rows, _ in at.task.everything])
        turns = torch.arange(-(-len(everything) // self.partitions), device=everything.device)
        place = client["turn"] + self._partitions(task) * turns
        weight = (place < task.samples).to(task.samples.dtype)
        return task.select(everything[place.clamp_max(len(everything) - 1)], weight, batch.step, batch.buffers)

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        turn, share = client["turn"], at.task.share / self.population
        if self.partitions > 1:
            assert at.batch.weight is not None
            share = share * at.batch.weight.sum() / at.task.samples
        news = {k: g - client["table"][k].index_select(0, turn.view(1))[0] for k, g in grad.items()}
        visited = torch.arange(self.partitions, device=turn.device) == turn  # [M]
        return tree.add(news, client["estimate"]), {
            "table": {k: torch.where(visited.view(-1, *[1] * g.ndim), g, client["table"][k]) for k, g in grad.items()},
            "turn": (turn + 1) % self._partitions(at.task),
            "estimate": tree.add(client["estimate"], news, share),
        }

    def _partitions(self, task: Task) -> Tensor:
        """M_i: a client with fewer samples than partitions has one sample in each."""
        return task.samples.to(torch.int64).clamp_max(self.partitions)

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        change = tree.sub(client["estimate"], at.inbox["estimate"])
        return update, {k: client[k] for k in ("table", "turn")}, {"change": change}

    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        changes = heard.replies["change"]
        return updates, {"estimate": {k: v + changes[k].sum(0) for k, v in server["estimate"].items()}}


@dataclass(frozen=True)
class LoSAC(Algorithm):
    """LoSAC (reconstructed): every local step refreshes the client's estimate of everybody's gradient.

    Paper:
        Chen, Wang, Yao, Li, Jin, Yang. LoSAC: an efficient local stochastic average control method for federated
        optimization. ACM TKDD 2023. Reconstructed from its abstract and from descriptions in other papers; results
        should be labelled so.
    Idea:
        SCAFFOLD's estimate of the global gradient stands still while a client trains. Here a client puts its newest
        gradients into the estimate after every step, from a table with one gradient for each part of its samples.
    Equations:
        Q ← Φ;  for every step, m the next of M_i partitions:
            q = g_{i,m}(y);  y ← y − η (q − s_{i,m} + Q)
            Q ← Q + (p_i / M_i)(q − s_{i,m});  s_{i,m} ← q
        x ← x + η_g Σ_S w_i (y_i − x);  Φ ← Φ + Σ_S (Q_i − Φ)
    Use:
        Few clients that take part often, when SCAFFOLD's controls age too fast within a round.
    Pitfalls:
        Twice the traffic, and `partitions` models of memory per client. With one partition the gradient of a step is
        that of its batch; with more, a step uses its whole partition, and `batch_size` sets the number of steps only.
        Partitions of unequal size count by their samples. Duplicating all clients changes the path, since 1/N is in
        the local refresh.
    Elsewhere:
        No public code is known.
    """

    partitions: int = 1

    def __post_init__(self) -> None:
        check.integer("partitions", self.partitions, 1)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (LocalAverageControl(self.partitions, setting.population),)
