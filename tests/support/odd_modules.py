"""Modules as people write them: what a pure function of parameters and samples would not do, and what is expected."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

FEATURES, CLASSES, WORDS = 4, 3, 7


@dataclass(frozen=True)
class Odd:
    """A module; which engines train it ("every", "sequential" or "none"); words of the reason if not all of them."""

    build: Callable[[], nn.Module]
    engines: str = "every"
    words: str = ""
    tokens: bool = False  # samples are word numbers [B, 4] instead of vectors [B, 4]
    trains: bool = True  # at least one parameter must have moved
    like_pytorch: bool = True  # a plain training loop gives the same numbers


class Base(nn.Module):
    """A perceptron whose parts, and places between them, others change."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(FEATURES, 5), nn.Linear(5, CLASSES)

    def before(self, x: Tensor) -> Tensor:
        return x

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Any:
        return self.out(self.between(torch.tanh(self.hidden(self.before(x)))))


class AssignedMean(Base):
    mean: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("count", torch.tensor(0))

    def seen(self, h: Tensor) -> Tensor:
        return h.detach().mean(0)

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * self.seen(h)
            self.count = self.count + 1
        return h - self.mean


class AssignedFromWeights(AssignedMean):
    def seen(self, h: Tensor) -> Tensor:
        return self.out.weight.detach().mean(0)


