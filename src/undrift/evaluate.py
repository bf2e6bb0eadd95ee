"""Loss and accuracy of a model on held-out samples."""

from __future__ import annotations

import torch
from torch import Tensor

from undrift.learner import IGNORED, Learner
from undrift.tree import Tree

_BLOCK = 2048  # samples evaluated together


def evaluate(learner: Learner, params: Tree, buffers: Tree | None, x: Tensor, y: Tensor) -> dict[str, float]:
    """Mean loss and, where outputs are scores of classes, accuracy."""
    return figures(sums(learner, params, buffers, x, y), len(x))


def sums(learner: Learner, params: Tree, buffers: Tree | None, x: Tensor, y: Tensor) -> Tensor:
    """Sum of losses, right answers and answers [3], in float64; the host need not wait for it."""
    total = torch.zeros(3, dtype=torch.float64, device=x.device)
    for block, target in zip(x.split(_BLOCK), y.split(_BLOCK), strict=True):
        output = learner.outputs(params, buffers, block)
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

    outputs = torch.cat([learner.outputs(params, buffers, block) for block in x.split(_BLOCK)])
    if not scores_classes(outputs, y):
        return {}
    scored = (y != IGNORED).cpu()
    truth, guess = y.cpu()[scored].numpy(), outputs.argmax(-1).cpu()[scored].numpy()
    figures = precision_recall_fscore_support(truth, guess, average="macro", zero_division=0)
    return dict(zip(("precision", "recall", "f1"), map(float, figures[:3]), strict=True))


def scores_classes(output: Tensor, target: Tensor) -> bool:
    return not target.is_floating_point() and output.ndim == target.ndim + 1 and output.shape[:-1] == target.shape
