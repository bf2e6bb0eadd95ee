"""LoSAC: the estimate of the global gradient is updated at every local step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.client.task import Task
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import Message, State


@dataclass(frozen=True)
class LocalAverageControl(Correction):
    """d = q − s_m + Q, then Q ← Q + p_i r_m (q − s_m) and s_m ← q: SAGA across clients and their partitions.

    q is the gradient of partition m, s_m its previous value, r_m its fraction of the client's samples (1/M when
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

    def locate(self, at: At, client: State) -> At:
        """On partition m, every M-th of the client's samples from the m-th on; a single one is the batch as it is."""
        if self.partitions == 1:
            return at
        task, batch, everything = at.task, at.batch, torch.cat([rows for rows, _ in at.task.everything])
        turns = torch.arange(-(-len(everything) // self.partitions), device=everything.device)
        place = client["turn"] + self._partitions(task) * turns
        weight = (place < task.samples).to(task.samples.dtype)
        rows = everything[place.clamp_max(len(everything) - 1)]
        return at._replace(batch=task.select(rows, weight, batch.step, batch.buffers))

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        turn, share = client["turn"], at.task.share / self.population
        if self.partitions > 1:
            assert at.batch.weight is not None
            share = share * at.batch.weight.sum() / at.task.samples
        change = {k: g - client["table"][k].index_select(0, turn.view(1))[0] for k, g in grad.items()}
        visited = torch.arange(self.partitions, device=turn.device) == turn  # [M]
        return tree.add(change, client["estimate"]), {
            "table": {k: torch.where(visited.view(-1, *[1] * g.ndim), g, client["table"][k]) for k, g in grad.items()},
            "turn": (turn + 1) % self._partitions(at.task),
            "estimate": tree.add(client["estimate"], change, share),
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
    """LoSAC (reconstructed): every local step updates the client's estimate of the global gradient.

    Paper:
        Chen, Wang, Yao, Li, Jin, Yang. LoSAC: an efficient local stochastic average control method for federated
        optimization. ACM TKDD 2023. Reconstructed from its abstract and from descriptions in other papers; results
        should be labelled so.
        https://arxiv.org/abs/2112.07839
    Idea:
        SCAFFOLD's estimate of the global gradient stays fixed while a client trains. Here a client updates the estimate
        with its newest gradient after every step, from a table with one gradient for each partition of its samples.
    Equations:
        Q ← Φ;  for every step, m the next of M_i partitions:
            q = g_{i,m}(y);  y ← y − η (q − s_{i,m} + Q)
            Q ← Q + (p_i / M_i)(q − s_{i,m});  s_{i,m} ← q
        x ← x + η_g Σ_S w_i (y_i − x);  Φ ← Φ + Σ_S (Q_i − Φ)
    Options:
        partitions: parts of a client's samples, for each of which it keeps a gradient.
    Use:
        Few clients that take part often, when SCAFFOLD's control variates become stale within a round.
    Pitfalls:
        Twice the traffic, and `partitions` models of memory per client. With one partition the gradient of a step is
        that of its batch; with more, a step uses its whole partition, and `batch_size` sets the number of steps only.
        Partitions of unequal size are weighted by their samples. Duplicating all clients changes the trajectory, since
        the local update contains 1/N.
    Elsewhere:
        No public code is known.
    """

    partitions: int = 1

    def __post_init__(self) -> None:
        check.integer("partitions", self.partitions, 1)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (LocalAverageControl(self.partitions, setting.population),)
