"""Packages that a plain installation does not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtraError(ImportError):
    """Something was asked for that needs one of undrift's extras."""


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Packages of an extra are imported inside; where one is missing, the error says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        message = f'{package} is not installed; get it with: pip install "undrift[{extra}]"'
        raise MissingExtraError(message, name=package) from None
