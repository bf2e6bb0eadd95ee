"""Options of algorithms and plug-ins: the fields of their dataclasses."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Self

from undrift.core import check
from undrift.core.call import read


class _SignatureOfInit:
    """What help and editors show of a class: the arguments of its dataclass, not those of `HasOptions.__new__`."""

    def __get__(self, instance: object, kind: Any) -> inspect.Signature:
        return inspect.signature(kind.__init__.__get__(object()))  # bound to anything, which leaves out `self`


class HasOptions:
    """The base of what has options: numbers of other libraries become Python's own before they are checked.

    Labels show options and run directories store them.
    """

    __signature__ = _SignatureOfInit()

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Says of an unknown option which there are, before Python says less."""
        known = inspect.signature(cls).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            refuse_unknown(cls.__name__, options, known, TypeError)
        return super().__new__(cls)

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


def refuse_unknown(
    name: str, options: Iterable[str], known: Iterable[str], error: type[Exception] = ValueError
) -> None:
    allowed = list(known)
    for option in options:
        if option not in allowed:
            raise error(f"{name} has no option {check.shown(option)}{check.nearest(option, allowed)}")


def read_choice(text: str, argument: str, what: str, known: Mapping[str, Iterable[str]]) -> tuple[str, dict[str, Any]]:
    """What an argument names, with options, as in ``krum(share=0.2)``; `known` has the options of every name."""
    name, options = read(text, f"the {what}")
    if name not in known:
        raise ValueError(f"{argument}: unknown {what} {check.shown(name)}{check.nearest(name, known)}")
    refuse_unknown(f"the {what} {name}", options, known[name])
    return name, options


def options_of(instance: Any) -> list[Field[Any]]:
    """The options, those that every algorithm has (by keyword only) last."""
    return sorted(fields(instance), key=lambda option: bool(option.kw_only))


def default_of(option: Field[Any]) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()


def options_by_name(instance: Any) -> dict[str, Any]:
    """The values of its options; none of what is no dataclass."""
    return (
        {option.name: getattr(instance, option.name) for option in options_of(instance)}
        if is_dataclass(instance)
        else {}
    )


def text_of(name: str, instance: Any) -> str:
    """As users write what they know by `name`, with the options that differ from their defaults: ``krum(keep=3)``."""
    return name + label_of(instance).removeprefix(type(instance).__name__)


def label_of(instance: Any) -> str:
    """The class name, with the options that differ from their defaults: ``FedProx(mu=0.1)``."""
    return _text(instance).removesuffix("()")


def _text(value: Any) -> str:
    if isinstance(value, Mapping):  # a state dict
        return "{...}"
    if isinstance(value, Path):
        return repr(str(value))
    if not is_dataclass(value):
        return repr(value)
    given = {option.name: getattr(value, option.name) for option in options_of(value)}
    defaults = {option.name: default_of(option) for option in options_of(value)}
    changed = (f"{name}={_text(option)}" for name, option in given.items() if option != defaults[name])
    return f"{type(value).__name__}({', '.join(changed)})"
