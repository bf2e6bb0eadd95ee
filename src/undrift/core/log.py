"""Notices to the user, through the standard logger ``undrift``.

An application that configures `logging` gets them like any others. Where nobody has, they are printed to a terminal, so
that a user learns why the first round takes long, and are not mixed into redirected output; warnings are printed there,
too.
"""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("undrift")


class _TerminalHandler(logging.Handler):
    """Prints if the application has not configured logging, notices to a terminal only; above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and (record.levelno >= logging.WARNING or _is_terminal()):
            print(self.format(record), file=sys.stderr)  # looked up here: a progress bar replaces `sys.stderr`


def _is_terminal() -> bool:
    from rich.console import Console  # sees through the stand-in for stderr that a progress bar puts in place

    return Console(stderr=True).is_terminal


logger.addHandler(_TerminalHandler())
logger.setLevel(logging.INFO)


def notice(text: str) -> None:
    """A line that tells the user what is happening and why."""
    logger.info(text)


def warning(text: str) -> None:
    """A line that tells the user what is wrong and what is done about it."""
    logger.warning(text)
