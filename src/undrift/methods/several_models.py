"""Several global models, grouped on the server and each accelerated by its own moments (MA-FSVRG, GA-FSVRG).

A round has three exchanges. `CompareModels`: clients send their gradients at every model and say which one fits best.
`TrainPreferred`: each trains the model it prefers as in FSVRG, and the server groups what comes back: trained models
(MA) or the gradients at them (GA). `AccelerateModels`: gradients at the new models update the moments. Until round T
there is one model, the same in all places, and no grouping.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from undrift.client.task import Task
from undrift.core import tree
from undrift.core.random import Key
from undrift.core.tree import Tree
from undrift.methods.averaging import Averaging, Train, mean_buffers
from undrift.methods.correction import Heard
from undrift.methods.grouping import Plane, lloyd, plus_plus
from undrift.methods.variance_reduction import VarianceReduction
from undrift.protocol import Answer, Cohort, Mail, Message, Phase, State

_EPS = 1e-8


@dataclass(frozen=True)
class Acceleration:
    """m ← β₁ m + (1 − β₁) a;  v ← β₂ v + (1 − β₂) a²;  w ← w − α₀ √(1 − β₂^r) m / (√v + ε) (Eq. 62–64)."""

    beta1: float
    beta2: float
    alpha0: float
    printed: bool  # with the further factor (1 − β₁)/√(1 − β₂) of Eq. 64
    eps_in_root: bool  # √(v + ε) instead of √v + ε
    first_rounds: bool  # also in rounds r ≤ T

    def step(self, models: Tree, gradients: Tree, moments: State, number: int) -> tuple[Tree, State]:
        """The step and the new moments; `number` counts the steps from 1."""
        first = tree.mix(gradients, moments["first"], self.beta1)
        second = tree.mix({k: a.square() for k, a in gradients.items()}, moments["second"], self.beta2)
        rate = self.alpha0 * math.sqrt(1 - self.beta2**number)
        if self.printed:
            rate *= (1 - self.beta1) / math.sqrt(1 - self.beta2)
        direction = {k: m / self._root(second[k]) for k, m in first.items()}
        return tree.add(models, direction, -rate), {"first": first, "second": second}

    def _root(self, second: Tensor) -> Tensor:
        return (second + _EPS).sqrt() if self.eps_in_root else second.sqrt() + _EPS


@dataclass(frozen=True)
class Grouping:
    """How models are made of what clients send."""

    by_gradient: bool  # GA: of their gradients at the models they have trained; else of these models
    lr: float | None  # rate of GA's step; None: the mean of the clients' own
    centred_starts: bool  # centres start at U^T (ŵ_c − z̄); else at U^T ŵ_c, as printed (Eq. 39, 53)
    scale_twice: bool  # GA's step is multiplied by A twice, as printed (Eq. 57 and 60)


@dataclass(frozen=True)
class SeveralModels:
    """`count` models, stacked [G, ...], of which only the first is trained until round `threshold`.

    The others are the same until then, or wait as they were drawn.
    """

    training: Averaging  # how a client trains one of them: FSVRG
    reduction: VarianceReduction  # its correction
    acceleration: Acceleration | None
    count: int  # G
    threshold: int  # T
    grouping: Grouping
    seed: int
    draw: Callable[[Key], Tree] | None = field(default=None, compare=False)  # where all models but the first begin

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        phases = (CompareModels(self), TrainPreferred(self))
        return (*phases, AccelerateModels(self)) if self.acceleration else phases

    @cached_property
    def personal(self) -> Phase:
        return PersonalModel(self)

    def server(self, model: Tree, buffers: Tree) -> State:
        models = self.spread({k: v[None] for k, v in model.items()})
        if self.draw is not None:
            device = next(iter(model.values())).device
            keys = [Key(self.seed, 0, torch.tensor(number, device=device)) for number in range(1, self.count)]
            models = tree.stack([model, *map(self.draw, keys)])
        votes = torch.zeros(self.count, dtype=torch.int64, device=next(iter(model.values())).device)
        state: State = {"models": models, "votes": votes, self.key: self.reduction.server(models)}
        if self.acceleration:
            state["moments"] = {"first": tree.zeros(models), "second": tree.zeros(models)}
        if buffers and self.training.buffer_policy == "averaged":
            state["buffers"] = buffers  # one set for all models
        return state

    def client(self, model: Tree, buffers: Tree) -> State:
        return self.training.client(model, buffers)

    def ledger(self, model: Tree) -> State:
        """The model a client preferred at its last participation, and what FSVRG remembers."""
        choice = torch.zeros((), dtype=torch.int64, device=next(iter(model.values())).device)
        return {"choice": choice} | self.training.ledger(model)

    def models(self, server: State) -> list[Tree]:
        """Ordered by how many clients of the last cohort prefer them."""
        order = server["votes"].argsort(descending=True, stable=True).tolist()
        return [tree.row(server["models"], c) for c in order]

    def presented(self, server: State) -> Tree:
        return self.models(server)[0]

    def buffers(self, server: State) -> Tree:
        buffers: Tree = server.get("buffers", {})
        return buffers

    # shared by the phases

    @property
    def key(self) -> str:
        """The name under which states and messages hold what is the correction's."""
        return self.reduction.key

    def single(self, round: int) -> bool:
        return round <= self.threshold

    def current(self, stacked: Tree, round: int) -> Tree:
        """What a round works with: the one model [1, ...], or all [G, ...]."""
        return tree.row(stacked, slice(1)) if self.single(round) else stacked

    def spread(self, stacked: Tree) -> Tree:
        """[1, ...] or [G, ...] as [G, ...]."""
        return {k: v.expand(self.count, *v.shape[1:]) for k, v in stacked.items()}

    def kept(self, before: Tree, now: Tree) -> Tree:
        """[1, ...] or [G, ...] as [G, ...]: what is now the one model's is all models', unless these wait as drawn."""
        if self.draw is not None and len(next(iter(now.values()))) < self.count:
            return tree.concat([now, tree.row(before, slice(1, None))])
        return self.spread(now)

    def accelerates(self, round: int) -> bool:
        return self.acceleration is not None and (self.acceleration.first_rounds or not self.single(round))

    def broadcast(self, server: State, round: int) -> Mail:
        return Mail({"models": self.current(server["models"], round)} | _buffers(server))

    def examine(self, inbox: Message, client: State, task: Task) -> tuple[Tree, Tensor]:
        """A client's gradients [G, ...] and objectives [G] at all models that it received."""
        gradients, objectives = [], []
        for c in range(len(next(iter(inbox["models"].values())))):
            model, buffers = self.training.received(_with_one_model(inbox, c), client, task)
            slope = task.full_gradient(model, buffers)
            gradients.append(slope.gradient)
            objectives.append(slope.loss + task.weight_decay / 2 * tree.dot(model, model))
        return tree.stack(gradients), torch.stack(objectives)


