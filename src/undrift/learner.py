"""A module and a loss as pure functions of parameters and buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from undrift.draws import Draws, Listener, MaskedStatistics
from undrift.layout import Layout
from undrift.random import Key
from undrift.tree import Tree

SampleLoss = Callable[[Tensor, Tensor], Tensor]  # (output [B, ...], target [B, ...]) -> [B]


class Batch(NamedTuple):
    x: Tensor  # [B, ...]
    y: Tensor  # [B, ...]
    weight: Tensor | None  # [B], 0 for samples that only pad the batch; None: no padding
    key: Key
    step: int
    buffers: Tree  # the model's buffers before this batch


class Losses(NamedTuple):
    values: Tensor  # [B]
    buffers: Tree  # the model's buffers after this batch


Loss = Callable[[Tree, Batch], Losses]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy, one value per sample; outputs [B, C] or, a mean over positions, [B, T, C]."""
    if output.ndim == 3:
        return F.cross_entropy(output.transpose(1, 2), target, reduction="none").mean(1)
    return F.cross_entropy(output, target, reduction="none")


class Learner:
    """The caller's module, copied once; its own parameters are never used again, only those that are passed in."""

    def __init__(
        self,
        module: nn.Module,
        loss: SampleLoss | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        self.module = copy.deepcopy(module).to(device)
        if dtype is not None:
            self.module.to(dtype)
        self.layout = Layout.of(self.module)
        if not self.layout.names:
            raise ValueError(f"the model {type(module).__name__} has no trainable parameters")
        self.sample_loss: SampleLoss = loss or cross_entropy
        self.classifies = loss is None
        self.parameters: Tree = {k: p.detach().clone() for k, p in self.module.named_parameters() if p.requires_grad}
        self.buffers: Tree = {k: b.detach().clone() for k, b in self.module.named_buffers()}
        self.dtype = next(iter(self.parameters.values())).dtype
        self.device = torch.device(device)
        self.draws_numbers = False  # set by `listen`
        self.normalises = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules())
        for name, part in self.module.named_modules():
            if isinstance(part, nn.RNNBase) and part.dropout:
                raise ValueError(
                    f"dropout inside {type(part).__name__} {name!r} draws differently on every engine; "
                    "put nn.Dropout between single-layer networks instead"
                )

    def listen(self, x: Tensor) -> None:
        """Find out once whether a forward pass in training mode draws random numbers."""
        self._training(True)
        with torch.no_grad(), torch.random.fork_rng(devices=[]), Listener() as listener:
            functional_call(self.module, {k: v.clone() for k, v in self.buffers.items()}, (self.prepare(x),))
        self.draws_numbers = listener.heard

    def prepare(self, x: Tensor) -> Tensor:
        """Inputs in the model's precision; bytes become numbers between 0 and 1, whole numbers stay (tokens)."""
        if x.dtype is torch.uint8:
            return x.to(self.dtype) / 255
        return x.to(self.dtype) if x.is_floating_point() else x

    def losses(self, params: Tree, batch: Batch) -> Losses:
        """Per-sample losses in training mode, and the buffers afterwards."""
        # Buffers are written in place by the module: give it copies, made per client under `vmap` by adding a zero
        # that depends on the client.
        zero = batch.key.client * 0
        buffers = {k: b + zero.to(b.dtype) for k, b in batch.buffers.items()}
        self._training(True)
        with ExitStack() as modes:
            if self.draws_numbers:
                modes.enter_context(Draws(batch.key, batch.step))
            if self.normalises and batch.weight is not None:
                modes.enter_context(MaskedStatistics(batch.weight))
            output = functional_call(self.module, params | buffers, (self.prepare(batch.x),))
        return Losses(self.sample_loss(output, batch.y), {k: b.detach() for k, b in buffers.items()})

    def outputs(self, params: Tree, buffers: Tree | None, x: Tensor) -> Tensor:
        """Outputs in evaluation mode; without buffers, batch normalisation uses the statistics of `x`."""
        self._training(False)
        if buffers is None and self.normalises:
            for part in self.module.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.train()
        given = self.buffers if buffers is None else buffers
        with torch.no_grad():
            outputs: Tensor = functional_call(
                self.module, params | {k: b.clone() for k, b in given.items()}, (self.prepare(x),)
            )
        return outputs

    def _training(self, mode: bool) -> None:
        if self.module.training != mode or not mode:
            self.module.train(mode)
