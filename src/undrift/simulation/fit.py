"""Refuses a model, a loss, an augmentation and data that do not go together, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from undrift.client.classification import scores_classes
from undrift.client.draws import Listener, keyed
from undrift.client.evaluate import Samples
from undrift.client.generators import Watch, kept
from undrift.client.learner import Learner, Trial, Tried
from undrift.client.side_effects import attributes, examine, remembering
from undrift.core import check
from undrift.core.random import Key, Stream
from undrift.data import augment as augmentation
from undrift.data.arrays import kind_of_input, tensor
from undrift.data.augment import Augment
from undrift.data.federated import FederatedData
from undrift.data.text import IGNORED
from undrift.methods import aggregate as aggregation
from undrift.methods.aggregate import Aggregate
from undrift.methods.robust import Rule


def check_fit(
    learner: Learner, module: nn.Module, data: FederatedData, test: Samples | None, tried: Tried | None = None
) -> None:
    """`learner` learns a copy of `module`, which is not tried again where it was `tried`."""
    bad = [k for k, v in learner.parameters.items() if not bool(torch.isfinite(v).all())]
    if bad:
        raise ValueError(f"the model's parameter {bad[0]!r} is not finite")
    _check_test(data, test)
    _check_range("x", data.x, learner.dtype)
    if test is not None:
        _check_range("test x", test[0], learner.dtype)
    _check_loss_parameters(learner.loss)
    given = data.x[:2].to(learner.device), data.y[:2].to(learner.device)

    def check_classes(output: Tensor) -> None:
        if learner.classifies:
            _check_classes(output, data.y, "")
            if test is not None:
                _check_classes(output, test[1], "test ")

    if tried is not None:
        learner.listen(torch.cat([given[0]] * 2), tried.trial)
        learner.set_effects(tried.effects)
        with check.one_line(_not_accepted(given[0])):
            check_classes(learner.outputs(learner.parameters, learner.buffers, given[0]))
        return
    trying = learner.copied()
    with kept(trying.module, learner.loss), _unchanged(learner.loss):
        learner.listen(torch.cat([given[0]] * 2), _try(trying, given, check_classes))
        count = min(4, len(data.x))
        few, others = _few(data, slice(count), learner), _few(data, slice(-count, None), learner)
        learner.set_effects(examine(learner, module, few, others))


def check_samples(x: Any, like: Tensor) -> Tensor:
    """Samples as a tensor, if they are of the shape and kind of those that a model was trained with."""
    samples = tensor("x", x)
    if not len(samples) or samples.shape[1:] != like.shape[1:]:
        raise ValueError(
            f"x must have samples of shape {tuple(like.shape[1:])}, [n, ...], at least one, got {tuple(samples.shape)}"
        )
    if kind_of_input(samples) != kind_of_input(like):
        raise ValueError(
            f"x is {kind_of_input(samples)} ({samples.dtype}), "
            f"but the model was trained with {kind_of_input(like)} ({like.dtype})"
        )
    return samples


def _few(data: FederatedData, part: slice, learner: Learner) -> Samples:
    return data.x[part].to(learner.device), data.y[part].to(learner.device)


def find_augmentation(augment: Any, learner: Learner, data: FederatedData) -> Augment | None:
    """The augmentation asked for, if it fits the samples; random functions that it calls are made reproducible."""
    if augment is None:
        return None
    if not isinstance(augment, str) and not callable(augment):
        raise TypeError(f"augment must be a name or a function of (x, key, step), got {check.shown(augment)}")
    found: Augment = augmentation.find(augment) if isinstance(augment, str) else augment
    key, watch = Key(0, 1, torch.tensor(0, device=learner.device)), Watch(found)
    with kept(found):
        first, second = (_augment(found, watch, learner.prepare(data.x[:2].to(learner.device)), key) for _ in range(2))
    _check_same(first, second)
    return keyed(found) if first.listener.heard else found


# Calling the user's code twice, with a few samples


class _Pass(NamedTuple):
    """What was seen of one pass, to be compared with another one."""

    values: dict[str, list[Tensor]]  # by what they came from
    listener: Listener


def _try(learner: Learner, given: Samples, check_classes: Callable[[Tensor], None]) -> Trial:
    """Evaluate and train twice, with a learner that is not used afterwards: the second time must be the same."""
    watch = Watch(learner.module, learner.loss)
    fresh = attributes(learner.module)
    evaluated = [_evaluate_first(learner, watch, given, check_classes), _evaluate(learner, watch, given, check_classes)]
    _check_same(evaluated[0], evaluated[1], remembering(fresh, learner.module))
    more = torch.cat([given[0]] * 2), torch.cat([given[1]] * 2)  # another number of samples, more than one
    trained = [_train(learner, watch, more) for _ in range(2)]
    _check_same(trained[0], trained[1], remembering(fresh, learner.module))
    return Trial(
        draws_numbers=trained[0].listener.heard,
        draws_in_evaluation=evaluated[0].listener.calls > 0,
        differentiates=learner.differentiates,
    )


def _evaluate_first(learner: Learner, watch: Watch, given: Samples, check_classes: Callable[[Tensor], None]) -> _Pass:
    """The same where nothing is known of the module yet: it may need gradients to compute its outputs."""
    try:
        return _evaluate(learner, watch, given, check_classes)
    except ValueError as error:
        if not isinstance(error.__cause__, RuntimeError):
            raise
        learner.differentiates = True
        try:
            return _evaluate(learner, watch, given, check_classes)
        except ValueError:
            raise error from error.__cause__


def _evaluate(learner: Learner, watch: Watch, given: Samples, check_classes: Callable[[Tensor], None]) -> _Pass:
    x, y = (part.clone() for part in given)
    listener = Listener(learner.evaluation_key, 0, Stream.EVALUATION)
    params = {k: v.clone() for k, v in learner.parameters.items()}
    with watch("the model in evaluation mode"), check.one_line(_not_accepted(x)), listener:
        output = learner.outputs(params, learner.buffers, x)
    _check_output(output, len(x), "")
    check_classes(output)
    before = output.clone()
    with watch("the loss"), check.one_line(_not_fitting(output, y)), listener, torch.no_grad():
        values = learner.sample_loss(output, y)
    _check_values(values, len(x))
    _check_calls(listener)
    return _Pass({"the model": [before], "the loss": [values]}, listener)


def _train(learner: Learner, watch: Watch, given: Samples) -> _Pass:
    x, y = (part.clone() for part in given)
    listener = Listener(Key(0, 1, torch.tensor(0, device=learner.device)), 0)
    points = {k: v.clone().requires_grad_() for k, v in learner.parameters.items()}
    with torch.enable_grad():
        with watch("the model"), check.one_line(f"{_not_accepted(x)} in training mode"), listener:
            output = learner.training_output(points, x)
        _check_output(output, len(x), "in training mode ")
        before, version = output.detach().clone(), y._version
        with watch("the loss"), check.one_line(_not_fitting(output, y)), listener:
            values = learner.sample_loss(output, y)
    _check_values(values, len(x))
    _check_calls(listener)
    # Of targets the writes are counted too: what is written may be what was there, in these few samples.
    if y._version > version or not _same(y, given[1]) or not _same(output.detach(), before):
        raise ValueError("the loss writes into the outputs or targets that it is given; let it copy them before")
    _check_attached(output, values)
    remedy = "draw in the forward pass, without checkpointing"
    with watch("the backward pass", remedy), check.one_line("the loss cannot be differentiated"):
        slopes = torch.autograd.grad(values.sum(), list(points.values()), allow_unused=True)
    gradient = [slope.detach() for slope in slopes if slope is not None]
    if not gradient:
        raise ValueError(
            "the loss depends on none of the model's trainable parameters, so that nothing would be trained"
        )
    passed = {"the model": [before], "the loss": [values.detach()], "the backward pass": gradient}
    return _Pass(passed, listener)


def _augment(augment: Augment, watch: Watch, given: Tensor, key: Key) -> _Pass:
    x, listener = given.clone(), Listener(key, 0, Stream.OWN_AUGMENT)
    with watch("augment"), check.one_line(f"augment does not fit samples of shape {tuple(x.shape[1:])}"), listener:
        after = augment(x, key, 0)
    if not isinstance(after, Tensor) or after.shape != given.shape:
        raise ValueError(f"augment must keep the shape of samples, {tuple(given.shape)}, got {_shape(after)}")
    if after.is_floating_point() != given.is_floating_point():
        raise ValueError(f"augment must keep the type of samples, {given.dtype}, got {after.dtype}")
    _check_calls(listener)
    return _Pass({"augment": [after.detach().clone()]}, listener)


# What is refused


def _check_loss_parameters(loss: Any) -> None:
    """A loss that is a module is used as it is: nothing in it is trained."""
    own = [k for k, v in loss.named_parameters() if v.requires_grad] if isinstance(loss, nn.Module) else []
    if own:
        raise ValueError(
            f"the loss {type(loss).__name__} has a parameter of its own, {own[0]!r}, which would not be trained; "
            "make it a part of the model, or call requires_grad_(False)"
        )


@contextmanager
def _unchanged(loss: Any) -> Iterator[None]:
    """Refuses a loss that is a module with statistics of its own, which all clients would share."""
    own = dict(loss.named_buffers()) if isinstance(loss, nn.Module) else {}
    before = {k: b.clone() for k, b in own.items()}
    yield
    changed = [k for k, b in own.items() if not _same(b, before[k])]
    for k, b in own.items():
        b.copy_(before[k])
    if changed:
        raise ValueError(
            f"the loss {type(loss).__name__} changes its buffer {changed[0]!r}, which all clients would share; "
            "make it a part of the model, or call eval()"
        )


def _check_output(output: Any, count: int, mode: str) -> None:
    if not isinstance(output, Tensor) or output.ndim == 0 or len(output) != count:
        got = f"a dict with {', '.join(map(repr, output))}" if isinstance(output, dict) else _shape(output)
        also = "" if isinstance(output, Tensor) else ", or a dict or an object with such logits"
        raise ValueError(
            f"{mode}the model must return a tensor with one row per sample{also}, got {got} for {count} samples"
        )


def _check_values(values: Any, count: int) -> None:
    if not isinstance(values, Tensor) or values.shape != (count,):
        raise ValueError(
            f"loss must return one value per sample, a tensor of shape ({count},), got {_shape(values)}; "
            "use reduction='none'"
        )
    if not values.is_floating_point():
        raise ValueError(f"loss must return floating-point numbers, got {values.dtype}")


def _check_attached(output: Tensor, values: Tensor) -> None:
    """Detached tensors would train nothing, on some engines without an error."""
    if not output.requires_grad:
        why = "is detached from its parameters" if output.is_floating_point() else f"is of type {output.dtype}"
        raise ValueError(f"the model's output {why}, so that nothing would be trained")
    if not values.requires_grad:
        raise ValueError("the loss is detached from the model's output, so that nothing would be trained")


def _check_calls(listener: Listener) -> None:
    if listener.seeded:
        raise ValueError(
            "torch's default generator is seeded or used by the model, the loss or augment; for random numbers that "
            "are always the same, give the function that draws them generator=torch.Generator().manual_seed(0)"
        )
    if listener.mapped:
        raise ValueError("random numbers drawn under torch.vmap would be the same for all it maps; draw them before it")


def _check_same(first: _Pass, second: _Pass, where: str = "") -> None:
    for what, tensors in first.values.items():
        if not all(map(_same, tensors, second.values[what])):
            raise ValueError(
                f"{what} gives other numbers when it is called again with the same samples, so that no two runs would "
                "give the same: it draws from a generator that undrift cannot replace, or keeps something between calls"
                + where
            )


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, but for what the order of a sum on a GPU can change."""
    a, b = (part.to_dense() if part.layout is not torch.strided else part for part in (a, b))
    if not (a.is_floating_point() or a.is_complex()) or not a.numel():
        return torch.equal(a, b)
    near = torch.finfo(a.dtype).eps ** 0.75
    scale = float(a.detach().abs().nan_to_num(0, 0, 0).max())
    return torch.allclose(a, b, rtol=near, atol=near * scale, equal_nan=True)


