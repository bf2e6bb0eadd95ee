"""The diagnostics of a run: what they need of a round, and what they make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from undrift.client.layout import Layout
from undrift.client.task import Observation
from undrift.core import torch_private, tree
from undrift.core.tree import Nest, Tree
from undrift.diagnostics.columns import column_name
from undrift.diagnostics.diagnostic import Diagnostic, Gradient, Seen
from undrift.diagnostics.probe import Probe
from undrift.protocol import Method, State

KEY = "diagnostics"  # under which a server's state holds what they remember between rounds


@dataclass(frozen=True)
class Observer:
    """Asked for no diagnostics, it needs nothing, remembers nothing and makes nothing."""

    diagnostics: tuple[Diagnostic, ...]
    method: Method
    layout: Layout

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """In the order of `measure`."""
        layers = ("", *self.layout.named_layers)
        return tuple(
            column_name(each.name, statistic, layer)
            for each in self.diagnostics
            for statistic in each.statistics
            for layer in layers
        )

    @cached_property
    def observe(self) -> frozenset[Observation]:
        """What clients report of their training."""
        return frozenset().union(*(each.reports for each in self.diagnostics))

    @cached_property
    def probe(self) -> Probe | None:
        """The exchange that brings further gradients."""
        wanted: frozenset[Gradient] = frozenset().union(*(each.gradients for each in self.diagnostics))
        return Probe(self.method, wanted) if wanted else None

    def remembered(self, model: Tree) -> State:
        """What the next round needs of this one, before the first: the server has not moved yet."""
        return {KEY: {"previous": tree.zeros(model)}} if self._previous else {}

    @cached_property
    def _previous(self) -> bool:
        return any(each.previous for each in self.diagnostics)

    def measure(
        self, before: State, after: State, weights: Tensor, *, reports: Nest, gradients: Nest
    ) -> tuple[Tensor, State]:
        """The figures of a round, one for every column, and the server's state with what is remembered of it.

        `before` is the server's state as the round began. Tensor operations only.
        """
        if missing := self.observe - reports.keys():
            raise ValueError(f"diagnostics need {', '.join(sorted(missing))}, which this algorithm does not report")
        step = self._step(before, after) if self._previous else {}
        seen = Seen(
            self.layout.named_layers,
            weights,
            reports=reports,
            gradients=gradients,
            step=step,
            previous=before[KEY]["previous"] if self._previous else {},
        )
        figures = torch.cat([each.measure(seen).flatten() for each in self.diagnostics])
        return figures, after | ({KEY: {"previous": step}} if self._previous else {})

    def _step(self, before: State, after: State) -> Tree:
        """How far the server's model moved."""
        new, old = self.method.models(after)[0], self.method.models(before)[0]
        moved = torch_private.differences(list(new.values()), [old[name] for name in new])
        return dict(zip(new, moved, strict=True))


def check_several_models(diagnostics: Sequence[Diagnostic], method: Method, model: Tree, label: str) -> None:
    """Refuses what has no meaning where the server keeps several models, which change places."""
    count = len(method.models(method.server(model, {})))
    for each in diagnostics:
        if each.one_model and count > 1:
            raise ValueError(
                f"diagnostics: {each.name} compares a model with its last one, but {label} keeps {count} models that "
                "change places from round to round; leave it out"
            )
