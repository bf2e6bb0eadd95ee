"""Options of algorithms and plug-ins: the fields of their dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from undrift.core import check


class HasOptions:
    """The base of what has options: numbers of other libraries become Python's own before they are checked.

    Labels show options and run directories store them.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        checked = cls.__dict__.get("__post_init__")

        def plain_first(self: Any) -> None:
            for option in fields(self):
                value = getattr(self, option.name)
                if (number := check.plain(value)) is not value:
                    object.__setattr__(self, option.name, number)
            if checked is not None:
                checked(self)

        if checked is not None or not hasattr(cls, "__post_init__"):
            cls.__post_init__ = plain_first  # type: ignore[attr-defined]  # called by every dataclass that has it


def options_of(instance: Any) -> list[Field[Any]]:
    """The options, those that every algorithm has (by keyword only) last."""
    return sorted(fields(instance), key=lambda option: bool(option.kw_only))


def default_of(option: Field[Any]) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()


def label_of(instance: Any) -> str:
    """The class name, with the options that differ from their defaults: ``FedProx(mu=0.1)``."""
    return _text(instance).removesuffix("()")


def _text(value: Any) -> str:
    if isinstance(value, Mapping):  # a state dict
        return "{...}"
    if not is_dataclass(value):
        return repr(value)
    given = {option.name: getattr(value, option.name) for option in options_of(value)}
    defaults = {option.name: default_of(option) for option in options_of(value)}
    changed = (f"{name}={_text(option)}" for name, option in given.items() if option != defaults[name])
    return f"{type(value).__name__}({', '.join(changed)})"
