"""Options of algorithms and plug-ins: the fields of their dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any


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
