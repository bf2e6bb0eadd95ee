"""What an algorithm knows of its experiment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from undrift.client.layout import Layout
from undrift.client.optim import Optimizer
from undrift.core.random import Key
from undrift.core.tree import Tree
from undrift.data.census import Census
from undrift.methods.aggregate import Aggregate, mean
from undrift.methods.attack import Attackers
from undrift.methods.codec import Codec
from undrift.methods.private import Privacy

if TYPE_CHECKING:
    from undrift.methods.plugin import Plugin


@dataclass(frozen=True)
class Plan:
    """What a run is about to do, as far as it decides whether an algorithm is stable."""

    participation: float  # share of the clients in a round
    steps: int  # local steps of a client in a round, the median
    samples: float = 1.0  # of a client, the median
    lr: float = 1.0
    most_steps: int = 0  # of any client, where that is more than the median

    @property
    def longest(self) -> int:
        """Local steps of the client that takes the most."""
        return max(self.steps, self.most_steps)


@dataclass(frozen=True)
class Setting:
    """What an algorithm may know of the experiment that it is prepared for."""

    layout: Layout
    optimizer: Optimizer
    server_lr: float
    buffer_policy: str
    population: int
    seed: int
    _: KW_ONLY
    aggregate: Aggregate = mean
    plugins: tuple[Plugin, ...] = ()
    codec: Codec | None = None
    privacy: Privacy | None = None
    attackers: Attackers | None = field(default=None, compare=False, repr=False)
    plan: Plan = Plan(participation=1.0, steps=1)
    initialiser: Callable[[], Callable[[Key], Tree]] | None = field(default=None, compare=False, repr=False)
    buffers: Tree = field(default_factory=dict, compare=False, repr=False)  # the model's initial ones
    census: Callable[[], Census] | None = field(default=None, compare=False, repr=False)  # features of all samples
