"""Federated averaging with corrections: folds a tuple of corrections into the contract.

The only subtle code of the project. A round is an optional survey (an extra exchange before training) and the training
itself; see `docs/architecture.md` for the drawing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from undrift.client.learner import Loss
from undrift.client.optim import SGD, Optimizer
from undrift.client.task import Task
from undrift.core import tree
from undrift.core.tree import Tree
from undrift.methods.correction import HOOKS, At, Correction, Heard, defines, displacement_slope
from undrift.protocol import Answer, Cohort, Mail, Message, Phase, State

BUFFER_POLICIES = ("averaged", "local", "dropped")


def name(correction: Correction) -> str:
    return type(correction).__name__


@dataclass(frozen=True)
class Averaging:
    """Clients train from the server's model, the server averages their updates; corrections change every part of it.

    `private` names parameters that stay with their client. `buffers` says what becomes of BatchNorm statistics and the
    like: averaged by the server, local to the client, or dropped after every round.
    """

    corrections: tuple[Correction, ...] = ()
    optimizer: Optimizer = field(default_factory=SGD)
    server_lr: float = 1.0
    private: tuple[str, ...] = ()
    buffer_policy: str = "averaged"

    def __post_init__(self) -> None:
        names = [name(c) for c in self.corrections]
        if len(set(names)) < len(names):
            raise ValueError(f"corrections must differ, got {names}")

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        return (Survey(self), Train(self)) if self.with_hook["survey"] else (Train(self),)

    @cached_property
    def with_hook(self) -> dict[str, tuple[Correction, ...]]:
        """The corrections that define a hook; the others need not be called."""
        return {hook: tuple(c for c in self.corrections if defines(c, hook)) for hook in HOOKS}

    @cached_property
    def personal(self) -> Phase | None:
        """How clients make a model of their own, where they have one."""
        own = self.private or self.buffer_policy == "local" or self.with_hook["adapt"]
        return Personal(self) if own else None

    def server(self, model: Tree, buffers: Tree) -> State:
        state: State = {"model": model} | {name(c): c.server(model) for c in self.corrections}
        if buffers and self.buffer_policy == "averaged":
            state["buffers"] = buffers
        return _filled(state)

    def client(self, model: Tree, buffers: Tree) -> State:
        state: State = {name(c): c.client(model) | c.client_buffers(buffers) for c in self.corrections}
        state["private"] = tree.take(model, self.private)
        if self.buffer_policy == "local":
            state["buffers"] = buffers
        return _filled(state)

    def ledger(self, model: Tree) -> State:
        return _filled({name(c): c.ledger(model) for c in self.corrections})

    def models(self, server: State) -> list[Tree]:
        return [server["model"]]

    def presented(self, server: State) -> Tree:
        model: Tree = server["model"]
        for c in self.with_hook["present"]:
            model = c.present(model, _own(server, c))
        return model

    def buffers(self, server: State) -> Tree:
        buffers: Tree = _own_part(server, "buffers")
        return buffers

    # shared by the phases

    def letter(self, server: State) -> Message:
        """What training sends down: the model without its private part, buffers, and the corrections' messages."""
        model = server["model"]
        messages = {name(c): c.broadcast(_own(server, c), model) for c in self.with_hook["broadcast"]}
        return _filled({"model": tree.drop(model, self.private), "buffers": _own_part(server, "buffers")} | messages)

    def received(self, inbox: Message, client: State, task: Task) -> tuple[Tree, Tree]:
        """The model and the buffers a client starts from."""
        anchor = inbox["model"] | _own_part(client, "private")
        if self.buffer_policy == "dropped":
            return anchor, task.learner.buffers
        return anchor, _own_part(client if self.buffer_policy == "local" else inbox, "buffers")

    def heard(self, server: State, replies: Message, cohort: Cohort) -> Callable[[Correction], Heard]:
        return lambda c: Heard(_own_part(replies, name(c)), server["model"], cohort)


@dataclass(frozen=True)
class Survey:
    """An exchange before training: clients look at the model they received, the server digests what they saw."""

    method: Averaging

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return Mail({k: v for k, v in self.method.letter(server).items() if k in ("model", "buffers")})

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        anchor, buffers = self.method.received(inbox, client, task)
        messages: Message = {}
        for c in self.method.with_hook["survey"]:
            messages[name(c)], after = c.survey(anchor, _own(client, c), task, buffers)
            client = _with(client, c, after)
        return Answer(_filled(messages), client, {})

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        heard = self.method.heard(server, replies, cohort)
        for c in self.method.with_hook["digest"]:
            server = _without_ledger(server, c, c.digest(_with_ledger(server, c), heard(c)))
        return server


