"""What undrift tells users goes where Flower's own lines go, and with them to `flwr run --stream` and `flwr log`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from undrift.core.log import logger, printable

_FLOWER = "flwr"  # the name of Flower's logger


class _ToFlower(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger(_FLOWER).log(record.levelno, "%s", printable(record.getMessage()))


@contextmanager
def to_flower() -> Iterator[None]:
    """During the block, lines are printed by Flower instead of by undrift."""
    before, logger.handlers = logger.handlers, [_ToFlower()]
    try:
        yield
    finally:
        logger.handlers = before
