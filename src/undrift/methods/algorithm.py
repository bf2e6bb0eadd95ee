"""The face of an algorithm: a frozen dataclass of options that lists its corrections."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from undrift.client.layout import Layout
from undrift.client.optim import Optimizer
from undrift.methods.averaging import Averaging
from undrift.methods.correction import Correction
from undrift.plugins.pgvc import PGVC
from undrift.protocol import Method


@dataclass(frozen=True)
class Setting:
    """What an algorithm may know of the experiment it is made ready for."""

    layout: Layout
    optimizer: Optimizer
    server_lr: float
    buffer_policy: str
    population: int
    seed: int


@dataclass(frozen=True)
class Algorithm:
    """Federated averaging with corrections, unless a subclass brings its own `method`.

    The docstring of a subclass is its page: a title line, then sections `Paper`, `Idea`, `Equations`, `Use`,
    `Pitfalls`, `Elsewhere`, each a heading followed by a colon (see `undrift.explain`).
    """

    weighting: ClassVar[str] = "samples"  # what the paper uses
    own_step: ClassVar[bool] = False  # it fixes the server's step, so that `server_lr` has no meaning

    pgvc: PGVC | None = field(default=None, kw_only=True)

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return ()

    def private(self, setting: Setting) -> tuple[str, ...]:
        return ()

    def buffer_policy(self, setting: Setting) -> str:
        return setting.buffer_policy

    def method(self, setting: Setting) -> Method:
        if self.own_step and setting.server_lr != 1:
            raise ValueError(
                f"{type(self).__name__} fixes its own server step; server_lr must be 1, got {setting.server_lr}"
            )
        if not isinstance(self.pgvc, PGVC | None):
            raise TypeError(f"pgvc must be None or a plug-in such as ud.PGVC(layers=2), got {self.pgvc!r}")
        plugged_in = self.pgvc.corrections(setting.layout) if self.pgvc else ()
        return Averaging(
            plugged_in + self.corrections(setting),
            setting.optimizer,
            setting.server_lr,
            self.private(setting),
            self.buffer_policy(setting),
        )

    @classmethod
    def name(cls) -> str:
        """The name users type: lower case, no punctuation."""
        return cls.__name__.lower()

    def options(self) -> dict[str, Any]:
        """Options of its own, and the plug-in if there is one."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "pgvc"}
        return own if self.pgvc is None else own | {"pgvc": self.pgvc}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.options().items())})"

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Algorithm.__repr__  # type: ignore[method-assign]  # a dataclass keeps the one it finds
