"""What diagnostics see of a client's local training. Where none is switched on, nothing is computed or kept."""

from __future__ import annotations

import torch
from torch import Tensor

from undrift.client.task import Observation, Task
from undrift.core import layerwise, tree
from undrift.core.tree import Nest, Tree


class Observed:
    """Follows one client through its local steps; the report at the end has what its task asks for."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._norms: list[Tensor] = []  # of the gradient's parameters, a step each
        self._first: Nest = {}

    def gradient(self, step: int, gradient: Tree) -> None:
        """The gradient of a step with weight decay, clipped, before any correction."""
        if Observation.GRADIENT_NORMS in self._task.observe:
            self._norms.append(layerwise.parameter_norms(gradient, self._task.learner.layout.named_layers))
        if step == 0 and Observation.FIRST_STEP in self._task.observe:
            self._first["gradient"] = gradient

    def step(self, step: int, anchor: Tree, params: Tree) -> None:
        """Where a step led, from the model that was received."""
        if step == 0 and Observation.FIRST_STEP in self._task.observe:
            # With the arithmetic of the step itself, so that where nothing is added, nothing is found.
            plain = tree.add(anchor, self._first["gradient"], -self._task.lr)
            self._first["correction"] = tree.scale(tree.sub(plain, params), 1 / self._task.lr)

    def report(self, displacement: Tree) -> Nest:
        observe, found = self._task.observe, Nest()
        if Observation.DISPLACEMENT in observe:
            found[Observation.DISPLACEMENT.value] = displacement
        if Observation.GRADIENT_NORMS in observe:
            found[Observation.GRADIENT_NORMS.value] = self._over_steps()
        if Observation.FIRST_STEP in observe:
            found[Observation.FIRST_STEP.value] = self._first
        return found

    def _over_steps(self) -> Tensor:
        """Mean, variance and maximum over the steps that this client takes [3, 1 + L]."""
        norms = layerwise.together(torch.stack(self._norms), self._task.learner.layout.named_layers)
        steps = self._task.steps
        if any(active is not None for active in self._task.active):
            everyone = torch.ones_like(steps, dtype=torch.bool)
            taken = torch.stack([everyone if active is None else active for active in self._task.active])[:, None]
        else:
            taken = torch.ones_like(norms, dtype=torch.bool)
        norms = torch.where(taken, norms, 0)
        mean = norms.sum(0) / steps
        variance = torch.where(taken, (norms - mean).square(), 0).sum(0) / steps
        return torch.stack([mean, variance, norms.amax(0)])
