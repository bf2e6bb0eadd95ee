"""MA-FSVRG and GA-FSVRG: several global models, grouped on the server, each accelerated by its own moments.

A round has three exchanges. `Look`: clients give their gradients at every model and say which one they prefer.
`Walk`: each trains the model it prefers as in FSVRG, and the server groups what comes back: trained models (MA) or the
gradients at them (GA). `Accelerate`: gradients at the new models feed the moments. Until round T there is one model,
the same in all places, and no grouping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from undrift.algorithms.fsvrg import FEATURE_SCALINGS, Features, VarianceReduction
from undrift.client.task import Task
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.methods.algorithm import Algorithm, Setting
from undrift.methods.averaging import Averaging, Train, mean_buffers, name
from undrift.methods.correction import Correction, Heard
from undrift.methods.grouping import Plane, lloyd, plus_plus
from undrift.protocol import Answer, Cohort, Mail, Message, Phase, State

_EPS = 1e-8


@dataclass(frozen=True)
class Acceleration:
    """m ← β₁ m + (1 − β₁) a;  v ← β₂ v + (1 − β₂) a²;  w ← w − α₀ √(1 − β₂^r) m / (√v + ε) (Eq. 62–64)."""

    beta1: float
    beta2: float
    alpha0: float
    printed: bool  # with the factor (1 − β₁)/√(1 − β₂) that Eq. 64 has besides

    def step(self, models: Tree, anchors: Tree, moments: State, round: int) -> tuple[Tree, State]:
        first = tree.mix(anchors, moments["first"], self.beta1)
        second = tree.mix({k: a.square() for k, a in anchors.items()}, moments["second"], self.beta2)
        rate = self.alpha0 * math.sqrt(1 - self.beta2**round)
        if self.printed:
            rate *= (1 - self.beta1) / math.sqrt(1 - self.beta2)
        direction = {k: m / (second[k].sqrt() + _EPS) for k, m in first.items()}
        return tree.add(models, direction, -rate), {"first": first, "second": second}


@dataclass(frozen=True)
class Diversified:
    """The method of both: `count` models, stacked [G, ...]; one and the same in all places until round `threshold`."""

    training: Averaging  # a client's walk, which is FSVRG's
    reduction: VarianceReduction  # its correction
    acceleration: Acceleration | None
    count: int  # G
    threshold: int  # T
    by_gradient: bool  # GA
    group_lr: float | None
    seed: int

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        return (Look(self), Walk(self), Accelerate(self)) if self.acceleration else (Look(self), Walk(self))

    @cached_property
    def personal(self) -> Phase:
        return Choose(self)

    def server(self, model: Tree, buffers: Tree) -> State:
        models = self.spread({k: v[None] for k, v in model.items()})
        votes = torch.zeros(self.count, dtype=torch.int64, device=next(iter(model.values())).device)
        state: State = {"models": models, "votes": votes, self.own: self.reduction.server(models)}
        if self.acceleration:
            state["moments"] = {"first": tree.zeros(models), "second": tree.zeros(models)}
        if buffers and self.training.buffer_policy == "averaged":
            state["buffers"] = buffers  # one set for all models
        return state

    def client(self, model: Tree, buffers: Tree) -> State:
        return self.training.client(model, buffers)

    def ledger(self, model: Tree) -> State:
        """The model a client preferred when it was last asked, besides what FSVRG remembers."""
        choice = torch.zeros((), dtype=torch.int64, device=next(iter(model.values())).device)
        return {"choice": choice} | self.training.ledger(model)

    def models(self, server: State) -> list[Tree]:
        """That which most clients of the last cohort prefer comes first."""
        order = server["votes"].argsort(descending=True, stable=True).tolist()
        return [tree.row(server["models"], c) for c in order]

    def presented(self, server: State) -> Tree:
        return self.models(server)[0]

    def buffers(self, server: State) -> Tree:
        buffers: Tree = server.get("buffers", {})
        return buffers

    # shared by the phases

    @property
    def own(self) -> str:
        """Under which name states and messages hold what is the correction's."""
        return name(self.reduction)

    def single(self, round: int) -> bool:
        return round <= self.threshold

    def current(self, stacked: Tree, round: int) -> Tree:
        """What a round works with: the one model [1, ...], or all [G, ...]."""
        return tree.row(stacked, slice(1)) if self.single(round) else stacked

    def spread(self, stacked: Tree) -> Tree:
        """[1, ...] or [G, ...] as [G, ...]."""
        return {k: v.expand(self.count, *v.shape[1:]) for k, v in stacked.items()}

    def letter(self, server: State, round: int) -> Mail:
        return Mail({"models": self.current(server["models"], round)} | _buffers(server))

    def examine(self, inbox: Message, client: State, task: Task) -> tuple[Tree, Tensor]:
        """A client's gradients [G, ...] and objectives [G] at all the models it received."""
        gradients, objectives = [], []
        for c in range(len(next(iter(inbox["models"].values())))):
            model, buffers = self.training.received(_one(inbox, c), client, task)
            slope = task.full_gradient(model, buffers)
            gradients.append(slope.gradient)
            objectives.append(slope.loss + task.weight_decay / 2 * tree.dot(model, model))
        return tree.stack(gradients), torch.stack(objectives)


