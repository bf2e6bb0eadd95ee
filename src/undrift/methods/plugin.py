"""Plug-ins: corrections that can be combined with every algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from undrift.methods.correction import Correction
from undrift.methods.options import HasOptions
from undrift.methods.setting import Plan, Setting


@dataclass(frozen=True)
class Plugin(HasOptions):
    """Options of a plug-in and the corrections they stand for, which come before those of the algorithm."""

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return ()

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        """What is known to go wrong with its options, as `Algorithm.warnings`; said before round 1."""
        return ()

    @classmethod
    def name(cls) -> str:
        """The name users type: lower case."""
        return cls.__name__.lower()
