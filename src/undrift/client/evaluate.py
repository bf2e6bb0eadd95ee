"""Loss and accuracy of a model on held-out samples."""

from __future__ import annotations

import torch
from torch import Tensor

from undrift.client.learner import IGNORED, Learner
from undrift.core.tree import Tree

_BLOCK = {"cpu": 128, "cuda": 2048}  # samples evaluated together: those that stay in the cache, or fill a GPU
_STATISTICS = 2048  # likewise, where batch normalisation uses the statistics of those evaluated together


def evaluate(learner: Learner, params: Tree, buffers: Tree | None, x: Tensor, y: Tensor) -> dict[str, float]:
    """Mean loss and, where outputs are scores of classes, accuracy."""
    return figures(sums(learner, params, buffers, x, y), len(x))


def sums(learner: Learner, params: Tree, buffers: Tree | None, x: Tensor, y: Tensor) -> Tensor:
    """Sum of losses, right answers and answers [3], in float64; the host need not wait for it."""
    total = torch.zeros(3, dtype=torch.float64, device=x.device)
    block = _block(learner, buffers)
    for inputs, target in zip(x.split(block), y.split(block), strict=True):
        output = learner.alone.outputs(params, buffers, inputs)
        total[0] += learner.sample_loss(output, target).double().sum()
        if scores_classes(output, target):
            total[1] += (output.argmax(-1) == target).sum()
            total[2] += (target != IGNORED).sum()
    return total


def figures(sums: Tensor, samples: int) -> dict[str, float]:
    loss, correct, scored = sums.tolist()
    return {"loss": loss / samples} | ({"accuracy": correct / scored} if scored else {})


def class_averages(learner: Learner, params: Tree, buffers: Tree | None, x: Tensor, y: Tensor) -> dict[str, float]:
    """Precision, recall and F1, averaged over classes (macro); averaged over samples (micro) all three are accuracy."""
    from sklearn.metrics import precision_recall_fscore_support  # slow to import, rarely needed

    blocks = x.split(_block(learner, buffers))
    outputs = torch.cat([learner.alone.outputs(params, buffers, inputs) for inputs in blocks])
    if not scores_classes(outputs, y):
        return {}
    scored = (y != IGNORED).cpu()
    truth, guess = y.cpu()[scored].numpy(), outputs.argmax(-1).cpu()[scored].numpy()
    figures = precision_recall_fscore_support(truth, guess, average="macro", zero_division=0)
    return dict(zip(("precision", "recall", "f1"), map(float, figures[:3]), strict=True))


def _block(learner: Learner, buffers: Tree | None) -> int:
    if buffers is None and learner.normalises:
        return _STATISTICS
    return _BLOCK.get(learner.device.type, _STATISTICS)


def scores_classes(output: Tensor, target: Tensor) -> bool:
    return not target.is_floating_point() and output.ndim == target.ndim + 1 and output.shape[:-1] == target.shape
