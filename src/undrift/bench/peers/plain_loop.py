"""Federated learning as a plain PyTorch loop: a module, an optimiser, one client after another.

Simple but not wasteful: no data loader, no copy of the module for every client, no synchronisation within a round.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FedAvg:
    """The mean of the models that clients of equal size train for one epoch."""

    def __init__(self, model: nn.Module, lr: float, batch_size: int) -> None:
        self.model = model
        self.lr, self.batch_size = lr, batch_size
        self.local = copy.deepcopy(model)

    def round(
        self, cohort: list[int], x: Tensor, y: Tensor, compute: AbstractContextManager[Any] | None = None
    ) -> None:
        """`x` and `y` hold all clients, [clients, samples, ...]."""
        mean = [torch.zeros_like(p) for p in self.model.parameters()]
        for client in cohort:
            self.local.load_state_dict(self.model.state_dict())
            self.train(client, x[client], y[client], compute or nullcontext())
            with torch.no_grad():
                for total, part in zip(mean, self.local.parameters(), strict=True):
                    total.add_(part, alpha=1 / len(cohort))
        with torch.no_grad():
            for mine, new in zip(self.model.parameters(), mean, strict=True):
                mine.copy_(new)

    def train(self, client: int, x: Tensor, y: Tensor, compute: AbstractContextManager[Any]) -> None:
        self.local.train()
        optimizer = torch.optim.SGD(self.local.parameters(), lr=self.lr)
        for rows in torch.randperm(len(x), device=x.device).split(self.batch_size):
            optimizer.zero_grad()
            with compute:
                loss = F.cross_entropy(self.local(x[rows]), y[rows])
            loss.backward()
            self.correct(client)
            optimizer.step()

    def correct(self, client: int) -> None:
        """Change the gradients before a step."""


class Scaffold(FedAvg):
    """SCAFFOLD, option II: every step is corrected by the server's control variate minus the client's own."""

    def __init__(self, model: nn.Module, lr: float, batch_size: int, clients: int) -> None:
        super().__init__(model, lr, batch_size)
        self.clients = clients
        self.control = [torch.zeros_like(p) for p in model.parameters()]
        self.controls: dict[int, list[Tensor]] = {}

    def round(
        self, cohort: list[int], x: Tensor, y: Tensor, compute: AbstractContextManager[Any] | None = None
    ) -> None:
        self.change = [torch.zeros_like(c) for c in self.control]
        super().round(cohort, x, y, compute)
        for control, change in zip(self.control, self.change, strict=True):
            control.add_(change, alpha=1 / self.clients)

    def train(self, client: int, x: Tensor, y: Tensor, compute: AbstractContextManager[Any]) -> None:
        own = self.controls.setdefault(client, [torch.zeros_like(c) for c in self.control])
        super().train(client, x, y, compute)
        scale = self.lr * -(-len(x) // self.batch_size)  # K η
        with torch.no_grad():
            parts = zip(own, self.control, self.change, self.model.parameters(), self.local.parameters(), strict=True)
            for mine, control, change, before, after in parts:
                difference = (before - after) / scale - control
                mine.add_(difference)
                change.add_(difference)

    def correct(self, client: int) -> None:
        parts = zip(self.local.parameters(), self.control, self.controls[client], strict=True)
        for parameter, control, mine in parts:
            assert parameter.grad is not None
            parameter.grad.add_(control).sub_(mine)
