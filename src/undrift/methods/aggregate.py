"""Aggregation rules: how the updates of a cohort become one. To add one, write it here or in `robust.py`
and list it in `AGGREGATES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from undrift.core import tree
from undrift.core.check import shown
from undrift.core.tree import Tree
from undrift.core.wide import wide
from undrift.methods.options import options_by_name, read_choice
from undrift.methods.robust import RULES, Rule

# (stacked updates [n, ...], weights [n] that sum to one) -> one update; tensor operations only, so that rounds can be
# captured in a CUDA graph
Aggregate = Callable[[Tree, Tensor], Tree]


def mean(updates: Tree, weights: Tensor) -> Tree:
    """Σ w_i u_i."""
    return tree.mean(updates, weights)


def median(updates: Tree, weights: Tensor) -> Tree:
    """In every coordinate an x that minimises Σ w_i |x − u_i|: the middle of them all where there are several."""
    return {k: _weighted_median(u, weights) for k, u in updates.items()}


_ONE = 1 << 52  # a weight of one, in whole numbers: their sums are exact, on every device and in any order


def _weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    values, order = values.sort(0)
    below = (wide(weights) * _ONE).to(torch.int64)[order].cumsum(0)  # [n, ...] weight of the values up to each
    total = below[-1]
    tie = 2 * (len(values) + int(torch.finfo(weights.dtype).eps * _ONE))  # rounded weights may miss one half
    first = (2 * below < total - tie).sum(0, keepdim=True)
    last = (2 * below <= total + tie).sum(0, keepdim=True)
    return ((values.gather(0, first) + values.gather(0, last)) / 2)[0]


AGGREGATES: dict[str, Aggregate] = {"mean": mean, "median": median, **{rule.name: rule() for rule in RULES}}


def find(value: str | Aggregate) -> Aggregate:
    """A rule by its name, with options as in ``krum(share=0.2)``; a function is returned as it is."""
    if isinstance(value, str):
        known = {name: options_by_name(rule) for name, rule in AGGREGATES.items()}
        name, options = read_choice(value, "aggregate", "aggregation rule", known)
        rule = AGGREGATES[name]
        return replace(rule, **options) if isinstance(rule, Rule) else rule
    if not callable(value):
        raise TypeError(f"aggregate must be a name or a function (updates, weights) -> update, got {shown(value)}")
    return value


def is_robust(rule: Aggregate) -> bool:
    """Whether a rule promises anything about clients that send what they like; of a user's own nothing is known."""
    return rule is median or isinstance(rule, Rule)
