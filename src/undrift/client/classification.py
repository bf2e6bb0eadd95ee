"""Precision, recall, F1 and confusion of a classifier: all follow exactly from counts of classes.

torchmetrics has them too, rounded to single precision; its figures are compared with these by a test.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from undrift.core.wide import wide
from undrift.data.text import IGNORED


class Counts(NamedTuple):
    """Of every class [classes]: right answers, answers, and samples; in float64 where the device has it."""

    right: Tensor
    answered: Tensor
    there: Tensor

    @property
    def occurs(self) -> Tensor:
        """Whether a class is among the targets or the answers; means over classes are over these."""
        return self.answered + self.there > 0


def counts(outputs: Tensor, targets: Tensor) -> Counts:
    truth, answer = answers(outputs, targets)
    count = partial(torch.bincount, minlength=outputs.shape[-1])
    return Counts(*(wide(count(part)) for part in (truth[truth == answer], answer, truth)))


def confusion(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many samples of every class (row) were taken for which (column)."""
    truth, answer = answers(outputs, targets)
    classes = outputs.shape[-1]
    return torch.bincount(truth * classes + answer, minlength=classes**2).reshape(classes, classes)


def macro_f1(outputs: Tensor, targets: Tensor) -> Tensor:
    """F1 = 2 TP / (2 TP + FP + FN) of every class that occurs among targets or answers, averaged over them."""
    found = counts(outputs, targets)
    return (2 * found.right / (found.answered + found.there))[found.occurs].mean()


def macro_precision(outputs: Tensor, targets: Tensor) -> Tensor:
    """TP / (TP + FP), 0 for a class that is never answered, averaged over the classes that occur."""
    found = counts(outputs, targets)
    return (found.right / found.answered.clamp(min=1))[found.occurs].mean()


def macro_recall(outputs: Tensor, targets: Tensor) -> Tensor:
    """TP / (TP + FN), 0 for a class without samples, averaged over the classes that occur."""
    found = counts(outputs, targets)
    return (found.right / found.there.clamp(min=1))[found.occurs].mean()


def micro(outputs: Tensor, targets: Tensor) -> Tensor:
    """Precision, recall and F1 of all classes together: where every sample has one class and one answer, accuracy."""
    found = counts(outputs, targets)
    return found.right.sum() / found.there.sum()


def class_accuracies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Share of right answers among the samples of every class [classes], which is its recall; NaN without samples."""
    found = counts(outputs, targets)
    return found.right / found.there


def answers(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The classes of all samples, or positions of sequences, that count, and those they are taken for."""
    if not scores_classes(outputs, targets):
        raise ValueError(f"metrics of classes need {misfit(outputs, targets)}")
    scored = targets != IGNORED
    return targets[scored].long(), outputs.argmax(-1)[scored]


def scores_classes(output: Tensor, target: Tensor) -> bool:
    if target.is_floating_point() or output.is_complex():
        return False
    return output.ndim == target.ndim + 1 and output.shape[:-1] == target.shape


def misfit(outputs: Tensor, targets: Tensor) -> str:
    return (
        f"scores of classes and class numbers, got outputs of shape {tuple(outputs.shape)} and "
        f"targets of shape {tuple(targets.shape)} ({str(targets.dtype).removeprefix('torch.')})"
    )
