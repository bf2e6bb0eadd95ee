"""What a module's forward pass does besides computing outputs, detected by calling copies of it with a few samples.

Training treats a module as a pure function of parameters, buffers and samples. Writing to buffers, to parameters and to
the input can be had that way, as the learner gives copies and reads them back. What cannot is refused by name: memory
of earlier calls kept elsewhere, which would pass from one client to the next, and tensors used behind the back of the
learner, which would never be trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from undrift.client.learner import Batch, Learner, SideEffects
from undrift.client.module_copy import is_averaged, named_tensors
from undrift.core import torch_private
from undrift.core.check import one_line
from undrift.core.random import Key
from undrift.core.tree import Tree

Samples = tuple[Tensor, Tensor]  # x, y

_OF_EVERY_MODULE = {*vars(nn.Module()), "_flat_weights"}


class _Trial(NamedTuple):
    """A forward pass in training mode, then one in evaluation mode."""

    tensors: Tree  # parameters and buffers that were given
    values: Tensor  # losses
    outputs: Tensor
    after: Tree  # buffers as training left them
    assigned: list[str]  # names of parameters and buffers that training replaced by other tensors
    attributes: dict[str, Any]  # plain ones, by their path


def examine(learner: Learner, module: nn.Module, samples: Samples, others: Samples) -> SideEffects:
    """The side effects of a learner's module, which is a copy of the caller's `module`.

    `samples` and `others` are a few samples each.
    """
    watch = _Watch(learner, module)
    first = _unprotected(learner)
    replaced = learner.parameters | learner.buffers
    constants = {name: t for name, t in named_tensors(first.module) if name not in replaced}
    trial = _tried(first, learner.parameters, samples, watch)
    _check_structure(learner, first)
    moving = tuple(name for name in learner.effects.moving if name in watch.changed or name in trial.assigned)
    _check_buffers(learner, first, trial=trial, watch=watch, constants=constants)
    if used := watch.foreign({*learner.parameters, *watch.changed, *moving}):
        raise ValueError(
            f"the model uses {used!r} other than under its name, such as by a list, a closure or a hook that refers to "
            "it; it would not be trained there"
        )
    second = _unprotected(learner)
    elsewhere = {k: 0.9 * p for k, p in learner.parameters.items()}
    _tried(second, elsewhere, others, None)
    _check_memory(trial, _tried(second, learner.parameters, samples, None))
    return SideEffects(
        changed=tuple(name for name in learner.parameters if name in watch.changed),
        moving=moving,
        changes_input=watch.input_changed,
        sparse_gradients=_sparse_gradients(learner, samples),
    )


def _tried(learner: Learner, params: Tree, samples: Samples, watch: _Watch | None) -> _Trial:
    given = {k: p.clone().requires_grad_() for k, p in params.items()} | _clones(learner.buffers)
    with one_line("the model fails in training mode"), torch.random.fork_rng(devices=[]):
        batch = _batch(learner, samples)
        with torch.enable_grad(), _watching(watch, given, batch.x):
            values = learner.values(given, batch).detach()
    after = {k: learner.tensor(k, given[k]) for k in learner.buffers}
    assigned = [k for k, tensor in given.items() if learner.tensor(k, tensor) is not tensor]
    fixed, buffers = _clones(params), _clones(learner.buffers)
    with one_line("the model fails in evaluation mode"), torch.random.fork_rng(devices=[]):
        x = learner.prepare(samples[0]).clone()
        with _watching(watch, fixed | buffers, x):
            outputs = learner.outputs(fixed, buffers, x)
    return _Trial(given, values, outputs=outputs, after=after, assigned=assigned, attributes=attributes(learner.module))


def _batch(learner: Learner, samples: Samples) -> Batch:
    key = Key(0, 1, torch.tensor(0, device=learner.device))
    x = learner.prepare(samples[0]).clone()
    return Batch(x, samples[1].clone(), None, key=key, step=0, buffers={})


def _unprotected(learner: Learner) -> Learner:
    """The same learner with a module that was never called, whose side effects reach what it is given."""
    other = learner.copied()
    other.effects = SideEffects()
    return other


def _clones(tensors: Tree) -> Tree:
    return {k: t.detach().clone() for k, t in tensors.items()}


class _Watch:
    """Notes which tensors a forward pass writes to, and which it reads although it was given others for them."""

    def __init__(self, learner: Learner, module: nn.Module) -> None:
        theirs = {_storage(t): name for name, t in named_tensors(module)}
        ours = {_storage(t): name for name, t in (learner.parameters | learner.buffers).items()}
        self._foreign = theirs | ours
        self._read: set[int] = set()
        self._written: set[int] = set()
        self.changed: set[str] = set()  # names of the tensors that were written to
        self.input_changed = False

    @contextmanager
    def calls(self, given: Tree, x: Tensor) -> Iterator[None]:
        here: set[int] = set()  # an address of this call may have been that of something else in an earlier one

        def see(read: list[Tensor], written: list[Tensor]) -> None:
            self._read |= {_storage(t) for t in read}
            here.update(_storage(t) for t in written)

        before, values, places = x.clone(), _clones(given), {k: _storage(t) for k, t in given.items()}
        with torch_private.operations(see):
            yield
        here.discard(0)
        self._written |= here
        self.input_changed |= _storage(x) in here or x.requires_grad or not _same(x, before)
        for name, tensor in given.items():
            # `tensor.data = other` is no operation; nor is what NumPy writes.
            if _storage(tensor) in here or _storage(tensor) != places[name] or not _same(tensor, values[name]):
                self.changed.add(name)

    def wrote(self, tensor: Tensor) -> bool:
        """Whether a tensor that was there all the time was written to."""
        return _storage(tensor) in self._written

    def foreign(self, names: set[str]) -> str:
        """The name of a tensor that was used elsewhere; empty if there is none among `names`."""
        return next((n for key, n in self._foreign.items() if key and key in self._read and n in names), "")


@contextmanager
def _watching(watch: _Watch | None, given: Tree, x: Tensor) -> Iterator[None]:
    if watch is None:
        yield
    else:
        with watch.calls(given, x):
            yield


def _storage(tensor: Tensor) -> int:
    """Where a tensor's memory begins; 0 if it has none of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors, for example
        return 0