def find_aggregate(aggregate: Any, learner: Learner, clients: int) -> Aggregate:
    """The aggregation rule asked for, if cohorts of so many clients are enough for it; a user's own is tried on two."""
    found = aggregation.find(aggregate)
    if isinstance(found, Rule):
        found.check(clients)
    elif not isinstance(aggregate, str):
        updates = {name: value.expand(2, *value.shape) for name, value in learner.parameters.items()}
        with check.one_line("aggregate must be a function of (updates, weights)"), torch.no_grad():
            after: Any = found(updates, torch.full((2,), 0.5, dtype=learner.dtype, device=learner.device))
        if not isinstance(after, dict) or {k: _shape(v) for k, v in after.items()} != {
            k: tuple(v.shape) for k, v in learner.parameters.items()
        }:
            raise ValueError("aggregate must return one update, a tensor for every name, of the shape of a client's")
    return found


def _not_accepted(x: Tensor) -> str:
    return f"the model does not accept samples of shape {tuple(x.shape[1:])}"


def _not_fitting(output: Tensor, y: Tensor) -> str:
    return f"the loss does not fit outputs of shape {tuple(output.shape)} and targets of {tuple(y.shape)}"


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _check_test(data: FederatedData, test: Samples | None) -> None:
    if test is not None and (test[0].shape[1:] != data.x.shape[1:] or test[1].shape[1:] != data.y.shape[1:]):
        raise ValueError(
            f"test samples have shapes {tuple(test[0].shape[1:])} and {tuple(test[1].shape[1:])}, "
            f"those of clients {tuple(data.x.shape[1:])} and {tuple(data.y.shape[1:])}"
        )
    if test is not None and kind_of_input(test[0]) != kind_of_input(data.x):
        raise ValueError(
            f"test samples are {kind_of_input(test[0])} ({test[0].dtype}), "
            f"but those of clients are {kind_of_input(data.x)} ({data.x.dtype})"
        )
    if test is not None and test[1].is_floating_point() != data.y.is_floating_point():
        raise ValueError(f"test targets have the type {test[1].dtype}, those of clients {data.y.dtype}")


