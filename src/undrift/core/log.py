"""Notices to the user, through the standard logger ``undrift``.

An application that configures `logging` gets them like any others. Where nobody has, they are printed to a terminal, so
that a user learns why the first round takes long, and are not mixed into redirected output; warnings and lines on
progress are printed there, too. ``logging.getLogger("undrift").setLevel("WARNING")`` leaves only warnings.
"""

from __future__ import annotations

import logging
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

logger = logging.getLogger("undrift")
_EVERYWHERE = "everywhere"  # the attribute of a record that is printed to files as well


class _TerminalHandler(logging.Handler):
    """Prints if the application has not configured logging: notices to a terminal, above a progress bar; warnings
    and progress wherever standard error goes."""

    def emit(self, record: logging.LogRecord) -> None:
        everywhere = record.levelno >= logging.WARNING or getattr(record, _EVERYWHERE, False)
        if logging.getLogger().handlers or not (everywhere or _is_terminal()):
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


def progress(text: str) -> None:
    """A line that tells how far a run or a download is, for those who read a file instead of watching a terminal."""
    logger.info(text, extra={_EVERYWHERE: True})


class Pace:
    """When a line on something long is due: a week makes some hundred, and a minute enough to see that it is alive."""

    def __init__(self) -> None:
        self._due = 5.0  # seconds until the first line

    def due(self, elapsed: float) -> bool:
        if elapsed < self._due:
            return False
        self._due = elapsed + max(min(elapsed, 30.0), 0.05 * elapsed)
        return True


def warning(text: str) -> None:
    """A line that tells the user what is wrong and what is done about it."""
    logger.warning(text)


_failures_expected: ContextVar[bool] = ContextVar("_failures_expected", default=False)


@contextmanager
def failures_expected() -> Iterator[None]:
    """Meanwhile it is nothing special that a run diverges: some of many that are tried do."""
    token = _failures_expected.set(True)
    try:
        yield
    finally:
        _failures_expected.reset(token)


def failure(text: str) -> None:
    """A warning that a run diverges, unless that is expected."""
    if not _failures_expected.get():
        warning(text)


def printable(text: str) -> str:
    """A text whose control characters, which a terminal would obey, are written out; lines stay lines."""
    if text.isprintable():
        return text
    harmful = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, marks of direction, halves of characters, separators of lines
    return "".join(
        c.encode("unicode_escape").decode("ascii") if c != "\n" and unicodedata.category(c) in harmful else c
        for c in text
    )