def _check_structure(learner: Learner, used: Learner) -> None:
    """Refuses what the first call adds to a module: it would be a client's own, and unknown to the server."""
    before, after = learner.copied().module, used.module
    submodules = {name for name, _ in before.named_modules()}
    for name, part in after.named_modules():
        if name not in submodules:
            raise ValueError(f"the model creates its part {name!r} when it is called; call it once with samples first")
        known = before.get_submodule(name)
        for kind in ("parameters", "buffers"):
            old, new = (getattr(m, f"_{kind}") for m in (known, part))
            for leaf, tensor in new.items():
                path = f"{name}.{leaf}".removeprefix(".")
                if tensor is not None and old.get(leaf) is None:
                    raise ValueError(
                        f"the model creates its {kind[:-1]} {path!r} when it is called; "
                        "register it with its initial value, or call the model once with samples first"
                    )
            if gone := [leaf for leaf, tensor in old.items() if tensor is not None and new.get(leaf) is None]:
                raise ValueError(f"the model removes its {kind[:-1]} {f'{name}.{gone[0]}'.removeprefix('.')!r}")


def _check_buffers(learner: Learner, used: Learner, trial: _Trial, watch: _Watch, constants: Tree) -> None:
    if replaced := [name for name in trial.assigned if name in learner.parameters]:
        raise ValueError(f"the model replaces its parameter {replaced[0]!r} by another tensor when it is called")
    for name, before in learner.buffers.items():
        now = trial.after[name]
        if now.shape != before.shape or now.dtype != before.dtype:
            raise ValueError(
                f"the model's buffer {name!r} is {_described(before)} before a call and {_described(now)} after it; "
                "buffers must keep shape and type"
            )
    for name, tensor in named_tensors(used.module):
        if name in constants and (tensor is not constants[name] or watch.wrote(tensor)):
            raise ValueError(
                f"the model changes its tensor {name!r}, which is {_described(tensor)}; "
                "only dense ones of real numbers may change"
            )


def _described(tensor: Tensor) -> str:
    kind = "" if tensor.layout is torch.strided else f" {tensor.layout}".replace("torch.", "")
    return f"{str(tensor.dtype).removeprefix('torch.')}{kind} of shape {tuple(tensor.shape)}"


