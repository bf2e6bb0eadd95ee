"""A module and a loss as pure functions of parameters and buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from undrift.accelerate import convolution, onednn, recurrence
from undrift.client import initialise
from undrift.client.draws import Draws, MaskedStatistics
from undrift.client.layout import Layout
from undrift.client.module_copy import copied, is_averaged, named_tensors
from undrift.core import torch_private
from undrift.core.random import Key, Stream
from undrift.core.tree import Tree
from undrift.data.text import IGNORED

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
    changed: Tree = {}  # noqa: RUF012  # parameters that the forward pass itself changed, as it left them


class SideEffects(NamedTuple):
    """What a module's forward pass does besides computing outputs and changing buffers (see `side_effects.py`)."""

    changed: tuple[str, ...] = ()  # trainable parameters that it writes to
    moving: tuple[str, ...] = ()  # other parameters that it writes to, which are buffers in all but name
    changes_input: bool = False
    sparse_gradients: tuple[str, ...] = ()


Loss = Callable[[Tree, Batch], Losses]


class Trial(NamedTuple):
    """What was found by calling a module and a loss with a few samples."""

    draws_numbers: bool  # random functions are called in training
    draws_in_evaluation: bool  # random numbers are drawn in evaluation, too
    differentiates: bool  # the module takes derivatives by itself, also when it is evaluated


class Tried(NamedTuple):
    """All that trials found of a module and a loss; it is the same for all samples of one kind."""

    trial: Trial
    effects: SideEffects


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy, one value per sample; outputs [B, C] or, a mean over positions not `IGNORED`, [B, T, C].

    Written out, because `F.cross_entropy` takes a slow path under `vmap`; the comparison stands for a gather, whose
    derivative has no reproducible kernel on a GPU.
    """
    chosen = torch.arange(output.shape[-1], device=output.device) == target[..., None]
    values = torch.logsumexp(output, -1) - (output * chosen).sum(-1)
    if values.ndim == 1:
        return values
    predicted = (target != IGNORED).flatten(1)
    return (values.flatten(1) * predicted).sum(1) / predicted.sum(1).clamp_min(1)


def logits(output: Any) -> Any:
    """A module's outputs as a tensor: of a dict or an object (as transformers return them), what it calls logits."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