@dataclass(frozen=True)
class Look:
    """Down: all models. Up: ∇f_i at each and, once there are several, argmin_c f_i(ŵ_c) (Eq. 17–18)."""

    method: Diversified

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return self.method.letter(server, int(cohort.round))

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        method = self.method
        gradients, objectives = method.examine(inbox, client, task)
        found = method.reduction.features.look(_one(inbox, 0)["model"], task)
        preference = {} if method.single(int(task.key.round)) else {"preference": objectives.argmin()}
        return Answer({"gradient": gradients} | found | preference, client | ({method.own: found} if found else {}), {})

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        method, ledger = self.method, server["ledger"]
        if method.single(int(cohort.round)):
            ledger = ledger | {"choice": torch.zeros_like(ledger["choice"])}
        else:
            ledger = ledger | {"choice": replies["preference"]}
            server = server | {"votes": replies["preference"].bincount(minlength=method.count)}
        before = server[method.own] | ({"ledger": ledger[method.own]} if method.own in ledger else {})
        after = method.reduction.digest(before, Heard(replies, server["models"], cohort))
        if "ledger" in after:
            ledger = ledger | {method.own: after.pop("ledger")}
        return server | {method.own: after | {"gradient": method.spread(after["gradient"])}, "ledger": ledger}


@dataclass(frozen=True)
class Walk:
    """Down: to each client the model it prefers and that model's anchor. Up: its update or, for GA, ∇f_i(w_i)."""

    method: Diversified

    def ask(self, server: State, cohort: Cohort) -> Mail:
        method, choice = self.method, server["ledger"]["choice"]
        correction = method.reduction.broadcast(server[method.own], server["models"])
        each = tree.repeat(tree.drop(correction, ["gradient"]), len(choice))
        each["gradient"] = tree.row(correction["gradient"], choice)
        return Mail(_buffers(server), {"model": tree.row(server["models"], choice), method.own: each})

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        method = self.method
        trained = Train(method.training).answer(inbox, client, task)
        if not method.by_gradient or method.single(int(task.key.round)):
            return trained
        model, buffers = method.training.received(inbox, client, task)
        reply: Message = tree.drop(trained.reply, ["update"])
        reply["slope"] = task.full_gradient(tree.add(model, trained.reply["update"]), buffers).gradient
        if method.group_lr is None:
            gain = method.training.optimizer.gain(task.steps)
            reply["length"] = (task.steps if gain is None else gain) * task.lr / task.samples
        return trained._replace(reply=reply)

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        method = self.method
        models = method.current(server["models"], int(cohort.round))
        if method.single(int(cohort.round)):
            change = {k: v[None] for k, v in tree.mean(replies["update"], cohort.weights).items()}
        elif method.by_gradient:
            rate = replies["length"].mean() if method.group_lr is None else method.group_lr
            change = tree.scale(self._grouped(replies["slope"], server[method.own]["gradient"], cohort), -rate)
        else:
            change = tree.sub(self._grouped(_trained(server, replies), models, cohort), models)
        change = method.reduction.features.enlarged(change, server[method.own])
        after = server | {"models": method.spread(tree.add(models, change, method.training.server_lr))}
        if int(cohort.round) == method.threshold and method.count > 1:
            after = after | self._first_groups(_trained(server, replies), cohort)
        if "buffers" in replies:
            after = after | {"buffers": mean_buffers(replies["buffers"], cohort.weights)}
        return after if method.acceleration else _begun(after)

    def _grouped(self, rows: Tree, starts: Tree, cohort: Cohort) -> Tree:
        """The centres [G, ...] of groups of rows, from these starts (Eq. 26–43, 45–57); one group is a plain mean."""
        if self.method.count == 1:
            return {k: v[None] for k, v in tree.mean(rows, cohort.weights).items()}
        plane = Plane.through(rows, self.method.count - 1)
        return plane.lift(lloyd(plane.points, plane.project(starts)).centres)

    def _first_groups(self, rows: Tree, cohort: Cohort) -> State:
        """The models with which grouping begins in the next round; G equal ones would never part."""
        method = self.method
        plane = Plane.through(rows, method.count - 1)
        starts = plus_plus(plane.points, method.count, method.seed, int(cohort.round), cohort.ids)
        groups = lloyd(plane.points, starts)
        votes = groups.members.bincount(minlength=method.count).to(cohort.ids.device)
        return {"next": plane.lift(groups.centres), "votes": votes}


