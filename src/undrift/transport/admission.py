"""Which answers count: those whose numbers are finite, reports included, and not absurdly large."""

from __future__ import annotations

import torch
from torch import Tensor

from undrift.core import tree
from undrift.core.tree import Nest
from undrift.transport.order import Answers

_ABSURD = 1000  # times the median norm
_FEWEST = 3  # answers of which the median says what is usual


def admit(answers: Answers, count: int) -> Answers:
    """The answers without those that cannot be used; where none is finite, all, so that the run is seen to diverge."""
    norms = _norms(answers.replies, count)
    finite = norms.isfinite() & _norms(answers.reports, count).isfinite()
    if not bool(finite.any()):
        return answers
    absurd = finite & (norms > _ABSURD * norms[finite].median()) & (int(finite.sum()) >= _FEWEST)
    kept = (finite & ~absurd).nonzero()[:, 0]
    if len(kept) == count:
        return answers
    found = {"not_finite": int((~finite).sum()), "absurd_norm": int(absurd.sum())}
    failures = {**answers.failures, **{name: answers.failures.get(name, 0) + n for name, n in found.items()}}
    replies, reports = (
        tree.map_nest(lambda v: v[kept.to(v.device)], part) for part in (answers.replies, answers.reports)
    )
    present = kept.numpy() if answers.present is None else answers.present[kept.numpy()]
    return Answers(replies, reports, present, failures)


def _norms(answers: Nest, count: int) -> Tensor:
    """The norm of all numbers of each client [n]; infinite or NaN if one of them is."""
    squares = torch.zeros(count, dtype=torch.float64)
    for leaf in tree.leaves(answers):
        if leaf.is_floating_point() and leaf.numel():
            squares += torch.linalg.vector_norm(leaf.reshape(count, -1), dim=1).double().square().cpu()
    return squares.sqrt()
