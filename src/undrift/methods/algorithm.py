"""The public side of an algorithm: a frozen dataclass of options that lists its corrections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from undrift.core import check
from undrift.methods.attack import Attacked
from undrift.methods.averaging import Averaging
from undrift.methods.codec import Coded
from undrift.methods.correction import Correction
from undrift.methods.options import HasOptions, default_of, label_of, options_of
from undrift.methods.plugin import Plugin
from undrift.methods.private import Private, keyed_noise
from undrift.methods.setting import Plan, Setting
from undrift.protocol import Method


@dataclass(frozen=True)
class Algorithm(HasOptions):
    """Federated averaging with corrections, unless a subclass brings its own `method`.

    The docstring of a subclass is its page: a title line, then sections `Paper`, `Idea`, `Equations`, `Options` (a line
    `name: meaning` for each), `Use`, `Pitfalls`, `Elsewhere`, each a heading followed by a colon (see
    `undrift.explain`).
    """

    weighting: ClassVar[str] = "samples"  # what the paper uses
    default_server_lr: ClassVar[float] = 1.0  # where no `server_lr` is given
    own_step: ClassVar[bool] = False  # it fixes the server's step, so that `server_lr` has no meaning
    pooled: ClassVar[bool] = False  # it trains on the samples of all clients in one place

    # An option of every algorithm, therefore by keyword only.
    pgvc: Plugin | None = field(default=None, kw_only=True)

    @property
    def divides_rate(self) -> bool:
        """Whether `lr` is divided by the number of a client's samples; a rate that is left open is then multiplied by
        their mean."""
        return False

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return ()

    def private(self, setting: Setting) -> tuple[str, ...]:
        return ()

    def buffer_policy(self, setting: Setting) -> str:
        return setting.buffer_policy

    def notices(self, plan: Plan) -> tuple[str, ...]:
        """What it chose for such a run where an option leaves that to it; said before round 1."""
        return ()

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        """What of its options is known to be unstable in such a run, and what to do about it; said before round 1."""
        return ()

    def method(self, setting: Setting) -> Method:
        if not isinstance(self.pgvc, Plugin | None):
            raise TypeError(f"pgvc must be None or a plug-in such as ud.PGVC(layers=2), got {check.shown(self.pgvc)}")
        plugins = setting.plugins if self.pgvc is None else (*setting.plugins, self.pgvc)
        return Averaging(
            corrections=(*(c for p in plugins for c in p.corrections(setting)), *self.corrections(setting)),
            optimizer=setting.optimizer,
            server_lr=setting.server_lr,
            private=self.private(setting),
            buffer_policy=self.buffer_policy(setting),
            aggregate=setting.aggregate,
        )

    @classmethod
    def name(cls) -> str:
        """The name users type: lower case, no punctuation."""
        return cls.__name__.lower()

    @property
    def label(self) -> str:
        """The class name, with the options that differ from their defaults: ``FedProx(mu=0.1)``."""
        return label_of(self)

    def options(self) -> dict[str, Any]:
        """Its own options, and those of every algorithm that are set."""
        return {
            f.name: getattr(self, f.name)
            for f in options_of(self)
            if not f.kw_only or getattr(self, f.name) != default_of(f)
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.options().items())})"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = Algorithm.__repr__  # type: ignore[method-assign]  # a dataclass keeps the one it finds


def build_method(algorithm: Algorithm, setting: Setting) -> Method:
    """The method of an experiment: the algorithm's, with what the setting does to messages on their way."""
    if algorithm.own_step and setting.server_lr != 1:
        raise ValueError(
            f"{type(algorithm).__name__} fixes its own server step; server_lr must be 1, got {setting.server_lr}"
        )
    method = algorithm.method(setting)
    if setting.attackers is not None:
        method = Attacked(method, setting.attackers)
    if setting.privacy is not None:
        method = Private(method, setting.privacy, keyed_noise(setting.seed))
    return method if setting.codec is None else Coded(method, setting.codec, setting.seed)