@dataclass(frozen=True)
class CompareModels:
    """Down: all models. Up: ∇f_i at each and, once there are several, argmin_c f_i(ŵ_c) (Eq. 17–18)."""

    method: SeveralModels

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return self.method.broadcast(server, int(cohort.round))

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        method = self.method
        gradients, objectives = method.examine(inbox, client, task)
        found = method.reduction.features.count(_with_one_model(inbox, 0)["model"], task)
        preference = {} if method.single(int(task.key.round)) else {"preference": objectives.argmin()}
        reply = {"gradient": gradients} | method.reduction.features.sent(found) | preference
        return Answer(reply, client | ({method.key: found} if found else {}), {})

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        method, ledger = self.method, server["ledger"]
        if method.single(int(cohort.round)):
            ledger = ledger | {"choice": torch.zeros_like(ledger["choice"])}
        else:
            ledger = ledger | {"choice": replies["preference"]}
            server = server | {"votes": replies["preference"].bincount(minlength=method.count)}
        before = server[method.key] | ({"ledger": ledger[method.key]} if method.key in ledger else {})
        after = method.reduction.digest(before, Heard(replies, server["models"], cohort))
        if "ledger" in after:
            ledger = ledger | {method.key: after.pop("ledger")}
        return server | {method.key: after | {"gradient": method.spread(after["gradient"])}, "ledger": ledger}


