"""Refuses a model, a loss, an augmentation and data that do not go together, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from undrift.client.evaluate import Samples, scores_classes
from undrift.client.learner import Learner
from undrift.core.random import Key
from undrift.data import augment as augmentation
from undrift.data.augment import Augment
from undrift.data.federated import FederatedData
from undrift.data.text import IGNORED


def check_fit(learner: Learner, data: FederatedData, test: Samples | None) -> None:
    bad = [k for k, v in learner.parameters.items() if not bool(torch.isfinite(v).all())]
    if bad:
        raise ValueError(f"the model's parameter {bad[0]!r} is not finite")
    _check_test(data, test)
    x, y = data.x[:2].to(learner.device), data.y[:2].to(learner.device)
    with _refusing(f"the model does not accept samples of shape {tuple(data.x.shape[1:])}"):
        output = learner.outputs(learner.parameters, learner.buffers, x)
        learner.listen(torch.cat([x, x]))
    if learner.refusal:
        raise ValueError(learner.refusal)
    if not isinstance(output, Tensor) or output.ndim == 0 or len(output) != len(x):
        raise ValueError(
            f"the model must return a tensor with one row per sample, got {_shape(output)} for {len(x)} samples"
        )
    if learner.classifies:
        _check_classes(output, data.y, "")
        if test is not None:
            _check_classes(output, test[1], "test ")
    with _refusing(f"the loss does not fit outputs of shape {tuple(output.shape)} and targets of {tuple(y.shape)}"):
        values = learner.sample_loss(output, y)
    if not isinstance(values, Tensor) or values.shape != (len(x),):
        raise ValueError(
            f"loss must return one value per sample, a tensor of shape ({len(x)},), got {_shape(values)}; "
            "use reduction='none'"
        )


def find_augmentation(augment: Any, learner: Learner, data: FederatedData) -> Augment | None:
    """The augmentation asked for, if it fits the samples."""
    if augment is None:
        return None
    if not isinstance(augment, str) and not callable(augment):
        raise TypeError(f"augment must be a name or a function of (x, key, step), got {augment!r}")
    found: Augment = augmentation.find(augment) if isinstance(augment, str) else augment
    x = learner.prepare(data.x[:2].to(learner.device))
    with _refusing(f"augment does not fit samples of shape {tuple(data.x.shape[1:])}"):
        after = found(x, Key(0, 1, torch.tensor(0, device=learner.device)), 0)
    if not isinstance(after, Tensor) or after.shape != x.shape:
        raise ValueError(f"augment must keep the shape of samples, {tuple(x.shape)}, got {_shape(after)}")
    return found


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """What goes wrong in the user's code, in one line."""
    try:
        yield
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"{what}: {str(error).strip().splitlines()[0]}") from error


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _check_test(data: FederatedData, test: Samples | None) -> None:
    if test is not None and (test[0].shape[1:] != data.x.shape[1:] or test[1].shape[1:] != data.y.shape[1:]):
        raise ValueError(
            f"test samples have shapes {tuple(test[0].shape[1:])} and {tuple(test[1].shape[1:])}, "
            f"those of clients {tuple(data.x.shape[1:])} and {tuple(data.y.shape[1:])}"
        )


def _check_classes(output: Tensor, y: Tensor, what: str) -> None:
    if y.is_floating_point():
        raise ValueError(
            f"cross-entropy needs {what}targets that are class numbers, got {y.dtype}; give loss=f(output, target)"
        )
    if not len(y):
        return
    if not scores_classes(output, y[: len(output)]) and y.ndim <= 2:
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
