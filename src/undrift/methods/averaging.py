"""Federated averaging with corrections: combines the hooks of a tuple of corrections into the phases of a round.

The only subtle code of the project. A round is an optional survey (an extra exchange before training) and the training
itself; see `docs/architecture.md` for the drawing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undrift.client.learner import Loss
from undrift.client.optim import SGD, Optimizer
from undrift.client.task import Task
from undrift.core import tree
from undrift.core.tree import Tree
from undrift.methods.aggregate import Aggregate, mean
from undrift.methods.correction import HOOKS, At, Correction, Heard, defines, displacement_slope
from undrift.methods.observed import Observed
from undrift.protocol import Answer, Cohort, Mail, Message, Phase, State

BUFFER_POLICIES = ("averaged", "local", "dropped")


@dataclass(frozen=True)
class Averaging:
    """Clients train from the server's model, the server averages their updates; corrections change every part of it.

    `private` names parameters that stay with their client. `buffer_policy` says what happens to BatchNorm statistics
    and the like: averaged by the server, local to the client, or dropped after every round.
    """

    corrections: tuple[Correction, ...] = ()
    optimizer: Optimizer = field(default_factory=SGD)
    server_lr: float = 1.0
    private: tuple[str, ...] = ()
    buffer_policy: str = "averaged"
    aggregate: Aggregate = mean

    def __post_init__(self) -> None:
        keys = [c.key for c in self.corrections]
        if len(set(keys)) < len(keys):
            raise ValueError(f"corrections must differ, got {keys}")

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
        has_own = self.private or self.buffer_policy == "local" or self.with_hook["adapt"]
        return Personal(self) if has_own else None

    def server(self, model: Tree, buffers: Tree) -> State:
        state: State = {"model": model} | {c.key: c.server(model) for c in self.corrections}
        if buffers and self.buffer_policy == "averaged":
            state["buffers"] = buffers
        return _without_empty(state)

    def client(self, model: Tree, buffers: Tree) -> State:
        state: State = {c.key: c.client(model) for c in self.corrections}
        state["private"] = tree.take(model, self.private)
        if self.buffer_policy == "local":
            state["buffers"] = buffers
        return _without_empty(state)

    def ledger(self, model: Tree) -> State:
        return _without_empty({c.key: c.ledger(model) for c in self.corrections})

    def models(self, server: State) -> list[Tree]:
        return [server["model"]]

    def presented(self, server: State) -> Tree:
        model: Tree = server["model"]
        for c in self.with_hook["present"]:
            model = c.present(model, _entry(server, c.key))
        return model

    def buffers(self, server: State) -> Tree:
        return _entry(server, "buffers")

    # shared by the phases

    def broadcast(self, server: State) -> Message:
        """What training sends: the model without its private part, buffers, and the corrections' messages."""
        model = server["model"]
        messages = {c.key: c.broadcast(_entry(server, c.key), model) for c in self.with_hook["broadcast"]}
        shared = {"model": tree.drop(model, self.private), "buffers": _entry(server, "buffers")}
        return _without_empty(shared | messages)

    def received(self, inbox: Message, client: State, task: Task) -> tuple[Tree, Tree]:
        """The model and the buffers a client starts from."""
        anchor = inbox["model"] | _entry(client, "private")
        if self.buffer_policy == "dropped":
            return anchor, task.learner.buffers
        return anchor, _entry(client if self.buffer_policy == "local" else inbox, "buffers")


@dataclass(frozen=True)
class Survey:
    """An exchange before training: clients examine the model they received, the server digests what they found."""

    method: Averaging

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return Mail({k: v for k, v in self.method.broadcast(server).items() if k in ("model", "buffers")})

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        anchor, buffers = self.method.received(inbox, client, task)
        messages: Message = {}
        for c in self.method.with_hook["survey"]:
            messages[c.key], own = c.survey(anchor, _entry(client, c.key), task, buffers)
            client = _with_entry(client, c.key, own)
        return Answer(_without_empty(messages), client, {})

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        for c in self.method.with_hook["digest"]:
            heard = Heard(_entry(replies, c.key), server["model"], cohort)
            server = _with_server_state(server, c.key, c.digest(_server_state(server, c.key), heard))
        return server