class AttachedMean(Base):
    """The assigned buffer belongs to the graph; a plain loop would fail in its second step."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))

    def between(self, h: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + 0.5 * self.out.weight.mean(0)
        return h + self.mean


class InPlaceBuffers(Base):
    total: Tensor
    seen: Tensor
    flag: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int32))
        self.register_buffer("flag", torch.zeros(3, dtype=torch.bool), persistent=False)
        self.register_buffer("nothing", None)

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.total += self.out.weight.detach().sum()
            self.seen.add_(1)
            self.flag.fill_(True)
        return h + 0.01 * self.total


class GrowingBuffer(Base):
    past: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("past", torch.zeros(0))

    def between(self, h: Tensor) -> Tensor:
        self.past = torch.cat([self.past, h.detach().mean()[None]])
        return h


class RetypedBuffer(Base):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))

    def between(self, h: Tensor) -> Tensor:
        self.count = self.count + 0.5
        return h


class LateBuffer(Base):
    state: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", None)

    def between(self, h: Tensor) -> Tensor:
        self.state = h.detach().mean(0)
        return h


class LatePart(Base):
    def between(self, h: Tensor) -> Tensor:
        if not hasattr(self, "extra"):
            self.extra = nn.LayerNorm(5).to(h.dtype)
        return h + self.extra(h)


class MaxNorm(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 5, **options), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x).mean(1))


class ClippedByData(Base):
    def forward(self, x: Tensor) -> Any:
        self.out.weight.data.clamp_(-0.2, 0.2)
        return super().forward(x)


class ClippedUnderNoGrad(Base):
    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.hidden.weight.copy_(self.hidden.weight / self.hidden.weight.norm().clamp_min(1))
        return super().forward(x)


class ClippedByAssignment(Base):
    def forward(self, x: Tensor) -> Any:
        self.out.weight.data = self.out.weight.data.clamp(-0.2, 0.2)
        return super().forward(x)


class NewParameter(Base):
    def forward(self, x: Tensor) -> Any:
        self.out.weight = nn.Parameter(self.out.weight.detach().clamp(-0.2, 0.2))
        return super().forward(x)


class Teacher(Base):
    """A frozen copy of a layer that follows it, as in BYOL and MoCo."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(self.hidden).requires_grad_(False)

    def before(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for slow, fast in zip(self.teacher.parameters(), self.hidden.parameters(), strict=True):
                    slow.mul_(0.9).add_(0.1 * fast)
        return x

    def between(self, h: Tensor) -> Tensor:
        return h + 0.1 * torch.tanh(self.teacher.weight.sum())


class KeptOutput(Base):
    h: Tensor

    def between(self, h: Tensor) -> Tensor:
        self.h = h
        self.shape = h.shape
        return self.h * 2


class CarriedState(Base):
    h: Any = None

    def between(self, h: Tensor) -> Tensor:
        now = h if self.h is None else h + 0.5 * self.h
        self.h = now.detach().mean(0)
        return now


class LastInput(Base):
    """What it keeps is a function of the last call alone, which the next one uses."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(5)

    def between(self, h: Tensor) -> Tensor:
        now, self.last = h + self.last.to(h), h.detach()[0]
        return now


class Counter(Base):
    calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return super().forward(x)


class Recorder(Base):
    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Tensor] = []

    def between(self, h: Tensor) -> Tensor:
        self.outputs.append(h.detach())
        return h


class StaleCache(Base):
    table: Any = None

    def between(self, h: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.tanh(self.hidden.weight.detach().sum(1))
        return h * self.table


class HarmlessCache(Base):
    positions: Any = None

    def between(self, h: Tensor) -> Tensor:
        if self.positions is None or len(self.positions) < h.shape[-1]:
            self.positions = torch.linspace(0.5, 1, h.shape[-1], dtype=h.dtype)
        return h * self.positions[: h.shape[-1]]


_MEMORY: list[float] = [0.0]


class GlobalState(Base):
    def forward(self, x: Tensor) -> Any:
        _MEMORY[0] += 1.0
        return super().forward(x) * (1 + 0.01 * _MEMORY[0])


def called_before() -> nn.Module:
    """With an output of an earlier call, which belongs to a graph."""
    module = KeptOutput()
    module(torch.zeros(2, FEATURES))
    return module


def lazy(initialised: bool) -> nn.Module:
    module = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(CLASSES))
    if initialised:
        module(torch.zeros(1, FEATURES))
    return module


def hooked() -> nn.Module:
    module = Base()
    module.hidden.register_forward_hook(lambda _, given, output: output * 0.5)
    module.out.register_forward_pre_hook(lambda _, given: (given[0] + 0.1,))
    return module


def closure_hooked() -> nn.Module:
    module = Base()
    module.scale = nn.Parameter(torch.ones(3))
    module.out.register_forward_hook(lambda _, given, output: output * module.scale)
    return module


def _times(factor: float, gradients: Any) -> Any:
    return tuple(None if g is None else factor * g for g in gradients)


def backward_hooked() -> nn.Module:
    module = Base()
    module.hidden.register_full_backward_hook(lambda _, inputs, outputs: _times(2.0, inputs))
    module.out.register_full_backward_hook(lambda _, inputs, outputs: _times(0.5, inputs))
    return module


def parameter_hooked() -> nn.Module:
    module = Base()
    module.hidden.weight.register_hook(lambda g: g.clamp(-0.05, 0.05))
    module.hidden.weight.register_hook(lambda g: 2 * g)
    module.out.bias.register_hook(lambda g: None)
    return module


def accumulation_hooked() -> nn.Module:
    module = Base()
    module.out.weight.register_post_accumulate_grad_hook(lambda p: None)
    return module


def weight_normed() -> nn.Module:
    module = Base()
    nn.utils.weight_norm(module.hidden)
    return module


def parametrised(kind: str) -> nn.Module:
    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(x)

    module = Base()
    if kind == "weight":
        parametrizations.weight_norm(module.hidden)
    elif kind == "spectral":
        parametrizations.spectral_norm(module.hidden)
    elif kind == "orthogonal":
        parametrizations.orthogonal(module.out, orthogonal_map="cayley")
    elif kind == "old spectral":
        nn.utils.spectral_norm(module.hidden)
    else:
        parametrize.register_parametrization(module.out, "weight", Symmetric())
    return module


def pruned() -> nn.Module:
    module = Base()
    mask = torch.ones(5, FEATURES)
    mask[::2] = 0
    prune.custom_from_mask(module.hidden, "weight", mask)
    return module


class PrunedRecurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(1, 4, batch_first=True), nn.Linear(4, CLASSES)
        nn.utils.weight_norm(self.rnn, "weight_hh_l0")

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x[..., None])[0][:, -1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES), nn.Linear(4, CLASSES)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.b(torch.tanh(self.a(x))))


class TiedByView(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.b.weight = nn.Parameter(self.a.weight.data.T)


class OddLayout(Base):
    def __init__(self) -> None:
        super().__init__()
        whole = torch.randn(10, 5)
        self.hidden.weight = nn.Parameter(whole.T[:, ::3][:, :FEATURES])
        self.out.bias = nn.Parameter(torch.randn(6)[::2])
        self.out.weight.requires_grad_(False)


class ListedParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(CLASSES, FEATURES)), nn.Parameter(torch.zeros(CLASSES))
        self.used = [self.weight]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.used[0], self.bias)


class Energy(Base):
    def forward(self, x: Tensor) -> Any:
        with torch.enable_grad():
            point = x.requires_grad_()
            energy = super().forward(point).square().sum()
            slope = torch.autograd.grad(energy, point, create_graph=True)[0]
        return self.out(torch.tanh(self.hidden(slope)))


class EnergyWithoutEnabling(Base):
    def forward(self, x: Tensor) -> Any:
        point = x.requires_grad_()
        slope = torch.autograd.grad(super().forward(point).square().sum(), point, create_graph=True)[0]
        return self.out(torch.tanh(self.hidden(slope)))


class FunctionalEnergy(Base):
    def forward(self, x: Tensor) -> Any:
        parent = super().forward
        slope = torch.func.grad(lambda point: parent(point).square().sum())(x)
        return self.out(torch.tanh(self.hidden(slope)))


class Checkpointed(Base):
    reentrant = False

    def forward(self, x: Tensor) -> Any:
        h: Any = checkpoint(lambda v: torch.tanh(self.out(v)), torch.tanh(self.hidden(x)), use_reentrant=self.reentrant)
        return h


class ReentrantCheckpoint(Checkpointed):
    reentrant = True


class CheckpointedNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)

    def between(self, h: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.norm, h, use_reentrant=False)
        return result


class Branching(Base):
    def between(self, h: Tensor) -> Tensor:
        return h * 2 if h.sum() > 0 else h


class BranchingOnWeights(Base):
    def between(self, h: Tensor) -> Tensor:
        return h * 2 if float(self.out.weight.sum()) > 0 else h * 3


class Item(Base):
    def between(self, h: Tensor) -> Tensor:
        return h * (1 + abs(h.mean().item()))


class ChangesInput(Base):
    def before(self, x: Tensor) -> Tensor:
        x.mul_(0.5)
        x[:, 0] = 1
        return x


class InPlaceActivation(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.ReLU(inplace=True), nn.Linear(FEATURES, 5), nn.ReLU(inplace=True), nn.Linear(5, CLASSES))


class ReturnsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2.0)
        return x * self.scale


class ReturnsParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), -1)


class MixesSamples(Base):
    def between(self, h: Tensor) -> Tensor:
        return h - h.mean(0)


class PartlyWithoutGradient(Base):
    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            h = torch.tanh(self.hidden(x))
        return self.out(h)


class UnderInference(Base):
    def forward(self, x: Tensor) -> Any:
        with torch.inference_mode():
            h = torch.tanh(self.hidden(x))
        return self.out(h)


class ZeroDimensional(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor(0.0))

    def between(self, h: Tensor) -> Tensor:
        return h * self.scale + self.shift


class OnlyScalars(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :CLASSES] * self.scale


class Empty(Base):
    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0, 5))
        self.register_buffer("none", torch.zeros(3, 0))

    def between(self, h: Tensor) -> Tensor:
        return h + h[:, :0] @ self.nothing


class Rotary(Base):
    turns: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(2), torch.tensor([0.3, 0.7])), persistent=False)

    def before(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(len(x), 2, 2).contiguous())
        return torch.view_as_real(pairs * self.turns.to(pairs.dtype)).flatten(1)


class ComplexStatistics(Rotary):
    def before(self, x: Tensor) -> Tensor:
        self.turns = self.turns * 0.9
        return super().before(x)


class ComplexParameter(Base):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.ones(5, dtype=torch.complex64))

    def between(self, h: Tensor) -> Tensor:
        return (h * self.phase).real


class SparseConstant(Base):
    adjacency: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", torch.eye(FEATURES).roll(1, 0).to_sparse())

    def before(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.adjacency, x.T).T


class SparseParameter(Base):
    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.eye(5).to_sparse())


class SparseByFunction(MaxNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.embedding(x, self.words.weight, sparse=True).mean(1))


class Float8(Base):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(3).to(torch.float8_e4m3fn))


class Quantised(Base):
    levels: Tensor

    def __init__(self) -> None:
        super().__init__()
        levels = torch.quantize_per_tensor(torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5]).float(), 0.5, 0, torch.quint8)
        self.register_buffer("levels", levels)

    def between(self, h: Tensor) -> Tensor:
        return h * self.levels.dequantize().to(h.dtype)


class Named(nn.Module):
    """Names that files, states and messages use, too."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("model", "ledger", "server", "a/b", "~1", "update", "losses", "ids"):
            self.register_parameter(name, nn.Parameter(torch.randn(CLASSES, FEATURES) / 4))
        for name in ("states", "values", "clients/x", "weights"):
            self.register_buffer(name, torch.zeros(3))
        self.add_module("sub/module", nn.Linear(CLASSES, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        weights: Any = sum(self._parameters.values())
        if self.training:
            self.values: Any = self.values + 1
        h: Tensor = self.get_submodule("sub/module")(F.linear(x, weights))
        return h


class Slots(Base):
    __slots__ = ("factor",)
    factor: float

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "factor", 2.0)  # which deep copies of modules do not have

    def between(self, h: Tensor) -> Tensor:
        return h * self.factor


class Properties(Base):
    @property
    def weight(self) -> Tensor:
        return self.out.weight * 0.5

    def between(self, h: Tensor) -> Tensor:
        return h + self.weight.sum()


class Uncopyable(Base):
    def __init__(self) -> None:
        super().__init__()
        self.stream = (n for n in range(3))


def mixed_types() -> nn.Module:
    class Mixed(Base):
        def __init__(self) -> None:
            super().__init__()
            self.out.to(torch.float64)

        def between(self, h: Tensor) -> Tensor:
            return h.double()

    return Mixed()


ODD: dict[str, Odd] = {
    "plain": Odd(Base),
    "assigned buffers": Odd(AssignedFromWeights),
    "assigned statistics": Odd(AssignedMean, "sequential", "mixes the samples"),
    "assigned buffer with a graph": Odd(AttachedMean, like_pytorch=False),
    "buffers of all types": Odd(InPlaceBuffers),
    "growing buffer": Odd(GrowingBuffer, "none", "buffer 'past'"),
    "buffer of changing type": Odd(RetypedBuffer, "none", "buffer 'count'"),
    "buffer made in forward": Odd(LateBuffer, "none", "buffer 'state'"),
    "part made in forward": Odd(LatePart, "none", "part 'extra'"),
    "max_norm": Odd(lambda: MaxNorm(max_norm=0.5), tokens=True),
    "clipped by .data": Odd(ClippedByData),
    "clipped under no_grad": Odd(ClippedUnderNoGrad),
    "clipped by assigning .data": Odd(ClippedByAssignment, "sequential", ".data"),
    "new parameter in forward": Odd(NewParameter, "none", "parameter 'out.weight'"),
    "teacher": Odd(Teacher),
    "kept output": Odd(KeptOutput),
    "called before": Odd(called_before),
    "state carried over": Odd(CarriedState, "none", "attribute 'h'"),
    "last input carried over": Odd(LastInput, "none", "between calls"),
    "counter": Odd(Counter, "none", "attribute 'calls'"),
    "recorder": Odd(Recorder, "none", "attribute 'outputs'"),
    "stale cache": Odd(StaleCache, "none", "attribute 'table'"),
    "harmless cache": Odd(HarmlessCache),
    "global state": Odd(GlobalState, "none", "between calls"),
    "lazy": Odd(lambda: lazy(False), "none", "'0.weight'"),
    "lazy, called": Odd(lambda: lazy(True)),
    "forward hooks": Odd(hooked),
    "hook that refers to the module": Odd(closure_hooked, "none", "'scale'"),
    "backward hooks": Odd(backward_hooked, "sequential"),
    "parameter hooks": Odd(parameter_hooked),
    "accumulation hook": Odd(accumulation_hooked, "none", "'out.weight'"),
    "old weight_norm": Odd(weight_normed),
    "weight_norm": Odd(lambda: parametrised("weight")),
    "old spectral_norm": Odd(lambda: parametrised("old spectral"), "sequential"),
    "spectral_norm": Odd(lambda: parametrised("spectral"), "sequential"),
    "orthogonal": Odd(lambda: parametrised("orthogonal")),
    "own parametrisation": Odd(lambda: parametrised("own")),
    "pruned": Odd(pruned),
    "weight-normed GRU": Odd(PrunedRecurrent, "sequential", "GRU"),
    "scripted": Odd(lambda: torch.jit.script(nn.Linear(FEATURES, CLASSES)), "none", "torch.jit"),
    "traced": Odd(lambda: torch.jit.trace(Base(), torch.zeros(2, FEATURES)), "none", "torch.jit"),
    "DataParallel": Odd(lambda: nn.DataParallel(Base())),
    "tied": Odd(Tied),
    "tied by a view": Odd(TiedByView, "none", "share memory"),
    "views, frozen parts": Odd(OddLayout),
    "listed parameters": Odd(ListedParameters, "none", "'weight'"),
    "autograd.grad": Odd(Energy, "sequential"),
    "autograd.grad without enable_grad": Odd(EnergyWithoutEnabling, "sequential"),
    "torch.func.grad": Odd(FunctionalEnergy),
    "checkpoint": Odd(Checkpointed, "sequential"),
    "reentrant checkpoint": Odd(ReentrantCheckpoint, "none", "use_reentrant"),
    "checkpointed BatchNorm": Odd(CheckpointedNorm, "none", "checkpoint"),
    "branches on samples": Odd(Branching, "sequential"),
    "branches on weights": Odd(BranchingOnWeights, "sequential"),
    "item": Odd(Item, "sequential"),
    "changes its input": Odd(ChangesInput),
    "in-place activation": Odd(InPlaceActivation),
    "returns its input": Odd(ReturnsInput),
    "returns a parameter": Odd(ReturnsParameter),
    "mixes samples": Odd(MixesSamples, "sequential", "mixes the samples"),
    "part without gradient": Odd(PartlyWithoutGradient),
    "inference mode": Odd(UnderInference, "none", "nference"),
    "0-d": Odd(ZeroDimensional),
    "0-d only": Odd(OnlyScalars),
    "empty": Odd(Empty),
    "complex buffer": Odd(Rotary),
    "complex statistics": Odd(ComplexStatistics, "none", "'turns'"),
    "complex parameter": Odd(ComplexParameter, "none", "parameter 'phase'"),
    "sparse buffer": Odd(SparseConstant),
    "sparse parameter": Odd(SparseParameter, "none", "parameter 'mask'"),
    "sparse gradients": Odd(lambda: MaxNorm(sparse=True), tokens=True),
    "sparse gradients by a function": Odd(SparseByFunction, "sequential", tokens=True),
    "float8": Odd(Float8, "none", "parameter 'table'"),
    "quantised buffer": Odd(Quantised),
    "meta": Odd(lambda: Base().to("meta"), "none", "'meta'"),
    "names": Odd(Named),
    "slots": Odd(Slots, "none", "'factor'"),
    "properties": Odd(Properties),
    "uncopyable": Odd(Uncopyable, "none", "cannot be copied"),
    "mixed types": Odd(mixed_types),
}


# Parts that can be combined: each maps features [B, 5] to features [B, 5].


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, h: Tensor) -> Tensor:
        return h * self.scale


class Nothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0, 5))

    def forward(self, h: Tensor) -> Tensor:
        return h + h[:, :0] @ self.nothing


