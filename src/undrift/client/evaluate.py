"""Loss, accuracy and metrics of a model on held-out samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from undrift.client import metrics as further
from undrift.client.learner import Learner
from undrift.client.metrics import Metric
from undrift.core.tree import Nest, Tree
from undrift.data.text import IGNORED

_BLOCK = {"cpu": 128, "cuda": 2048}  # samples evaluated together: those that stay in the cache, or fill a GPU
_STATISTICS = 2048  # likewise, where batch normalisation uses the statistics of those evaluated together


class Weights(NamedTuple):
    """A model to evaluate; without buffers, batch normalisation uses the statistics of the samples."""

    params: Tree
    buffers: Tree | None


Samples = tuple[Tensor, Tensor]  # x, y


def evaluate(
    learner: Learner, weights: Weights, test: Samples, metrics: Mapping[str, Metric] | None = None
) -> dict[str, float]:
    """Mean loss and, where outputs are scores of classes, accuracy; then the metrics."""
    return figures(totals(learner, weights, test, keep_outputs=bool(metrics)), test[1], metrics or {})


def totals(learner: Learner, weights: Weights, test: Samples, keep_outputs: bool = False) -> Nest:
    """Tensors from which `figures` follow, so that the host need not wait for them.

    ``sums`` [3] are the sum of losses, right answers and answers, in float64; ``outputs`` are kept where asked for.
    """
    total = torch.zeros(3, dtype=torch.float64, device=test[0].device)
    block, kept = _block(learner, weights.buffers), []
    for inputs, target in zip(*(part.split(block) for part in test), strict=True):
        output = learner.alone.outputs(weights.params, weights.buffers, inputs)
        total[0] += learner.evaluation_losses(output, target).double().sum()
        if scores_classes(output, target):
            total[1] += (output.argmax(-1) == target).sum()
            total[2] += (target != IGNORED).sum()
        if keep_outputs:
            kept.append(output)
    return {"sums": total} | ({"outputs": torch.cat(kept)} if kept else {})


def figures(totals: Nest, targets: Tensor, metrics: Mapping[str, Metric]) -> dict[str, float]:
    loss, correct, scored = totals["sums"].tolist()
    found = {"loss": loss / len(targets)} | ({"accuracy": correct / scored} if scored else {})
    return found | (further.figures(metrics, totals["outputs"], targets) if metrics else {})


def class_averages(learner: Learner, weights: Weights, test: Samples) -> dict[str, float]:
    """Precision, recall and F1, averaged over classes (macro); averaged over samples (micro) all three are accuracy."""
    from sklearn.metrics import precision_recall_fscore_support  # slow to import, rarely needed

    outputs, y = totals(learner, weights, test, keep_outputs=True)["outputs"], test[1]
    if not scores_classes(outputs, y):
        return {}
    scored = (y != IGNORED).cpu()
    truth, guess = y.cpu()[scored].numpy(), outputs.argmax(-1).cpu()[scored].numpy()
    averages = precision_recall_fscore_support(truth, guess, average="macro", zero_division=0)
    return dict(zip(("precision", "recall", "f1"), map(float, averages[:3]), strict=True))


def _block(learner: Learner, buffers: Tree | None) -> int:
    if buffers is None and learner.normalises:
        return _STATISTICS
    return _BLOCK.get(learner.device.type, _STATISTICS)


def scores_classes(output: Tensor, target: Tensor) -> bool:
    return not target.is_floating_point() and output.ndim == target.ndim + 1 and output.shape[:-1] == target.shape