class _Local(NamedTuple):
    """What the steps of a client change."""

    params: Tree
    client: State
    memory: State  # the optimiser's
    buffers: Tree
    directions: Tree


@dataclass(frozen=True)
class Train:
    """Clients train, the server averages."""

    method: Averaging

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return Mail(self.method.broadcast(server))

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        method, hooks = self.method, self.method.with_hook
        anchor, buffers = method.received(inbox, client, task)
        loss_sum = task.samples * 0
        gain = method.optimizer.gain(task.steps)
        walked = None if gain is None else gain * task.lr
        # A displacement that is not linear in the directions (Adam's) does not determine them, so they are summed.
        directions = tree.zeros(tree.to_vectors(anchor)) if walked is None else {}
        local = _Local(anchor, client, method.optimizer.init(anchor), buffers, directions)
        observed = Observed(task)

        def mean_direction(update: Tree) -> Tree:
            if walked is None:
                return tree.take(tree.scale(tree.from_vectors(local.directions, anchor), 1 / task.steps), update)
            return displacement_slope(update, walked)

        at = At(
            params=anchor,
            origin=anchor,
            step=0,
            batch=task.batch(0, buffers),
            anchor=anchor,
            anchor_buffers=buffers,
            inbox={},
            loss=loss_sum,
            task=task,
            mean_direction=mean_direction,
            walked=walked,
        )
        for c in hooks["begin"]:
            params, own = c.begin(local.params, _entry(local.client, c.key), _with_inbox(at, c, inbox))
            local = local._replace(params=params, client=_with_entry(local.client, c.key, own))

        for j, active in enumerate(task.active):
            batch = task.batch(j, local.buffers) if j else at.batch  # the first one was drawn above
            at = at._replace(params=local.params, step=j, origin=local.params, batch=batch)
            after, at = self._step(local, at, inbox, observed)
            value = at.loss
            if active is not None:
                after = _Local(*(tree.where(active, a, b) for a, b in zip(after, local, strict=True)))
                value = torch.where(active, value, 0)
            local, loss_sum = after, loss_sum + value.detach()
            observed.step(j, anchor, local.params)

        task.learner.release()
        at = at._replace(params=local.params, origin=local.params, batch=at.batch._replace(buffers=local.buffers))
        return self._finish(at, local.client, inbox, loss_sum / task.steps, observed)

    def _step(self, local: _Local, at: At, inbox: Message, observed: Observed) -> tuple[_Local, At]:
        """What a local step makes of what it changes, and where it was taken."""
        method, hooks, task = self.method, self.method.with_hook, at.task
        client = local.client
        for c in hooks["locate"]:
            at = c.locate(_with_inbox(at, c, inbox), _entry(client, c.key))
        loss: Loss = task.learner.losses
        for c in hooks["objective"]:
            loss = c.objective(loss, _entry(client, c.key), _with_inbox(at, c, inbox))
        grad, value, buffers, changed = task.gradient(at.params, at.batch, loss)
        if changed:  # by the model itself; the step starts from there, too
            params = at.params | changed
            at = at._replace(params=params, origin=params if at.origin is at.params else at.origin)
        grad = task.decayed(grad, at.params)
        observed.gradient(at.step, grad)
        at = at._replace(loss=value)
        for c in hooks["step"]:
            grad, own = c.step(grad, _entry(client, c.key), _with_inbox(at, c, inbox))
            client = _with_entry(client, c.key, own)
        directions = tree.add(local.directions, tree.to_vectors(grad)) if local.directions else {}
        step, memory = method.optimizer.update(grad, local.memory)
        if hooks["move"]:
            change = tree.scale(step, -task.lr)
            for c in hooks["move"]:
                change = c.move(change, _entry(client, c.key), _with_inbox(at, c, inbox))
            params = tree.add(at.origin, change)
        else:
            params = tree.add(at.origin, step, -task.lr)
        return _Local(params, client, memory, buffers, directions), at

    def _finish(self, at: At, client: State, inbox: Message, loss: Tensor, observed: Observed) -> Answer:
        method, buffers = self.method, at.batch.buffers
        update, messages = tree.sub(at.params, at.anchor), {}
        report = {"loss": loss} | observed.report(update)
        for c in method.with_hook["finish"]:
            update, own, messages[c.key] = c.finish(update, _entry(client, c.key), _with_inbox(at, c, inbox))
            client = _with_entry(client, c.key, own)
        reply = {"update": tree.drop(update, method.private)} | messages
        if method.private:
            client = client | {"private": tree.take(tree.add(at.anchor, update), method.private)}
        if buffers and method.buffer_policy == "averaged":
            reply["buffers"] = buffers
        if buffers and method.buffer_policy == "local":
            client = client | {"buffers": buffers}
        return Answer(_without_empty(reply), client, report)

    def collect(self, server: State, replies: Message, cohort: Cohort) -> tuple[Tree, State]:
        """The stacked updates that are aggregated, and what the server remembers before."""
        updates = replies["update"]
        for c in self.method.with_hook["collect"]:
            heard = Heard(_entry(replies, c.key), server["model"], cohort)
            updates, own = c.collect(updates, _server_state(server, c.key), heard)
            server = _with_server_state(server, c.key, own)
        return updates, server

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        method, model = self.method, server["model"]
        updates, server = self.collect(server, replies, cohort)
        update = method.aggregate(updates, cohort.weights)
        for c in method.with_hook["advance"]:
            heard = Heard(_entry(replies, c.key), model, cohort)
            update, own = c.advance(update, _entry(server, c.key), heard)
            server = _with_entry(server, c.key, own)
        server = server | {"model": tree.add(model, update, method.server_lr)}
        if "buffers" in replies:
            server = server | {"buffers": mean_buffers(replies["buffers"], cohort.weights)}
        return server


