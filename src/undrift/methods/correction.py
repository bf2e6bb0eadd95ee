"""The part that algorithms are made of: a two-sided change to federated averaging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from undrift.client.learner import Batch, Loss
from undrift.client.task import Task
from undrift.core import tree
from undrift.core.tree import Tree
from undrift.protocol import Cohort, Message, State


class At(NamedTuple):
    """Where a client stands."""

    params: Tree  # here
    anchor: Tree  # the model it received (with its private part)
    inbox: Message  # what this correction's `broadcast` sent
    loss: Tensor  # mean loss of the batch here; 0 before the gradient is taken
    batch: Batch
    task: Task
    mean_direction: Callable[[Tree], Tree]  # update -> the mean direction its steps took, (x - y) / (A_i lr)
    walked: Tensor | None  # A_i lr, the length of a walk along a unit direction; None under Adam, which has none

    origin: Tree  # where the step began, before any shift
    anchor_buffers: Tree  # the buffers it received

    def gradient(self, params: Tree) -> Tree:
        """The same minibatch at another point, weight decay included."""
        return self.task.decayed(self.task.gradient(params, self.batch).gradient, params)


class Heard(NamedTuple):
    """What the server knows when the cohort has answered."""

    replies: Message  # this correction's, stacked [n, ...]
    model: Tree  # the model it had sent
    cohort: Cohort


@dataclass(frozen=True)
class Correction:
    """Every hook is the identity by default; fields are hyperparameters, methods are pure.

    A hook maps (value, own state, context) to (value, own state). Client hooks run under `vmap`: tensor operations
    only, no `if` on tensors. Own states keep their names, shapes and dtypes from round to round.
    """

    # what is remembered
    def server(self, model: Tree) -> State:
        return {}

    def client(self, model: Tree) -> State:
        return {}

    def client_buffers(self, buffers: Tree) -> State:
        """What a client remembers beside `client`, of BatchNorm statistics and the like."""
        return {}

    def ledger(self, model: Tree) -> State:
        """What the server remembers of each client.

        `digest` and `collect` find the cohort's, stacked, in ``server["ledger"]`` and return it there.
        """
        return {}

    # an extra exchange before training, held only if some correction defines `survey`
    def survey(self, anchor: Tree, client: State, task: Task, buffers: Tree) -> tuple[Message, State]:
        return {}, client

    def digest(self, server: State, heard: Heard) -> State:
        return server

    # down
    def broadcast(self, server: State, model: Tree) -> Message:
        return {}

    # local training: at the start; in a step on its samples, before the gradient, on the loss, on the gradient, after
    # it (where the step begins), on the optimiser's step; at the end
    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        return start, client

    def pick(self, batch: Batch, client: State, at: At) -> Batch:
        return batch

    def shift(self, params: Tree, client: State, at: At) -> Tree:
        return params

    def objective(self, loss: Loss, client: State, at: At) -> Loss:
        return loss

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        return grad, client

    def unshift(self, params: Tree, client: State, at: At) -> Tree:
        return params

    def move(self, change: Tree, client: State, at: At) -> Tree:
        return change

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, client, {}

    # aggregation: on the stacked updates, then on their mean
    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        return updates, server

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        return update, server

    # the models to evaluate: the server's, and the one that a client makes of it for itself
    def present(self, model: Tree, server: State) -> Tree:
        return model

    def adapt(self, model: Tree, client: State, task: Task, buffers: Tree) -> Tree:
        return model


HOOKS = (
    "survey",
    "digest",
    "broadcast",
    "begin",
    "pick",
    "shift",
    "objective",
    "step",
    "unshift",
    "move",
    "finish",
    "collect",
    "advance",
    "present",
    "adapt",
)


def defines(correction: Correction, hook: str) -> bool:
    return getattr(type(correction), hook) is not getattr(Correction, hook)


def displacement_slope(update: Tree, walked: Tensor) -> Tree:
    """The mean direction of steps whose displacement is linear in it: -update / (A_i lr)."""
    return tree.scale(update, -1 / walked)
