"""Settings that a data set brings where none are given."""

from __future__ import annotations

from typing import Any

from undrift.data import available, default_settings

USUAL = {name: default_settings(name) for name in available()}


def completed(config: dict[str, dict[str, Any]], data: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """`config` with the default settings of a data set where it has none, and those that were added, as section.key."""
    defaults = default_settings(data)
    added = {
        f"{section}.{key}": value
        for section, keys in defaults.items()
        for key, value in keys.items()
        if key not in config.get(section, {})
    }
    sections = {*config, *defaults}
    return {section: defaults.get(section, {}) | config.get(section, {}) for section in sections}, added
