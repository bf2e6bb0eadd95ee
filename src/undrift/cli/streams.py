"""Standard streams that do no harm: closed ones, pipes that nobody reads, encodings without all characters."""

from __future__ import annotations

import io
import os
from typing import Any, TextIO


class _Output(io.FileIO):
    """A file whose reader may leave, as in ``undrift list algorithms | head -1``: the rest is for nobody.

    Any other trouble, such as a full disk, is raised once.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):
                raise
            return len(data)


def open_closed() -> None:
    """Opens the standard streams that were closed (``>&-``), lest the next file that is opened takes their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def tolerant(stream: TextIO | None, number: int) -> TextIO:
    """A standard output stream on which printing does not fail for a pipe that was closed or for a character."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    buffer = io.BufferedWriter(_Output(number, "wb", closefd=False))
    return io.TextIOWrapper(buffer, encoding, errors="replace", line_buffering=number == 2 or os.isatty(number))