@dataclass(frozen=True)
class Accelerate:
    """Down: the new models. Up: ∇f_i at each, whose means move the models on by their moments."""

    method: Diversified

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return self.method.letter(server, int(cohort.round))

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        return Answer({"gradient": self.method.examine(inbox, client, task)[0]}, client, {})

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        method = self.method
        assert method.acceleration is not None
        models, moments = method.acceleration.step(
            method.current(server["models"], int(cohort.round)),
            tree.mean(replies["gradient"], cohort.weights),
            {k: method.current(m, int(cohort.round)) for k, m in server["moments"].items()},
            int(cohort.round),
        )
        spread = {k: method.spread(m) for k, m in moments.items()}
        return _begun(server | {"models": method.spread(models), "moments": spread})


@dataclass(frozen=True)
class Choose:
    """Clients show the model they prefer. For evaluation only."""

    method: Diversified

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return Mail({"models": server["models"]} | _buffers(server))

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        preferred = self.method.examine(inbox, client, task)[1].argmin().view(1)
        model = {k: v.index_select(0, preferred)[0] for k, v in inbox["models"].items()}
        _, buffers = self.method.training.received(_one(inbox, 0), client, task)
        return Answer({"model": model, "buffers": buffers}, client, {})

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        return server


def _buffers(nest: Message) -> Message:
    return {"buffers": nest["buffers"]} if "buffers" in nest else {}


def _one(inbox: Message, index: int) -> Message:
    """A letter with one of the models."""
    return {"model": tree.row(inbox["models"], index)} | _buffers(inbox)


def _trained(server: State, replies: Message) -> Tree:
    """The clients' models after training [n, ...]."""
    return tree.add(tree.row(server["models"], server["ledger"]["choice"]), replies["update"])


def _begun(server: State) -> State:
    """At the end of round T, the first groups in the place of the single model."""
    return tree.drop(server, ["next"]) | {"models": server.get("next", server["models"])}


@dataclass(frozen=True)
class _Grouping(Algorithm):
    """What MA-FSVRG and GA-FSVRG share: their options."""

    by_gradient: ClassVar[bool]

    models: int = 4
    threshold: int = 4
    beta1: float = 0.9
    beta2: float = 0.999
    alpha0: float = 0.02
    acceleration: str = "adam"
    feature_scaling: str = "cohort"
    group_lr: float | None = None

    def __post_init__(self) -> None:
        check.integer("models", self.models, 1)
        # Several models are made of the clients' after round `threshold`, so there must be such a round.
        check.integer("threshold", self.threshold, 1 if self.models > 1 else 0)
        check.number("beta1", self.beta1, 0, 1, open_high=True)
        check.number("beta2", self.beta2, 0, 1, open_high=True)
        check.number("alpha0", self.alpha0, 0)
        check.choice("acceleration", self.acceleration, ("adam", "printed", "off"))
        check.choice("feature_scaling", self.feature_scaling, FEATURE_SCALINGS)
        if self.group_lr is not None:
            check.number("group_lr", self.group_lr, 0, open_low=True)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (VarianceReduction(Features.of(setting.layout, self.feature_scaling), scale_step=True),)

    def method(self, setting: Setting) -> Diversified:
        if self.models > setting.population:
            raise ValueError(
                f"models must be at most the number of clients, {setting.population}, whose models they are made of; "
                f"got {self.models}"
            )
        training = super().method(setting)
        assert isinstance(training, Averaging)
        reduction = training.corrections[-1]
        assert isinstance(reduction, VarianceReduction)
        adaptive = Acceleration(self.beta1, self.beta2, self.alpha0, self.acceleration == "printed")
        return Diversified(
            training,
            reduction,
            None if self.acceleration == "off" else adaptive,
            self.models,
            self.threshold,
            self.by_gradient,
            self.group_lr,
            setting.seed,
        )


