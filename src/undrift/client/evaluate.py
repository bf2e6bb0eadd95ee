"""Loss, accuracy and metrics of a model on held-out samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.client import metrics as further
from undrift.client.classification import scores_classes
from undrift.client.learner import Learner
from undrift.client.metrics import Metric
from undrift.core.tree import Nest, Tree
from undrift.core.wide import wide, widest
from undrift.data.text import IGNORED
from undrift.statistics.predictions import Predictions

STATISTICS = 2048  # samples evaluated together, where batch normalisation uses the statistics of them


class Weights(NamedTuple):
    """A model to evaluate; without buffers, batch normalisation uses the statistics of the samples."""

    params: Tree
    buffers: Tree | None


Samples = tuple[Tensor, Tensor]  # x, y


# (task, count, learner): calls task(number, learner) for every number below count, each with a learner of its own; an
# engine that has several workers lets them share the blocks of an evaluation
Spread = Callable[[Callable[[int, Learner], None], int, Learner], None]


def one_by_one(task: Callable[[int, Learner], None], count: int, learner: Learner) -> None:
    for number in range(count):
        task(number, learner.alone)


def evaluate(
    learner: Learner,
    weights: Weights,
    test: Samples,
    metrics: Mapping[str, Metric] | None = None,
    spread: Spread = one_by_one,
) -> dict[str, float]:
    """Mean loss and, where outputs are scores of classes, accuracy; then the metrics."""
    return figures(totals(learner, weights, test, bool(metrics), spread), test[1], metrics or {})


def totals(
    learner: Learner, weights: Weights, test: Samples, keep_outputs: bool = False, spread: Spread = one_by_one
) -> Nest:
    """Tensors from which `figures` follow, so that the host need not wait for them.

    ``sums`` [3] are the sum of losses, right answers and answers, in float64 where the device has it; ``outputs`` are
    kept where asked for.
    """
    blocks = list(zip(*(part.split(_blocks(learner.alone, weights, test[0])) for part in test), strict=True))
    sums = torch.zeros(len(blocks), 3, dtype=widest(test[0].device), device=test[0].device)
    kept: dict[int, Tensor] = {}

    def block(number: int, mine: Learner) -> None:
        (inputs, target), total = blocks[number], sums[number]
        output = _outputs(mine, weights, inputs)
        total[0] = wide(mine.evaluation_losses(output, target)).sum()
        if scores_classes(output, target):
            total[1] = (output.argmax(-1) == target).sum()
            total[2] = (target != IGNORED).sum()
        if keep_outputs:
            kept[number] = output

    spread(block, len(blocks), learner)
    total = sum(sums.unbind(), sums.new_zeros(3))  # one after another, whoever computed them
    return {"sums": total} | ({"outputs": torch.cat([kept[i] for i in range(len(blocks))])} if keep_outputs else {})


def predict(learner: Learner, weights: Weights, x: Tensor, spread: Spread = one_by_one) -> Tensor:
    """The model's outputs for samples, which may be on another device, computed as `evaluate` does."""
    blocks = x.split(_blocks(learner.alone, weights, x))
    kept: dict[int, Tensor] = {}

    def block(number: int, mine: Learner) -> None:
        kept[number] = _outputs(mine, weights, blocks[number].to(learner.device)).to(x.device)

    spread(block, len(blocks), learner)
    return torch.cat([kept[number] for number in range(len(blocks))])


MOST_BYTES = 64 * 2**20  # of probabilities that are kept of a run


def predictions(learner: Learner, weights: Weights, test: Samples, spread: Spread = one_by_one) -> Predictions | None:
    """What the model says of test samples, computed as `evaluate` does; None where it does not score classes.

    Probabilities of more than `MOST_BYTES` are left out, block by block, so that they never are in memory either.
    """
    blocks = list(zip(*(part.split(_blocks(learner.alone, weights, test[0])) for part in test), strict=True))
    kept: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # targets, labels, probabilities

    def block(number: int, mine: Learner) -> None:
        inputs, target = blocks[number]
        output = _outputs(mine, weights, inputs)
        if not scores_classes(output, target):
            return
        scored = target != IGNORED
        scores = output[scored]  # [n, classes], of sequences position by position
        small = test[1].numel() * scores.shape[-1] * 4 <= MOST_BYTES
        precise = torch.promote_types(scores.dtype, torch.float32)
        shares = scores.softmax(-1, dtype=precise).float() if small else scores.new_empty(0)
        kept[number] = target[scored].long().cpu(), scores.argmax(-1).cpu(), shares.cpu()

    spread(block, len(blocks), learner)
    if len(kept) < len(blocks):
        return None
    parts = zip(*(kept[number] for number in range(len(blocks))), strict=True)
    targets, labels, shares = (torch.cat(part).numpy() for part in parts)
    whole = len(shares) == len(targets) and bool(np.isfinite(shares).all())
    return Predictions(targets, labels, shares if whole else None)


def figures(totals: Nest, targets: Tensor, metrics: Mapping[str, Metric]) -> dict[str, float]:
    loss, correct, scored = totals["sums"].tolist()
    found = {"loss": loss / len(targets)} | ({"accuracy": correct / scored} if scored else {})
    return found | (further.figures(metrics, totals["outputs"], targets) if metrics else {})


def _blocks(learner: Learner, weights: Weights, x: Tensor) -> list[int]:
    """How many samples are evaluated together; a last one that the model refuses alone joins those before it."""
    statistics = weights.buffers is None and learner.normalises
    block = STATISTICS if statistics else _block_size(learner.device)
    full, rest = divmod(len(x), block)
    sizes = [block] * full + [rest] * bool(rest)
    if full and rest == 1 and _refuses_one(learner, weights, x[-1:]):
        sizes[-2:] = [block + 1]
    return sizes


def _block_size(device: torch.device) -> int:
    """Samples evaluated together: those that stay in a CPU's cache, or as many as a GPU has ample memory for."""
    if device.type == "cpu":
        return 128
    roomy = device.type == "cuda" and torch.cuda.get_device_properties(device).total_memory > 32 << 30
    return 10240 if roomy else 2048


def _outputs(learner: Learner, weights: Weights, x: Tensor) -> Tensor:
    if len(x) == 1 and _refuses_one(learner, weights, x):  # twice the same sample has a variance, of 0
        return learner.outputs(weights.params, weights.buffers, torch.cat([x, x]))[:1]
    return learner.outputs(weights.params, weights.buffers, x)


def _refuses_one(learner: Learner, weights: Weights, x: Tensor) -> bool:
    """Whether the model cannot normalise a single sample, which has no variance, by its own statistics."""
    if not learner.normalises:
        return False
    try:
        learner.outputs(weights.params, weights.buffers, x.to(learner.device))
    except ValueError:
        return True
    return False
