"""Figures of an evaluation besides loss and accuracy.

Most are functions of all outputs and targets. To add one, name it in `FUNCTIONS`; how it is shown is declared in
`reporting.record`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from undrift.client.classification import (
    macro_f1,
    macro_precision,
    macro_recall,
    micro,
    misfit,
    scores_classes,
)
from undrift.client.fairness import FIGURES
from undrift.core import check
from undrift.core.extras import needs
from undrift.data.text import IGNORED

Metric = Callable[[Tensor, Tensor], Any]  # (outputs [n, ...], targets [n, ...]) -> a number

MOST_CLASSES = 1000  # of which each has a column of the history, or a row of the confusion matrix


class _TorchMetric:
    """A metric that torchmetrics computes, from scores and not only from the most likely class."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name, self.options = name, options

    def function(self) -> Callable[..., Any]:
        with needs("metrics"):
            from torchmetrics.functional import classification
        found: Callable[..., Any] = getattr(classification, f"multiclass_{self.name}")
        return found

    def __call__(self, outputs: Tensor, targets: Tensor) -> Any:
        scored = targets != IGNORED
        scores, truth = outputs[scored].float().softmax(-1).cpu(), targets[scored].long().cpu()
        return self.function()(scores, truth, num_classes=scores.shape[-1], validate_args=False, **self.options)


FUNCTIONS: dict[str, Metric] = {
    "f1": macro_f1,
    "precision": macro_precision,
    "recall": macro_recall,
    "f1_micro": micro,
    "precision_micro": micro,
    "recall_micro": micro,
    "auroc": _TorchMetric("auroc"),
    "calibration_error": _TorchMetric("calibration_error"),
}
PER_CLASS, CONFUSION, FAIRNESS, PERSONAL = "per_class_accuracy", "confusion", "fairness", "personal_accuracy"
# Those that are more than a number, or are made of the accuracies of clients.
METRICS = (*FUNCTIONS, PER_CLASS, CONFUSION, FAIRNESS, PERSONAL)


@dataclass(frozen=True)
class Metrics:
    """What is computed in every evaluation besides loss and accuracy."""

    names: tuple[str, ...] = ()  # none of a user's own
    functions: Mapping[str, Metric] = field(default_factory=dict)  # of all outputs and targets, a number each
    classes: int = 0  # how many there are; known once a model is

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def need_outputs(self) -> bool:
        return bool(self.functions) or PER_CLASS in self or CONFUSION in self

    @property
    def of_clients(self) -> tuple[str, ...]:
        """Those that are made of the accuracies of clients."""
        return tuple(name for name in self.names if name in (FAIRNESS, PERSONAL))

    @property
    def need_clients(self) -> bool:
        """Whether the accuracy of every client is needed."""
        return bool(self.of_clients)

    @property
    def columns(self) -> list[str]:
        """The columns of the history that hold them."""
        several = {
            PER_CLASS: [class_column(number) for number in range(self.classes)],
            CONFUSION: [],
            FAIRNESS: [fairness_column(figure) for figure in FIGURES],
        }
        return [column for name in self.names or self.functions for column in several.get(name, [name])]

    def fitting(self, outputs: Tensor, targets: Tensor) -> Metrics:
        """With the number of classes, from outputs of some samples and all targets; refuses what is not of classes."""
        if not self.names:
            return self
        metric, classes = f"metric {self.names[0]!r}", outputs.shape[-1]
        if not scores_classes(outputs, targets[: len(outputs)]):
            raise ValueError(f"{metric} needs {misfit(outputs, targets)}")
        known = targets[targets != IGNORED]
        if len(known) and not 0 <= int(known.min()) <= int(known.max()) < classes:
            raise ValueError(
                f"{metric} needs class numbers from 0 to {classes - 1}, as the model scores {classes} classes, "
                f"got targets from {int(known.min())} to {int(known.max())}"
            )
        for name in (PER_CLASS, CONFUSION):
            if name in self and classes > MOST_CLASSES:
                raise ValueError(f"metric {name!r} is for at most {MOST_CLASSES} classes, and there are {classes}")
        return replace(self, classes=classes)


def class_column(number: int) -> str:
    return f"accuracy_class_{number}"


def fairness_column(figure: str) -> str:
    return f"client_accuracy_{figure}"


def find(metrics: Any, reserved: tuple[str, ...] = ()) -> Metrics:
    """Metrics by name, or given as ``{name: function}``; names in `reserved` are taken."""
    if isinstance(metrics, Mapping):
        return Metrics(functions=_own(metrics, reserved))
    if isinstance(metrics, str) or not isinstance(metrics, Sequence):
        raise TypeError(f"metrics must be names or a dict of functions, got {check.shown(metrics)}")
    for name in metrics:
        if not isinstance(name, str) or name not in METRICS:
            raise ValueError(f"unknown metric {check.shown(name)}{check.nearest(name, METRICS)}")
        if isinstance(function := FUNCTIONS.get(name), _TorchMetric):
            function.function()  # which says so if it is not installed
    names = tuple(dict.fromkeys(metrics))
    return Metrics(names, {name: FUNCTIONS[name] for name in names if name in FUNCTIONS})


def _own(metrics: Mapping[Any, Any], reserved: tuple[str, ...]) -> dict[str, Metric]:
    for name, function in metrics.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"a metric's name must be a plain word, as it names a column, got {check.shown(name)}")
        if name in reserved:
            raise ValueError(f"the history has a column {name!r} already; give the metric another name")
        check.function(f"metric {name!r}", function, "outputs", "targets")
    return dict(metrics)


def figures(metrics: Mapping[str, Metric], outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """The value of every metric; refuses what is not a number."""
    found: dict[str, float] = {}
    with torch.no_grad():
        for name, metric in metrics.items():
            value = metric(outputs, targets)
            try:
                found[name] = float(value)
            except (TypeError, ValueError, RuntimeError):
                raise TypeError(f"metric {name!r} must return a number, got {type(value).__name__}") from None
    return found