class Follower(nn.Module):
    """A buffer that is assigned a mean of weights, and one that is changed in place."""

    mean: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 5)
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("steps", torch.tensor(0), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.8 * self.mean + 0.2 * self.inner.weight.detach().mean(0)
            self.steps += 1
        return torch.tanh(self.inner(h)) + self.mean


class Clipped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 5, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        self.inner.weight.data.clamp_(-0.3, 0.3)
        return torch.tanh(self.inner(h))


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fast = nn.Linear(5, 5)
        self.slow = copy.deepcopy(self.fast).requires_grad_(False)

    def forward(self, h: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.slow.weight.lerp_(self.fast.weight, 0.1)
        return torch.tanh(self.fast(h)) - 0.1 * torch.tanh(F.linear(h, self.slow.weight.clone()))


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, h: Tensor) -> Tensor:
        self.seen = [h, h * 2]
        self.last = h.mean().detach()
        return self.seen[1]


class Turned(nn.Module):
    turns: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(2), torch.tensor([0.2, 0.9])), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        pairs = torch.view_as_complex(h[:, :4].reshape(len(h), 2, 2).contiguous())
        return torch.cat([torch.view_as_real(pairs * self.turns).flatten(1), h[:, 4:]], 1)


class InPlace(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return (h + 1).mul_(1.5).tanh_()


class Decides(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * (2.0 if h.abs().sum().item() > 3 else 1.0)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 5)

    def forward(self, h: Tensor) -> Tensor:
        slope = torch.func.grad(lambda v: torch.tanh(self.inner(v)).square().sum())(h)
        return h + slope


def _linear(change: Callable[[nn.Linear], Any]) -> nn.Module:
    layer = nn.Linear(5, 5)
    change(layer)
    return nn.Sequential(layer, nn.Tanh())


@dataclass(frozen=True)
class Part:
    build: Callable[[], nn.Module]
    batched: bool = True


PARTS: dict[str, Part] = {
    "0-d": Part(Gate),
    "empty": Part(Nothing),
    "assigned": Part(Follower),
    "clipped": Part(Clipped),
    "slow": Part(Slow),
    "kept": Part(Kept),
    "complex": Part(Turned),
    "in place": Part(InPlace),
    "control flow": Part(Decides, batched=False),
    "func.grad": Part(Own),
    "old weight_norm": Part(lambda: _linear(nn.utils.weight_norm)),
    "weight_norm": Part(lambda: _linear(parametrizations.weight_norm)),
    "spectral_norm": Part(lambda: _linear(parametrizations.spectral_norm), batched=False),
    "pruned": Part(lambda: _linear(lambda layer: prune.l1_unstructured(layer, "weight", 0.4))),
    "hook": Part(lambda: _linear(lambda layer: layer.register_forward_hook(lambda _, given, output: 0.5 * output))),
    "parameter hook": Part(lambda: _linear(lambda layer: layer.weight.register_hook(lambda g: g.clamp(-0.1, 0.1)))),
    "frozen": Part(lambda: _linear(lambda layer: layer.weight.requires_grad_(False))),
    "norm": Part(lambda: nn.LayerNorm(5)),
    "parallel": Part(lambda: nn.DataParallel(nn.Linear(5, 5))),
}


def composed(names: Sequence[str]) -> nn.Module:
    """The parts of these names between two layers; every other one twice, as one module."""
    built = [PARTS[name].build() for name in names]
    twice = [part for number, part in enumerate(built) for _ in range(1 + number % 2)]
    return nn.Sequential(nn.Linear(FEATURES, 5), *twice, nn.Linear(5, CLASSES))
