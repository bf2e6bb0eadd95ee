"""Algorithms as users write them: ``fedprox(mu=0.1, pgvc=pgvc(layers=1))``, or a name and a mapping of options.

Settings of a run may stand among the options, as in ``fedadam(tau=0.01, server_lr=0.01, lr=0.03)``: they hold for runs
of this algorithm, whatever is set for all others. Should an algorithm have an option of the same name, it is that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from undrift import algorithms, plugins
from undrift.core import check
from undrift.core.call import read
from undrift.methods.algorithm import Algorithm
from undrift.methods.options import default_of, refuse_unknown
from undrift.methods.plugin import Plugin

SETTINGS = ("lr", "server_lr", "momentum", "weight_decay", "clip", "lr_decay", "weighting", "optimizer")


class Written(NamedTuple):
    """An algorithm, and the settings of its runs that were written with it."""

    algorithm: Algorithm
    settings: Mapping[str, Any]  # arguments of `simulate`

    @property
    def label(self) -> str:
        """The algorithm's own, with the settings: ``FedAdam(tau=0.01, lr=0.03)``."""
        label, given = self.algorithm.label, ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        if not given:
            return label
        return f"{label.removesuffix(')')}, {given})" if label.endswith(")") else f"{label}({given})"


def parse(text: str) -> Written:
    """``fedprox``, ``fedprox(mu=0.1)`` or ``fedprox(mu=0.1, lr=0.03)``."""
    return written(*read(text))


def written(name: str, options: Mapping[str, Any]) -> Written:
    """The same from a name and plain values, those of the algorithm and settings of its runs."""
    kind = algorithms.find(name)
    own = {option.name for option in fields(kind)}
    settings = {key: check.plain(value) for key, value in options.items() if key in SETTINGS and key not in own}
    others = {key: value for key, value in options.items() if key not in settings}
    _refuse_unknown(kind, others, SETTINGS)
    return Written(from_options(name, others), settings)


def parse_plugin(text: str) -> Plugin:
    """``pgvc`` or ``pgvc(layers=1)`` as a plug-in."""
    name, options = read(text)
    return _plugin_of(plugins.find(name), options)


def split(text: str) -> list[str]:
    """A list with commas, ``fedavg,fedprox(mu=0.1)``, as its parts."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def from_options(name: str, options: Mapping[str, Any]) -> Algorithm:
    """The algorithm of this name; a mapping among the options is a plug-in (see `_plugin`)."""
    kind = algorithms.find(name)
    _refuse_unknown(kind, options)
    return kind(**{option: _plugin(option, value) for option, value in options.items()})


def from_stored(name: str, options: Mapping[str, Any]) -> Algorithm:
    """The algorithm that a run directory describes.

    A stored value that equals the default is left to the default, which may say more than it (see `AtMost`).
    """
    return from_options(name, _without_defaults(algorithms.find(name), options))


def plugin_from_stored(description: Mapping[str, Any]) -> Plugin:
    """The plug-in that a run directory describes, its defaults as in `from_stored`."""
    kind = plugins.find(description["name"])
    options = {key: value for key, value in description.items() if key != "name"}
    return kind(**_without_defaults(kind, options))


def _plugin(option: str, value: Any) -> Any:
    """A mapping is the plug-in that its entry ``name``, or else the option, names; any other value stays as it is."""
    kind = _plugin_kind(option, value)
    if kind is None:
        return value
    return _plugin_of(kind, {key: entry for key, entry in value.items() if key != "name"})


def _plugin_of(kind: type[Plugin], options: Mapping[str, Any]) -> Plugin:
    _refuse_unknown(kind, options)
    return kind(**options)


def _plugin_kind(option: str, value: Any) -> type[Plugin] | None:
    if not isinstance(value, Mapping):
        return None
    named = value.get("name", option)
    # FedHBM's `variant` is a mapping of tensors, and no plug-in.
    return plugins.find(named) if isinstance(named, str) and ("name" in value or named in plugins.available()) else None


def _refuse_unknown(
    kind: type[Algorithm] | type[Plugin], options: Mapping[str, Any], further: Sequence[str] = ()
) -> None:
    refuse_unknown(kind.__name__, options, [*(option.name for option in fields(kind)), *further])


def _without_defaults(kind: type[Algorithm] | type[Plugin], options: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {option.name: default_of(option) for option in fields(kind)}
    changed = {key: value for key, value in options.items() if value != defaults.get(key)}
    for key, value in changed.items():
        nested = _plugin_kind(key, value)
        if nested is not None:
            changed[key] = _without_defaults(nested, value)
    return changed
