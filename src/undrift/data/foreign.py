"""Reading files that somebody else wrote or a disk damaged: nothing in them is believed before it is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

_LONGEST = 300  # characters of a message that are shown


def first_line(error: Exception) -> str:
    """What another library says about a file, in one line."""
    return printable((str(error).strip().splitlines() or [type(error).__name__])[0])


def printable(text: str) -> str:
    """Words from a file, which may hold anything, fit for a message."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:_LONGEST])


def read_npy(file: Path) -> np.ndarray[Any, Any]:
    """An array file, memory-mapped copy-on-write, so that a header that promises more than there is costs nothing."""
    try:
        return np.lib.format.open_memmap(file, mode="c")
    except Exception as error:  # the header is parsed as Python's literals, which fail in many ways
        raise ValueError(f"{file} is not a complete array file: {first_line(error)}") from error