@dataclass(frozen=True)
class Train:
    """Clients train, the server averages."""

    method: Averaging

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return Mail(self.method.letter(server))

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        method, hooks = self.method, self.method.with_hook
        anchor, buffers = method.received(inbox, client, task)
        params, loss_sum = anchor, task.samples * 0
        memory = method.optimizer.init(anchor)
        gain = method.optimizer.gain(task.steps)
        walked = None if gain is None else gain * task.lr
        # Adam's displacement says nothing of the directions it was given, so these are summed.
        directions = tree.zeros(anchor) if walked is None else {}

        def mean_direction(update: Tree) -> Tree:
            if walked is None:
                return tree.take(tree.scale(directions, 1 / task.steps), update)
            return displacement_slope(update, walked)

        at = At(params, anchor, {}, loss_sum, task.batch(0, buffers), task, mean_direction, walked, params, buffers)
        for c in hooks["begin"]:
            params, mine = c.begin(params, _own(client, c), _view(at, c, inbox))
            client = _with(client, c, mine)

        for j, active in enumerate(task.active):
            before = (params, client, memory, buffers, directions)
            batch = task.batch(j, buffers) if j else at.batch  # the first one is at hand
            at = at._replace(params=params, batch=batch, origin=params)
            for c in hooks["pick"]:
                at = at._replace(batch=c.pick(at.batch, _own(client, c), _view(at, c, inbox)))
            for c in hooks["shift"]:
                params = c.shift(params, _own(client, c), _view(at, c, inbox))
            at = at._replace(params=params)
            loss: Loss = task.learner.losses
            for c in hooks["objective"]:
                loss = c.objective(loss, _own(client, c), _view(at, c, inbox))
            grad, value, buffers = task.gradient(params, at.batch, loss)
            grad = task.decayed(grad, params)
            at = at._replace(loss=value)
            for c in hooks["step"]:
                grad, mine = c.step(grad, _own(client, c), _view(at, c, inbox))
                client = _with(client, c, mine)
            for c in hooks["unshift"]:
                params = c.unshift(params, _own(client, c), _view(at, c, inbox))
            directions = tree.add(directions, grad)
            step, memory = method.optimizer.update(grad, memory)
            if hooks["move"]:
                change = tree.scale(step, -task.lr)
                for c in hooks["move"]:
                    change = c.move(change, _own(client, c), _view(at, c, inbox))
                params = tree.add(params, change)
            else:
                params = tree.add(params, step, -task.lr)
            if active is not None:
                after = (params, client, memory, buffers, directions)
                params, client, memory, buffers, directions = (
                    tree.where(active, a, b) for a, b in zip(after, before, strict=True)
                )
                value = torch.where(active, value, 0)
            loss_sum = loss_sum + value.detach()

        return self._finish(at._replace(params=params), client, buffers, inbox, loss_sum / task.steps)

    def _finish(self, at: At, client: State, buffers: Tree, inbox: Message, loss: Tensor) -> Answer:
        method = self.method
        at = at._replace(batch=at.batch._replace(buffers=buffers))
        update, messages = tree.sub(at.params, at.anchor), {}
        for c in method.with_hook["finish"]:
            update, mine, messages[name(c)] = c.finish(update, _own(client, c), _view(at, c, inbox))
            client = _with(client, c, mine)
        reply = {"update": tree.drop(update, method.private)} | messages
        if method.private:
            client = client | {"private": tree.take(tree.add(at.anchor, update), method.private)}
        if buffers and method.buffer_policy == "averaged":
            reply["buffers"] = buffers
        if buffers and method.buffer_policy == "local":
            client = client | {"buffers": buffers}
        return Answer(_filled(reply), client, {"loss": loss})

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        method = self.method
        heard = method.heard(server, replies, cohort)
        updates, model = replies["update"], server["model"]
        for c in method.with_hook["collect"]:
            updates, mine = c.collect(updates, _with_ledger(server, c), heard(c))
            server = _without_ledger(server, c, mine)
        update = tree.mean(updates, cohort.weights)
        for c in method.with_hook["advance"]:
            update, mine = c.advance(update, _own(server, c), heard(c))
            server = _with(server, c, mine)
        server = server | {"model": tree.add(model, update, method.server_lr)}
        if "buffers" in replies:
            server = server | {"buffers": mean_buffers(replies["buffers"], cohort.weights)}
        return server


@dataclass(frozen=True)
class Personal:
    """Clients show the model they would use themselves. For evaluation only: nothing is heard, nothing remembered."""

    method: Averaging

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return Mail(self.method.letter(server))

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        model, buffers = self.method.received(inbox, client, task)
        for c in self.method.with_hook["adapt"]:
            model = c.adapt(model, _own(client, c), task, buffers)
        kept = {} if self.method.buffer_policy == "dropped" else buffers
        return Answer({"model": model, "buffers": kept}, client, {})

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        return server


def mean_buffers(stacked: Tree, weights: Tensor) -> Tree:
    """Running statistics are averaged; counters are whole numbers, of which the largest is kept."""
    means = tree.mean({k: b for k, b in stacked.items() if b.is_floating_point()}, weights)
    return {k: means[k] if k in means else b.amax(0) for k, b in stacked.items()}


def _filled(nest: dict[str, Any]) -> dict[str, Any]:
    """Without empty entries, so that states and messages hold what there is and nothing else."""
    return {k: v for k, v in nest.items() if not isinstance(v, dict) or v}


def _own(state: State, correction: Correction) -> State:
    own: State = _own_part(state, name(correction))
    return own


def _own_part(nest: dict[str, Any], key: str) -> Any:
    return nest.get(key, {})


def _with(state: State, correction: Correction, mine: State) -> State:
    return state | {name(correction): mine} if mine else {k: v for k, v in state.items() if k != name(correction)}


def _with_ledger(server: State, correction: Correction) -> State:
    rows = _own(_own_part(server, "ledger"), correction)
    return _own(server, correction) | ({"ledger": rows} if rows else {})


def _without_ledger(server: State, correction: Correction, mine: State) -> State:
    """A correction's state put back: its rows into the ledger, the rest beside it."""
    rows, rest = _own_part(mine, "ledger"), {k: v for k, v in mine.items() if k != "ledger"}
    server = _with(server, correction, rest)
    return server | {"ledger": _with(server["ledger"], correction, rows)} if rows else server


def _view(at: At, correction: Correction, inbox: Message) -> At:
    return at._replace(inbox=_own_part(inbox, name(correction)))
