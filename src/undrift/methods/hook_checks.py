"""Corrections whose hooks are checked as they are called: for a trial of users' own, before the first round."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from torch import Tensor

from undrift.core import check, tree
from undrift.methods.averaging import Averaging
from undrift.methods.correction import HOOKS, STATES, At, Correction
from undrift.methods.wrapped import Wrapped
from undrift.protocol import Method

# What a hook returns, in words; "value" has the names and shapes of the tree that it is given first, "state" those of
# the state that it is given.
_RETURNS: dict[str, tuple[str, ...]] = {
    "server": ("nest",),
    "client": ("nest",),
    "ledger": ("nest",),
    "survey": ("message", "state"),
    "digest": ("server",),
    "broadcast": ("message",),
    "begin": ("value", "state"),
    "locate": ("at",),
    "objective": ("loss",),
    "step": ("value", "state"),
    "move": ("value",),
    "finish": ("value", "state", "message"),
    "collect": ("value", "server"),
    "advance": ("value", "server"),
    "present": ("value",),
    "adapt": ("value",),
}
_WORDS = {
    "nest": "a dict of tensors",
    "message": "a dict of tensors to send",
    "state": "its state",
    "server": "its state",
    "value": "a tree {name: tensor} like the one that it is given",
    "at": "an At, as in at._replace(params=...)",
    "loss": "a loss, f(params, batch)",
}


class HookError(TypeError):
    """A hook of a correction failed, or returned what it must not."""


def checked(method: Method) -> Method | None:
    """The method with the hooks of users' own corrections checked; None if there are none."""
    if isinstance(method, Wrapped):
        inner = checked(method.method)
        return None if inner is None else replace(method, method=inner)
    if not isinstance(method, Averaging) or all(map(_is_ours, method.corrections)):
        return None
    return replace(method, corrections=tuple(c if _is_ours(c) else _checked(c) for c in method.corrections))


def _is_ours(correction: Correction) -> bool:
    return type(correction).__module__.startswith("undrift.")


def _checked(correction: Correction) -> Correction:
    """The same correction, of a class whose hooks look at what they return."""
    kind = type(correction)
    own = [hook for hook in (*STATES, *HOOKS) if getattr(kind, hook) is not getattr(Correction, hook)]
    hooks = {hook: _checking(f"{kind.__name__}.{hook}", hook, getattr(kind, hook)) for hook in own}
    other = copy.copy(correction)
    object.__setattr__(other, "__class__", type(kind.__name__, (kind,), {"key": correction.key, **hooks}))
    return other


def _checking(name: str, hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
    kinds = _RETURNS[hook]

    @wraps(function)
    def call(self: Correction, *given: Any) -> Any:
        try:
            found = function(self, *given)
        except HookError:
            raise
        except Exception as error:
            raise HookError(f"{name}: {check.first_line(error)}") from error
        parts = found if len(kinds) > 1 else (found,)
        if not isinstance(parts, tuple) or len(parts) != len(kinds) or isinstance(found, At) != (kinds == ("at",)):
            raise HookError(f"{name} must return {_in_words(kinds)}, got {_kind(found)}")
        for kind, part in zip(kinds, parts, strict=True):
            if problem := _problem(kind, part, given):
                raise HookError(f"{name} must return {_in_words(kinds)}; {problem}")
        return found

    return call


def _problem(kind: str, part: Any, given: tuple[Any, ...]) -> str:
    """What is wrong with a part of what a hook returned; empty if nothing is."""
    if kind == "at":
        return ""
    if kind == "loss":
        return "" if callable(part) else f"got {_kind(part)}"
    if not isinstance(part, dict):
        return f"got {_kind(part)} instead of a dict of tensors"
    leaves: dict[str, Any] = {**tree.flatten(part)}
    for name, value in leaves.items():
        if not isinstance(value, Tensor):
            return f"{name!r} is {_kind(value)}, not a tensor"
    if kind == "value":
        return _difference(part, given[0], complete=False)
    if kind == "state":
        return _difference(part, given[1], complete=True)
    return ""


def _difference(found: dict[str, Any], wanted: dict[str, Any], complete: bool) -> str:
    """How names, shapes or types differ from those wanted; a value may leave out names, a state may not."""
    here, there = tree.flatten(found), tree.flatten(wanted)
    for name, value in here.items():
        if name not in there:
            return f"{name!r} was not there before"
        if (value.shape, value.dtype) != ((before := there[name]).shape, before.dtype):
            return f"{name!r} is of {_shape(value)}, but was of {_shape(before)}"
    missing = [name for name in there if name not in here]
    return f"{missing[0]!r} is missing" if complete and missing else ""


def _shape(value: Tensor) -> str:
    return f"shape {tuple(value.shape)} and type {str(value.dtype).removeprefix('torch.')}"


def _in_words(kinds: tuple[str, ...]) -> str:
    words = [_WORDS[kind] for kind in kinds]
    return words[0] if len(words) == 1 else f"({', '.join(words)})"


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None (is a return missing?)" if value is None else type(value).__name__