@dataclass(frozen=True)
class Personal:
    """Clients show the model they would use themselves. For evaluation only: no state changes."""

    method: Averaging

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return Mail(self.method.broadcast(server))

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        model, buffers = self.method.received(inbox, client, task)
        for c in self.method.with_hook["adapt"]:
            model = c.adapt(model, _entry(client, c.key), task, buffers)
        kept = {} if self.method.buffer_policy == "dropped" else buffers
        return Answer({"model": model, "buffers": kept}, client, {})

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        return server


def mean_buffers(stacked: Tree, weights: Tensor) -> Tree:
    """Running statistics are averaged; counters are whole numbers, of which the largest is kept."""
    means = tree.mean({k: b for k, b in stacked.items() if b.is_floating_point()}, weights)
    return {k: means[k] if k in means else b.amax(0) for k, b in stacked.items()}


def _without_empty(nest: dict[str, Any]) -> dict[str, Any]:
    """Without empty entries: a correction that keeps or sends nothing leaves no trace."""
    return {k: v for k, v in nest.items() if not isinstance(v, dict) or v}


def _entry(nest: dict[str, Any], key: str) -> dict[str, Any]:
    entry: dict[str, Any] = nest.get(key, {})
    return entry


def _with_entry(nest: dict[str, Any], key: str, entry: dict[str, Any]) -> dict[str, Any]:
    return nest | {key: entry} if entry else {k: v for k, v in nest.items() if k != key}


def _server_state(server: State, key: str) -> State:
    """What the server holds for a correction, with its rows of the ledger."""
    rows = _entry(_entry(server, "ledger"), key)
    return _entry(server, key) | ({"ledger": rows} if rows else {})


def _with_server_state(server: State, key: str, own: State) -> State:
    """The same put back: rows into the ledger, the rest into the server's state."""
    rows, rest = _entry(own, "ledger"), {k: v for k, v in own.items() if k != "ledger"}
    server = _with_entry(server, key, rest)
    return server | {"ledger": _with_entry(server["ledger"], key, rows)} if rows else server


def _with_inbox(at: At, correction: Correction, inbox: Message) -> At:
    return at._replace(inbox=_entry(inbox, correction.key))