@dataclass(frozen=True)
class MAFSVRG(_Grouping):
    """Several global models, each the centre of a group of trained local models.

    Paper:
        Adaptive central acceleration on diversified global models (MA-FSVRG, GA-FSVRG). IEEE Transactions on Neural
        Networks and Learning Systems, 2024.
    Idea:
        Clients with different interests are served by different models: each trains the one that fits its data best,
        and the server regroups the trained models by likeness. Steps are FSVRG's, and a last exchange of gradients
        moves every model on by moments of its own.
    Equations:
        c_i = argmin_c f_i(ŵ_c);  a_c = Σ w_i ∇f_i(ŵ_c) over the whole cohort
        w_i ← w_i − (η/n_i) (Λ_i [g_i(w_i) − g_i(ŵ_{c_i})] + a_{c_i}), from ŵ_{c_i}, both g_i on the same batch
        U: the top G−1 left singular vectors of the centred z_i = w_i;  centres: k-means on U^T (z_i − z̄), started at
        U^T (ŵ_c − z̄);  ŵ*_c = U centre_c + z̄
        w_c = ŵ_c + η_g A (ŵ*_c − ŵ_c), with FSVRG's Λ_i and A
        a = Σ w_i ∇f_i(w_c);  m ← β₁ m + (1 − β₁) a;  v ← β₂ v + (1 − β₂) a²
        ŵ_c ← w_c − α₀ √(1 − β₂^r) m / (√v + ε) in round r
        Rounds r ≤ T: one model, ŵ* = ŵ + Σ w_i (w_i − ŵ). After round T the G models are the centres of k-means, begun
        by k-means++, on that round's w_i; all go on with the moments of the one model.
    Use:
        Clients of few kinds, none of which one model serves well; models small enough to send G of them. `run.models`
        has all, the one most clients of the last cohort prefer first; that one is `run.parameters` and is evaluated in
        the history.
    Pitfalls:
        Traffic: 4 models down and 3 up until round T, then 2 G + 2 down and 2 G + 1 up (without acceleration 3 and 2,
        then G + 2 and G + 1), in three exchanges, and 2 G full passes. The rate is η/n_i, as in FSVRG: `lr` is of the
        order of a client's samples. α₀ is a step per parameter: gradients of any size move the model by about α₀ a
        round. A cohort much larger than G is needed to group well: models are moved into the plane of the cohort's,
        and of one client or of equal ones they all coincide. A model that nobody prefers is not trained and may be
        left behind for good; look at ``run.evaluate()``. BatchNorm statistics are those of all models together.
    Elsewhere:
        The paper prints the start of the centres without the centring that its last line adds back (Eq. 39), and
        besides √(1 − β₂^r) the factor (1 − β₁)/√(1 − β₂) of moments that are not normalised (Eq. 64), with which the
        first step is 31 times too long at β₁ = 0; ``acceleration="printed"`` has it.
    """

    by_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_lr is not None:
            raise ValueError(f"group_lr belongs to GAFSVRG, whose server descends; got {self.group_lr}")


@dataclass(frozen=True)
class GAFSVRG(_Grouping):
    """Several global models, each moved along the mean gradient of a group of clients.

    Paper:
        Adaptive central acceleration on diversified global models (MA-FSVRG, GA-FSVRG). IEEE Transactions on Neural
        Networks and Learning Systems, 2024.
    Idea:
        As MAFSVRG, but clients are grouped by their gradients at the models they have trained, which say where each
        wants to go next. Every model descends along the centre of its group.
    Equations:
        c_i, a_c and the local steps as in MAFSVRG;  z_i = ∇f_i(w_i) at the trained w_i
        U: the top G−1 left singular vectors of the centred z_i;  centres: k-means on U^T (z_i − z̄), started at
        U^T (a_c − z̄);  ẑ_c = U centre_c + z̄
        ŵ*_c = ŵ_c − η_group ẑ_c,  η_group = `group_lr`, or the length of a client's own walk, mean_S J_i η/n_i
        then A, acceleration, and the rounds until T as in MAFSVRG
    Use:
        As MAFSVRG, where clients change or few of them take part in a round.
    Pitfalls:
        As MAFSVRG's, with one more full pass. Group c is what the gradients near a_c want, which need not be the
        clients that prefer ŵ_c.
    Elsewhere:
        The paper adds the gradient (Eq. 57–58) and has no rate; a gradient is descended.
    """

    by_gradient: ClassVar[bool] = True
