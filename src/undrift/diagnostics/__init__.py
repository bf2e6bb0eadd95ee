"""Figures of client drift, switched on by name: of the whole model and of every layer, in every round.

To add one, write its function on stacked tensors and its entry in `DIAGNOSTICS` of `updates.py` or `gradients.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from undrift.core import check
from undrift.diagnostics import gradients, updates
from undrift.diagnostics.diagnostic import Diagnostic

DIAGNOSTICS: dict[str, Diagnostic] = {each.name: each for each in (*updates.DIAGNOSTICS, *gradients.DIAGNOSTICS)}


def listed(names: Any) -> list[str]:
    """Names, which may be one text with commas between them; each once, and refused if there is no such diagnostic."""
    given = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"diagnostics must be names such as 'client_distance', got {check.shown(names)}")
    for name in given:
        if name not in DIAGNOSTICS:
            raise ValueError(f"unknown diagnostic {check.shown(name)}{check.nearest(name, DIAGNOSTICS)}")
    return list(dict.fromkeys(given))