def _check_range(what: str, x: Tensor, dtype: torch.dtype) -> None:
    """Refuse samples that would become infinite in the model's precision."""
    if x.is_floating_point() and (most := torch.finfo(dtype).max) < torch.finfo(x.dtype).max:
        largest = float(torch.stack(torch.aminmax(x)).abs().max())
        if largest > most:
            raise ValueError(f"data: {what} holds {largest:g}, beyond the model's {dtype}; scale it, or give dtype=")


def _check_classes(output: Tensor, y: Tensor, what: str) -> None:
    if y.is_floating_point():
        raise ValueError(
            f"cross-entropy needs {what}targets that are class numbers, got {y.dtype}; give loss=f(output, target)"
        )
    if output.is_complex():
        raise ValueError(f"cross-entropy needs real outputs, got {output.dtype}; give loss=f(output, target)")
    if not len(y):
        return
    if not scores_classes(output[: len(y)], y[: len(output)]) and y.ndim <= 2:
        raise ValueError(
            f"cross-entropy needs one output per class: for {what}targets of shape {tuple(y.shape[1:])} the model "
            f"must return [samples, {'positions, ' if y.ndim == 2 else ''}classes], got {tuple(output.shape)}"
        )
    predicted = y if y.ndim == 1 else y[y != IGNORED]
    if not len(predicted):
        raise ValueError(f"all {what}targets are {IGNORED}, which means that nothing is to be predicted")
    low, high, classes = int(predicted.min()), int(predicted.max()), output.shape[-1]
    if low < 0 or high >= classes:
        raise ValueError(
            f"{what}labels must lie in 0..{classes - 1} for a model with {classes} outputs, got {low}..{high}"
        )