class Learner:
    """The caller's module, copied once; its own parameters are never used again, only those that are passed in."""

    own_convolutions: bool  # of a `batched` learner: its module has convolutions for many clients at once
    _replicas: list[Learner]
    _batched: Learner | None

    def __init__(
        self,
        module: nn.Module,
        loss: SampleLoss | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        normalise: tuple[Sequence[float], Sequence[float]] | None = None,
        half: bool = False,
    ) -> None:
        self.half = half  # activations in bfloat16; parameters, statistics and losses keep their precision
        self._template = copied(module, device, dtype)  # never called, so that copies of it have no past
        self.layout = Layout.of(self._template)
        if not self.layout.names:
            raise ValueError(f"the model {type(module).__name__} has no trainable parameters")
        self.loss: SampleLoss = loss or cross_entropy
        self.classifies = loss is None
        trained = {k: p for k, p in self._template.named_parameters() if p.requires_grad}
        self.parameters: Tree = {k: p.detach() for k, p in trained.items()}
        frozen = tuple(k for k, p in self._template.named_parameters() if k not in trained and is_averaged(p))
        self.gradient_hooks: dict[str, tuple[Callable[[Tensor], Tensor | None], ...]] = {
            k: hooks
            for k, p in module.named_parameters()
            if (hooks := torch_private.gradient_hooks(p)) and k in trained
        }
        self.set_effects(
            SideEffects(changed=self.layout.names, moving=frozen, changes_input=True)
        )  # until more is known
        self.dtype = next(iter(self.parameters.values())).dtype
        self.device = torch.device(device)
        self.normalise: tuple[Tensor, Tensor] | None = None  # mean and deviation of inputs, per channel [C, 1, 1]
        if normalise is not None:
            mean, std = (torch.tensor(v, dtype=self.dtype, device=device).view(-1, 1, 1) for v in normalise)
            self.normalise = mean, std
        # Set by `listen`.
        self.differentiates = self.draws_numbers = self.draws_in_evaluation = self._channels_last = False
        self.evaluation_key = Key(0, 0, torch.tensor(0, device=device))  # for models that draw when they are evaluated
        self._channels_last_inputs = False  # inputs are given to the module with their channels last
        self.normalises = any(torch_private.is_batch_norm(m) for m in self._template.modules())
        for name, part in self.module.named_modules():
            if isinstance(part, nn.RNNBase) and part.dropout:
                raise ValueError(
                    f"dropout inside {type(part).__name__} {name!r} draws differently on every engine; "
                    "put nn.Dropout between single-layer networks instead"
                )

    def listen(self, x: Tensor, trial: Trial) -> None:
        """Learn from a trial what training and evaluating the module needs."""
        self.draws_numbers, self.draws_in_evaluation = trial.draws_numbers, trial.draws_in_evaluation
        self.differentiates = trial.differentiates
        self._channels_last = self.copied()._allows_channels_last(x)

    @property
    def tried(self) -> Tried:
        """What trials found, for a learner of the same module elsewhere."""
        trial = Trial(self.draws_numbers, self.draws_in_evaluation, self.differentiates)
        return Tried(trial, self.effects)

    def training_output(self, params: Tree, x: Tensor) -> Any:
        """What the module returns in training mode, whatever it is; the buffers are the initial ones."""
        self._training(True)
        return self._call(params | {k: b.clone() for k, b in self.buffers.items()}, x)

    def _allows_channels_last(self, x: Tensor) -> bool:
        """Whether the module accepts images channels last, which convolutions on a CPU prefer.

        A model that takes a `view` of what it gets may not allow it.
        """
        convolves = any(isinstance(part, nn.Conv2d) for part in self.module.modules())
        if self.device.type != "cpu" or x.ndim != 4 or not convolves:
            return False
        plain = self.outputs(self.parameters, self.buffers, x)
        try:
            channels_last = self.outputs(self.parameters, self.buffers, x.contiguous(memory_format=torch.channels_last))
        except RuntimeError:
            return False
        near = torch.finfo(self.dtype).eps ** 0.5
        return torch.allclose(channels_last, plain, rtol=near, atol=near)

    def prepare(self, x: Tensor) -> Tensor:
        """Inputs in the model's precision; bytes become numbers between 0 and 1, whole numbers stay (tokens)."""
        if x.dtype is torch.uint8:
            return x.to(self.dtype).div_(255)
        return x.to(self.dtype if x.is_floating_point() else torch.int64)

    def sample_loss(self, output: Tensor, target: Tensor) -> Tensor:
        """One value per sample [B]; targets that are stored as small whole numbers are widened first."""
        return self.loss(output, target if target.is_floating_point() else target.long())

    def losses(self, params: Tree, batch: Batch) -> Losses:
        """Per-sample losses in training mode, and the buffers afterwards."""
        # Buffers are written in place by the module: give it copies, made per client under `vmap` by adding a zero
        # that depends on the client.
        zero = batch.key.client * 0
        own = {k: b + zero.to(b.dtype) for k, b in batch.buffers.items()}
        if self.effects.changed:
            own |= {k: params[k] + zero.to(params[k].dtype) for k in self.effects.changed}
        values = self.values(params | own, batch)
        after = {k: self.tensor(k, given).detach() for k, given in own.items()}
        if self.effects.changed:
            changed = {k: after.pop(k) for k in self.effects.changed}
            return Losses(values, after, changed)
        return Losses(values, after)

    def values(self, tensors: Tree, batch: Batch) -> Tensor:
        """Per-sample losses in training mode; the module may write to the tensors that are given for its own."""
        self._training(True)
        with ExitStack() as modes:
            if self.draws_numbers:
                modes.enter_context(Draws(batch.key, batch.step))
            # A single sample has no variance, which PyTorch refuses; a federation has such batches. Nor does PyTorch
            # batch a normalisation whose parameters are more precise than its input.
            if self.normalises and (batch.weight is not None or len(batch.x) == 1 or self.half):
                weight = batch.x.new_ones(len(batch.x)) if batch.weight is None else batch.weight
                modes.enter_context(MaskedStatistics(weight))
            output = self._call(tensors, batch.x)
            return self.sample_loss(output, batch.y)

    def outputs(self, params: Tree, buffers: Tree | None, x: Tensor) -> Tensor:
        """Outputs in evaluation mode; without buffers, batch normalisation uses the statistics of `x`."""
        self._training(False)
        if buffers is None and self.normalises:
            for part in self.module.modules():
                if torch_private.is_batch_norm(part):
                    part.train()
        own = {k: b.clone() for k, b in (self.buffers if buffers is None else buffers).items()}
        own |= {k: params[k].clone() for k in self.effects.changed}
        with torch.set_grad_enabled(self.differentiates), self.evaluation_draws(0):
            output = self._call(params | own, x)
        return output.detach() if self.differentiates else output

    def recorded(self, params: Tree, x: Tensor) -> Tensor:
        """Outputs in evaluation mode, with the operations recorded for gradients."""
        self._training(False)
        with torch.enable_grad(), self.evaluation_draws(0):
            return self._call(params | {k: b.clone() for k, b in self.buffers.items()}, x.clone())

    def set_effects(self, effects: SideEffects) -> None:
        """From now on, take care of these side effects."""
        self.effects = effects
        moving = {k: p.detach() for k, p in self._template.named_parameters() if k in effects.moving}
        self.buffers: Tree = {k: b.detach() for k, b in self._template.named_buffers() if is_averaged(b)} | moving
        dense = {k: (Tensor.to_dense, *self.gradient_hooks.get(k, ())) for k in effects.sparse_gradients}
        self.gradient_hooks = self.gradient_hooks | dense
        self._own(self._fresh_module())

    def hooked(self, gradient: Tree) -> Tree:
        """A gradient after the hooks that the caller added to parameters."""
        for name, hooks in self.gradient_hooks.items():
            for hook in hooks if name in gradient else ():
                if (other := hook(gradient[name])) is not None:
                    gradient = gradient | {name: other}
        return gradient

    def evaluation_losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Per-sample losses of outputs in evaluation mode."""
        with torch.no_grad(), self.evaluation_draws(1):
            return self.sample_loss(output, target)

    def evaluation_draws(self, step: int) -> AbstractContextManager[Any]:
        """Every evaluation draws the same numbers, if any."""
        # PyTorch's fused transformer layers, which know no lower precision on a CPU, are not used under a mode.
        needed = self.draws_in_evaluation or self.half
        return Draws(self.evaluation_key, step, Stream.EVALUATION) if needed else nullcontext()

    @contextmanager
    def watch(self, module: str, side: str) -> Iterator[list[Tensor]]:
        """Notes what a submodule gets ("input") or gives ("output") in the forward passes made meanwhile."""
        seen: list[Tensor] = []
        part = self.module.get_submodule(module)
        if side == "input":
            handle = part.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        else:
            handle = part.register_forward_hook(lambda _, given, output: seen.append(output))
        with handle:
            yield seen

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """Meanwhile, activations keep their precision."""
        half, self.half = self.half, False
        try:
            yield
        finally:
            self.half = half

    def _call(self, tensors: Tree, x: Tensor) -> Tensor:
        """The module's output with these tensors in its slots.

        `torch.func.functional_call` does the same with care for modules that go on being used; this copy is only ever
        called here, so that plain assignments will do, which cost less in every step.
        """
        self._put(tensors)
        x = self.prepare(x)
        if self.normalise is not None:  # here and not before, as augmentation pads raw images
            x = (x - self.normalise[0]) / self.normalise[1]
        if self.effects.changes_input:
            x = x.clone()
        if self._channels_last_inputs:
            x = x.contiguous(memory_format=torch.channels_last)
        if not self.half:
            return self._output(tensors, x)
        # Casts are not shared between calls, which the gradients of different clients must not be, either.
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            output = self._output(tensors, x)
        return output.to(self.dtype) if isinstance(output, Tensor) else output  # which `check_fit` refuses

    def _output(self, tensors: Tree, x: Tensor) -> Tensor:
        output: Tensor = logits(self.module(x) if self._slots else functional_call(self.module, tensors, (x,)))
        return output

    def _put(self, tensors: Tree) -> None:
        for name, slots in self._slots.items():
            if name in tensors:
                for table, leaf in slots:
                    table[leaf] = tensors[name]
        for part in self._recurrent:
            torch_private.refresh_flat_weights(part)

    def release(self) -> None:
        """Let go of the parameters of the last call, which would otherwise be held until the next one."""
        self._put(self.parameters | self.buffers)

    @property
    def alone(self) -> Learner:
        """This learner for one model at a time, not for many under `vmap`."""
        return self.replica(0) if self.device.type == "cpu" else self

    @property
    def batched(self) -> Learner:
        """This learner for many models at once under `vmap`, with a module of its own; made once.

        PyTorch's LSTMs, which know no `vmap`, are replaced there, and on a GPU convolutions, if `own_convolutions`.
        """
        if self._batched is None:
            other = self.copied()
            recurrence.accelerate(other.module)
            other.own_convolutions = convolution.available() and convolution.accelerate(other.module)
            self._batched = other
        return self._batched

    def replica(self, number: int) -> Learner:
        """Another learner like this one, with a module of its own, for one model at a time in another thread; made
        once. On a CPU its convolutions are laid out for speed, which `vmap` would not allow."""
        while len(self._replicas) <= number:
            other = self.copied()
            if self.device.type == "cpu":
                stacked = self.dtype is torch.float32 and not self.half and onednn.connect(other.module)
                other._channels_last_inputs = self._channels_last and not stacked
            self._replicas.append(other)
        return self._replicas[number]

    def copied(self) -> Learner:
        """Another learner like this one, with a module of its own that was never called."""
        other = copy.copy(self)
        other._own(self._fresh_module())
        return other

    def _fresh_module(self) -> nn.Module:
        """A copy of the module; tensors that every call replaces are not copied."""
        replaced = self.parameters | self.buffers
        return copy.deepcopy(
            self._template, {id(t): t for name, t in named_tensors(self._template) if name in replaced}
        )

    def module_with(self, tensors: Tree) -> nn.Module:
        """A copy of the caller's module in evaluation mode, with these tensors in the place of its own."""
        module = copy.deepcopy(self._template)
        for name, own in named_tensors(module):
            if name in tensors:
                own.data = tensors[name].clone()
        return module.eval()

    def initialiser(self) -> Callable[[Key], Tree]:
        """Draws the parameters of another model of this kind; refused where some of them have no initialiser."""
        skeleton, like = initialise.skeleton(self._fresh_module()), self.parameters
        if missing := initialise.without_initialiser(skeleton, like):
            raise ValueError(
                f"no reset_parameters() of the model {type(self._template).__name__} sets its parameter "
                f"{missing[0]!r}, so that no other model can be drawn"
            )
        return lambda key: initialise.drawn(skeleton, like, key)

    def state_names(self) -> dict[str, str]:
        """The names of the module's `state_dict`, with the name of the parameter or buffer that each stands for.

        Tied parameters have several names there, and buffers that are not persistent have none.
        """
        names = {id(tensor): name for name, tensor in named_tensors(self._template)}
        kept = self._template.state_dict(keep_vars=True)
        return {name: names[id(tensor)] for name, tensor in kept.items() if id(tensor) in names}

    def _own(self, module: nn.Module) -> None:
        torch_private.uncompiled(module)
        self.module = module.train()  # as its own `train` defines it, whatever state it comes in
        self._slots = torch_private.tensor_slots(module)
        self._recurrent = [m for m in module.modules() if isinstance(m, nn.RNNBase)]
        self._replicas = []
        self._batched = None
        self.own_convolutions = False

    def tensor(self, name: str, given: Tensor) -> Tensor:
        """What the module has under a name after a call: what it was given, or what it assigned."""
        if name not in self._slots:
            return given
        table, leaf = self._slots[name][0]
        found: Tensor = table[leaf]
        return found

    def _training(self, mode: bool) -> None:
        if self.module.training != mode or not mode:
            self.module.train(mode)
