"""Figures of an evaluation besides loss and accuracy: functions of all outputs and targets.

To add one, write it here and name it in `METRICS`; how it is shown is declared in `reporting.record`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from undrift.core import check
from undrift.core.wide import wide
from undrift.data.text import IGNORED

Metric = Callable[[Tensor, Tensor], Any]  # (outputs [n, ...], targets [n, ...]) -> a number


def macro_f1(outputs: Tensor, targets: Tensor) -> Tensor:
    """F1 = 2 TP / (2 TP + FP + FN) of every class that occurs among targets or predictions, averaged over them."""
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1:
        raise ValueError(
            f"f1 needs scores of classes and class numbers, got outputs of shape {tuple(outputs.shape)} "
            f"and targets of shape {tuple(targets.shape)}"
        )
    scored = targets != IGNORED
    classes, truth, guess = outputs.shape[-1], targets[scored].long(), outputs.argmax(-1)[scored]
    right = wide(truth[truth == guess].bincount(minlength=classes))
    both = wide(truth.bincount(minlength=classes) + guess.bincount(minlength=classes))  # 2 TP + FP + FN
    return (2 * right / both)[both > 0].mean()


METRICS: dict[str, Metric] = {"f1": macro_f1}


def find(metrics: Any, reserved: tuple[str, ...] = ()) -> dict[str, Metric]:
    """Metrics by name, or given as ``{name: function}``; names in `reserved` are taken."""
    if isinstance(metrics, str):
        metrics = (metrics,)
    if not isinstance(metrics, Mapping):
        if not isinstance(metrics, Sequence):
            raise TypeError(f"metrics must be names or a dict of functions, got {check.shown(metrics)}")
        for name in metrics:
            if not isinstance(name, str) or name not in METRICS:
                raise ValueError(f"unknown metric {check.shown(name)}{check.nearest(name, METRICS)}")
        metrics = {name: METRICS[name] for name in metrics}
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
