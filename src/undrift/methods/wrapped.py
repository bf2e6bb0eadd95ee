"""A method around another one, for what changes messages on their way, whatever the algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from undrift.core.tree import Tree
from undrift.protocol import Method, Phase, State


@dataclass(frozen=True)
class Wrapped:
    """All is the inner method's; a subclass changes its phases. Models that clients show for evaluation stay."""

    method: Method

    def wrap(self, phase: Phase) -> Phase:
        raise NotImplementedError

    @cached_property
    def phases(self) -> Sequence[Phase]:
        return tuple(map(self.wrap, self.method.phases))

    @property
    def personal(self) -> Phase | None:
        return self.method.personal

    def server(self, model: Tree, buffers: Tree) -> State:
        return self.method.server(model, buffers)

    def client(self, model: Tree, buffers: Tree) -> State:
        return self.method.client(model, buffers)

    def ledger(self, model: Tree) -> State:
        return self.method.ledger(model)

    def models(self, server: State) -> list[Tree]:
        return self.method.models(server)

    def presented(self, server: State) -> Tree:
        return self.method.presented(server)

    def buffers(self, server: State) -> Tree:
        return self.method.buffers(server)


def innermost(method: Method) -> Method:
    """The algorithm's own method."""
    while isinstance(method, Wrapped):
        method = method.method
    return method