def _check_memory(alone: _Trial, later: _Trial) -> None:
    """Refuses a module that remembers earlier calls other than in its buffers."""
    names = alone.attributes | later.attributes
    for name in names:
        if not _alike(alone.attributes.get(name), later.attributes.get(name)):
            raise ValueError(
                f"the model remembers earlier calls in its attribute {name!r}, which would pass from one client to the "
                "next; register what it remembers as a buffer"
            )
    results = {"values": (alone.values, later.values), "outputs": (alone.outputs, later.outputs)}
    results |= {name: (tensor, later.after[name]) for name, tensor in alone.after.items()}
    if not all(_alike(*pair) for pair in results.values()):
        read = [name for name, value in names.items() if isinstance(value, Tensor)]
        where = f", perhaps in its attribute {read[0]!r}" if read else ""
        raise ValueError(
            f"the model's outputs depend on earlier calls{where}, which would pass from one client to the next; "
            "register what it remembers as a buffer"
        )


def remembering(before: dict[str, Any], module: nn.Module) -> str:
    """A closing half-sentence: where a module whose attributes were once these may keep something between calls."""
    after = attributes(module)
    changed = [name for name in before | after if not _alike(before.get(name), after.get(name))]
    return f", such as in its attribute {changed[0]!r}" if changed else ""


def attributes(module: nn.Module) -> dict[str, Any]:
    """Tensors and plain values that a module keeps, other than parameters and buffers that calls replace."""
    found = {name: _value(t) for name, t in module.named_buffers() if not is_averaged(t)}
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in _OF_EVERY_MODULE:
                _note(found, f"{prefix}.{name}".removeprefix("."), value)
    return found


def _value(tensor: Tensor) -> Tensor | None:
    return tensor.detach().clone() if tensor.layout is torch.strided and not tensor.is_quantized else None


def _note(found: dict[str, Any], path: str, value: Any, depth: int = 0) -> None:
    if isinstance(value, Tensor):
        found[path] = _value(value)
    elif isinstance(value, int | float | complex | str | bytes | None):
        found[path] = value
    elif isinstance(value, Mapping) and depth < 8:
        found[path] = len(value)
        for key, inner in value.items():
            _note(found, f"{path}[{key!r}]", inner, depth + 1)
    elif isinstance(value, list | tuple | set) and depth < 8:
        found[path] = len(value)
        for place, inner in enumerate(value if not isinstance(value, set) else ()):
            _note(found, f"{path}[{place}]", inner, depth + 1)


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and _near(a, b)
    return type(a) is type(b) and (a == b or a != a)


def _near(a: Tensor, b: Tensor) -> bool:
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    near = 1e3 * torch.finfo(a.dtype).eps  # a sum may be rounded otherwise where memory is aligned otherwise
    scale = float(a.detach().abs().nan_to_num().max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=near, atol=near * scale, equal_nan=True)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())


def _sparse_gradients(learner: Learner, samples: Samples) -> tuple[str, ...]:
    """Names of parameters with sparse gradients; refuses what cannot be differentiated."""
    used = _unprotected(learner)
    points = {k: p.clone().requires_grad_() for k, p in learner.parameters.items()}
    # As in training, parameters that the module writes to are copies of those that gradients are taken for.
    with one_line("the model cannot be differentiated"), torch.random.fork_rng(devices=[]), torch.enable_grad():
        loss = used.values(points | _clones(learner.buffers), _batch(learner, samples)).mean()
        if not loss.requires_grad:
            return ()
        with _calls(used.module) as recomputed:
            gradients = torch.autograd.grad(loss, list(points.values()), allow_unused=True)
    if recomputed and (learner.draws_numbers or learner.buffers):
        raise ValueError(
            f"the model computes {recomputed[0]} again in the backward pass (torch.utils.checkpoint), where random "
            "numbers and buffers would differ; call it without checkpoints"
        )
    return tuple(k for k, g in zip(points, gradients, strict=True) if g is not None and g.layout is not torch.strided)


@contextmanager
def _calls(module: nn.Module) -> Iterator[list[str]]:
    """The kinds of submodules that are called meanwhile."""
    called: list[str] = []
    handles = [
        part.register_forward_pre_hook(lambda part, _: called.append(type(part).__name__)) for part in module.modules()
    ]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()
