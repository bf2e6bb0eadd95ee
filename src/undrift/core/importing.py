"""Modules of ours that are imported when a name of theirs is first used."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType


def imported(name: str) -> ModuleType:
    """The module of this name, imported in a way that nobody notices."""
    if name in sys.modules:
        return import_module(name)  # waits, if another thread has not finished it
    state = random.getstate()  # rich draws from Python's random generator when it is imported
    try:
        with _no_search_for_garbage():
            return import_module(name)
    finally:
        random.setstate(state)


@contextmanager
def _no_search_for_garbage() -> Iterator[None]:
    """What is imported stays, but Python would search it for garbage again and again: with PyTorch, 0.2 seconds."""
    if not gc.isenabled() or gc.get_freeze_count():  # somebody has settings of their own
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # together: all objects count as old ones, which are searched when there are many new ones
        gc.unfreeze()
        gc.enable()
