"""Corrections that can be combined with every algorithm, one file a plug-in. To add one, list it in `_BUILT_IN`."""

from __future__ import annotations

from undrift.core.check import nearest, shown
from undrift.methods.plugin import Plugin
from undrift.plugins.pgvc import PGVC

__all__ = ["PGVC", "available", "find"]

_BUILT_IN: tuple[type[Plugin], ...] = (PGVC,)


def available() -> dict[str, type[Plugin]]:
    """Plug-ins by the name users type."""
    return {kind.name(): kind for kind in _BUILT_IN}


def find(name: str) -> type[Plugin]:
    known = available()
    if name.lower() not in known:
        raise ValueError(f"unknown plug-in {shown(name)}{nearest(name.lower(), known)}")
    return known[name.lower()]
