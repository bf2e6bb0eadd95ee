"""The part that algorithms are made of: a two-sided change to federated averaging."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from undrift.client.learner import Batch, Loss
from undrift.client.task import Task
from undrift.core import tree
from undrift.core.tree import Tree
from undrift.protocol import Cohort, Message, State


class At(NamedTuple):
    """Where a client is in its local training."""

    params: Tree  # the current parameters, at which the gradient is taken
    origin: Tree  # where the step starts; differs from `params` only if some `locate` says so
    step: int  # the number of the local step, from 0
    batch: Batch  # the samples of the gradient
    anchor: Tree  # the model it received (with its private part)
    anchor_buffers: Tree  # the buffers it received
    inbox: Message  # what this correction's `broadcast` sent
    loss: Tensor  # mean loss of the batch at `params`; 0 before the gradient is taken
    task: Task
    mean_direction: Callable[[Tree], Tree]  # update -> the mean direction its steps took, (x - y) / (A_i lr)
    # A_i lr, the distance that unit directions would cover; None if it is not linear (Adam, RMSprop)
    walked: Tensor | None

    def gradient(self, params: Tree) -> Tree:
        """The same minibatch at another point, weight decay included."""
        return self.task.decayed(self.task.gradient(params, self.batch).gradient, params)


class Heard(NamedTuple):
    """What the server knows once the cohort has answered."""

    replies: Message  # this correction's, stacked [n, ...]
    model: Tree  # the model it had sent
    cohort: Cohort


@dataclass(frozen=True)
class Correction:
    """Every hook is the identity by default; fields are hyperparameters, methods are pure.

    A hook maps (value, own state, context) to (value, own state). Client hooks run under `vmap`: tensor operations
    only, no `if` on tensors. Own states keep their names, shapes and dtypes from round to round.
    """

    # The name under which states, messages and checkpoints hold what is this correction's.
    key: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "key" not in vars(cls):
            cls.key = cls.__name__
        for name, value in vars(cls).items():
            known = name.startswith("_") or hasattr(Correction, name) or not inspect.isfunction(value)
            if not known and (near := difflib.get_close_matches(name, (*STATES, *HOOKS), n=1, cutoff=0.75)):
                raise TypeError(
                    f"{cls.__name__}.{name} is no hook of a correction; did you mean {near[0]!r}? "
                    "(A method that nobody else calls starts with _)"
                )

    # state
    def server(self, model: Tree) -> State:
        return {}

    def client(self, model: Tree) -> State:
        return {}

    def ledger(self, model: Tree) -> State:
        """What the server remembers of each client.

        `digest` and `collect` get the cohort's rows, stacked, in ``server["ledger"]`` and return them there.
        """
        return {}

    # an extra exchange before training, which takes place only if some correction defines `survey`
    def survey(self, anchor: Tree, client: State, task: Task, buffers: Tree) -> tuple[Message, State]:
        return {}, client

    def digest(self, server: State, heard: Heard) -> State:
        return server

    # down
    def broadcast(self, server: State, model: Tree) -> Message:
        return {}

    # local training: at the start; in every step where and on which samples the gradient is taken, the loss, the
    # gradient, the optimiser's step; at the end
    def begin(self, start: Tree, client: State, at: At) -> tuple[Tree, State]:
        return start, client

    def locate(self, at: At, client: State) -> At:
        """Replaces `params` and `batch`, where and on which samples the gradient is taken, or `origin`, where the step
        starts. Look-ahead methods move `params` and `origin`.
        """
        return at

    def objective(self, loss: Loss, client: State, at: At) -> Loss:
        return loss

    def step(self, grad: Tree, client: State, at: At) -> tuple[Tree, State]:
        return grad, client

    def move(self, change: Tree, client: State, at: At) -> Tree:
        return change

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, client, {}

    # aggregation: on the stacked updates, then on the aggregated one
    def collect(self, updates: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        return updates, server

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        return update, server

    # Evaluation. Each has one user so far and cannot be expressed by other hooks: FedExP trains on from one model and
    # evaluates another, and Per-FedAvg's model is meant to be adapted by a client before it is used.
    def present(self, model: Tree, server: State) -> Tree:
        return model

    def adapt(self, model: Tree, client: State, task: Task, buffers: Tree) -> Tree:
        return model


STATES = ("server", "client", "ledger")  # what is remembered before the first round
HOOKS = (
    "survey",
    "digest",
    "broadcast",
    "begin",
    "locate",
    "objective",
    "step",
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