@dataclass(frozen=True)
class TrainPreferred:
    """Down: to each client the mean gradient at the model it prefers, which it still has. Up: its update or, for GA,
    ∇f_i(w_i)."""

    method: SeveralModels

    def ask(self, server: State, cohort: Cohort) -> Mail:
        method, choice = self.method, server["ledger"]["choice"]
        correction = method.reduction.broadcast(server[method.key], server["models"])
        each = tree.repeat(tree.drop(correction, ["gradient"]), len(choice))
        each["gradient"] = tree.row(correction["gradient"], choice)
        own = {"model": tree.row(server["models"], choice), method.key: each}
        return Mail(_buffers(server), own, known=("model", "buffers"))

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        method = self.method
        trained = Train(method.training).answer(inbox, client, task)
        if not method.grouping.by_gradient or method.single(int(task.key.round)):
            return trained
        model, buffers = method.training.received(inbox, client, task)
        reply: Message = tree.drop(trained.reply, ["update"])
        reply["slope"] = task.full_gradient(tree.add(model, trained.reply["update"]), buffers).gradient
        if method.grouping.lr is None:
            reply["rate"] = task.lr / task.samples
        return trained._replace(reply=reply)

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        method = self.method
        models = method.current(server["models"], int(cohort.round))
        if method.single(int(cohort.round)):
            change = {k: v[None] for k, v in tree.mean(replies["update"], cohort.weights).items()}
        elif method.grouping.by_gradient:
            rate = replies["rate"].mean() if method.grouping.lr is None else method.grouping.lr
            change = tree.scale(self._grouped(replies["slope"], server[method.key]["gradient"], cohort), -rate)
            if method.grouping.scale_twice:
                change = method.reduction.features.enlarged(change, server[method.key])
        else:
            change = tree.sub(self._grouped(_trained(server, replies), models, cohort), models)
        change = method.reduction.features.enlarged(change, server[method.key])
        moved = tree.add(models, change, method.training.server_lr)
        after = server | {"models": method.kept(server["models"], moved)}
        if int(cohort.round) == method.threshold and method.count > 1 and method.draw is None:
            after = after | self._first_groups(_trained(server, replies), cohort)
        if "buffers" in replies:
            after = after | {"buffers": mean_buffers(replies["buffers"], cohort.weights)}
        return after if method.accelerates(int(cohort.round)) else _with_first_groups(after)

    def _grouped(self, rows: Tree, starts: Tree, cohort: Cohort) -> Tree:
        """The centres [G, ...] of groups of rows, from these starts (Eq. 26–43, 45–57); one group is their mean."""
        if self.method.count == 1:
            return {k: v[None] for k, v in tree.mean(rows, cohort.weights).items()}
        plane = Plane.through(rows, self.method.count - 1)
        return plane.lift(lloyd(plane.points, plane.project(starts, self.method.grouping.centred_starts)).centres)

    def _first_groups(self, rows: Tree, cohort: Cohort) -> State:
        """The models with which grouping begins in the next round; G equal ones would stay equal."""
        method = self.method
        plane = Plane.through(rows, method.count - 1)
        starts = plus_plus(plane.points, method.count, seed=method.seed, round=int(cohort.round), clients=cohort.ids)
        groups = lloyd(plane.points, starts)
        votes = groups.members.bincount(minlength=method.count).to(cohort.ids.device)
        return {"next": plane.lift(groups.centres), "votes": votes}


@dataclass(frozen=True)
class AccelerateModels:
    """Down: the new models. Up: ∇f_i at each, whose means update the moments and so the models."""

    method: SeveralModels

    def ask(self, server: State, cohort: Cohort) -> Mail:
        number = int(cohort.round)
        return self.method.broadcast(server, number) if self.method.accelerates(number) else Mail({})

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        if not self.method.accelerates(int(task.key.round)):
            return Answer({}, client, {})
        return Answer({"gradient": self.method.examine(inbox, client, task)[0]}, client, {})

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        method, number = self.method, int(cohort.round)
        if not method.accelerates(number):
            return server
        assert method.acceleration is not None
        models, moments = method.acceleration.step(
            models=method.current(server["models"], number),
            gradients=tree.mean(replies["gradient"], cohort.weights),
            moments={k: method.current(m, number) for k, m in server["moments"].items()},
            number=number if method.acceleration.first_rounds else number - method.threshold,
        )
        kept = {k: method.kept(server["moments"][k], m) for k, m in moments.items()}
        return _with_first_groups(server | {"models": method.kept(server["models"], models), "moments": kept})


@dataclass(frozen=True)
class PersonalModel:
    """Clients show the model they prefer. For evaluation only."""

    method: SeveralModels

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return Mail({"models": server["models"]} | _buffers(server))

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        preferred = self.method.examine(inbox, client, task)[1].argmin().view(1)
        model = {k: v.index_select(0, preferred)[0] for k, v in inbox["models"].items()}
        _, buffers = self.method.training.received(_with_one_model(inbox, 0), client, task)
        return Answer({"model": model, "buffers": buffers}, client, {})

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        return server


def _buffers(nest: Message) -> Message:
    return {"buffers": nest["buffers"]} if "buffers" in nest else {}


def _with_one_model(inbox: Message, index: int) -> Message:
    """The same message with one of the models."""
    return {"model": tree.row(inbox["models"], index)} | _buffers(inbox)


def _trained(server: State, replies: Message) -> Tree:
    """The clients' models after training [n, ...]."""
    return tree.add(tree.row(server["models"], server["ledger"]["choice"]), replies["update"])


def _with_first_groups(server: State) -> State:
    """At the end of round T, the first groups replace the single model."""
    return tree.drop(server, ["next"]) | {"models": server.get("next", server["models"])}
