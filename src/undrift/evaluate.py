"""Loss and accuracy of a model on held-out samples."""

from __future__ import annotations

import torch
from torch import Tensor

from undrift.learner import Learner
from undrift.tree import Tree

_BLOCK = 2048  # samples evaluated together


def evaluate(learner: Learner, params: Tree, buffers: Tree | None, x: Tensor, y: Tensor) -> dict[str, float]:
    """Mean loss and, where outputs are scores of classes, accuracy; summed in float64."""
    loss = torch.zeros((), dtype=torch.float64, device=x.device)
    correct = torch.zeros((), dtype=torch.int64, device=x.device)
    scored = 0
    for block, target in zip(x.split(_BLOCK), y.split(_BLOCK), strict=True):
        output = learner.outputs(params, buffers, block)
        loss += learner.sample_loss(output, target).double().sum()
        if scores_classes(output, target):
            correct += (output.argmax(-1) == target).sum()
            scored += target.numel()
    figures = {"loss": float(loss) / len(x)}
    if scored:
        figures["accuracy"] = int(correct) / scored
    return figures


def scores_classes(output: Tensor, target: Tensor) -> bool:
    return not target.is_floating_point() and output.ndim == target.ndim + 1 and output.shape[:-1] == target.shape
