"""The face of an algorithm: a frozen dataclass of options that lists its corrections."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from undrift.averaging import Averaging
from undrift.correction import Correction
from undrift.layout import Layout
from undrift.optim import Optimizer
from undrift.protocol import Method


@dataclass(frozen=True)
class Setting:
    """What an algorithm may know of the experiment it is made ready for."""

    layout: Layout
    optimizer: Optimizer
    server_lr: float
    buffer_policy: str
    population: int


@dataclass(frozen=True)
class Algorithm:
    """Federated averaging with corrections, unless a subclass brings its own `method`.

    The docstring of a subclass is its page: a title line, then sections `Paper`, `Idea`, `Equations`, `Use`,
    `Pitfalls`, `Elsewhere`, each a heading followed by a colon (see `undrift.explain`).
    """

    weighting: ClassVar[str] = "samples"  # what the paper uses
    own_step: ClassVar[bool] = False  # it fixes the server's step, so that `server_lr` has no meaning

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return ()

    def private(self, setting: Setting) -> tuple[str, ...]:
        return ()

    def method(self, setting: Setting) -> Method:
        if self.own_step and setting.server_lr != 1:
            raise ValueError(
                f"{type(self).__name__} fixes its own server step; server_lr must be 1, got {setting.server_lr}"
            )
        return Averaging(
            self.corrections(setting),
            setting.optimizer,
            setting.server_lr,
            self.private(setting),
            setting.buffer_policy,
        )

    @classmethod
    def name(cls) -> str:
        """The name users type: lower case, no punctuation."""
        return cls.__name__.lower()

    def options(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
