"""Gradients at the server's model, for diagnostics only."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from undrift.client.task import Task
from undrift.diagnostics.diagnostic import Gradient
from undrift.protocol import Answer, Cohort, Mail, Message, Method, State


@dataclass(frozen=True)
class Probe:
    """An exchange before a round's own: no state changes, nothing counts as traffic, and training knows nothing of it.

    Gradients are those of a client's objective: weight decay included, not clipped. A client uses the parts of the
    model that it keeps for itself.
    """

    method: Method
    gradients: frozenset[Gradient]

    def ask(self, server: State, cohort: Cohort) -> Mail:
        return Mail({"model": self.method.models(server)[0], "buffers": self.method.buffers(server)})

    def answer(self, inbox: Message, client: State, task: Task) -> Answer:
        model = inbox["model"] | client.get("private", {})
        buffers = client.get("buffers") or inbox["buffers"] or task.learner.buffers
        unclipped, found = replace(task, clip=None), {}
        if Gradient.FULL in self.gradients:
            found[Gradient.FULL.value] = task.full_gradient(model, buffers).gradient
        if Gradient.BATCH in self.gradients:
            gradient = unclipped.gradient(model, task.batch(0, buffers)).gradient
            found[Gradient.BATCH.value] = task.decayed(gradient, model)
        if Gradient.PENALTY in self.gradients:
            found[Gradient.PENALTY.value] = unclipped.gradient(model, task.batch(0, buffers), of=_half_square).gradient
        return Answer(found, client, {})

    def hear(self, server: State, replies: Message, cohort: Cohort) -> State:
        return server


def _half_square(losses: Tensor) -> Tensor:
    """Its gradient is ℓ ∇ℓ."""
    return losses.square() / 2
