"""Notices to the user, through the standard logger ``undrift``.

An application that configures `logging` gets them like any others. Where nobody has, they are printed to a terminal, so
that a user learns why the first round takes long, and are not mixed into redirected output; warnings are printed there,
too.
"""

from __future__ import annotations

import logging
import sys
import unicodedata
from contextlib import suppress

logger = logging.getLogger("undrift")


class _TerminalHandler(logging.Handler):
    """Prints if the application has not configured logging: notices to a terminal, above a progress bar; warnings
    wherever standard error goes."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or (record.levelno < logging.WARNING and not _is_terminal()):
            return
        if (stream := sys.stderr) is not None:  # looked up here: a progress bar replaces it
            with suppress(OSError, ValueError):  # a pipe or a file that was closed
                print(printable(self.format(record)), file=stream)


def _is_terminal() -> bool:
    from rich.console import Console  # sees through the stand-in for stderr that a progress bar puts in place

    return sys.stderr is not None and Console(stderr=True).is_terminal


logger.addHandler(_TerminalHandler())
logger.setLevel(logging.INFO)


def notice(text: str) -> None:
    """A line that tells the user what is happening and why."""
    logger.info(text)


def warning(text: str) -> None:
    """A line that tells the user what is wrong and what is done about it."""
    logger.warning(text)


def printable(text: str) -> str:
    """A text whose control characters, which a terminal would obey, are written out; lines stay lines."""
    if text.isprintable():
        return text
    harmful = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, marks of direction, halves of characters, separators of lines
    return "".join(
        c.encode("unicode_escape").decode("ascii") if c != "\n" and unicodedata.category(c) in harmful else c
        for c in text
    )
