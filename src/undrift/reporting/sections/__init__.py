"""Parts of the report between the curves and the details, a file each.

A section is a function of the runs of one task. It returns what the page shows, or None where the runs have nothing of
the kind. To add one, write its file and add a line to `SECTIONS`, in the order of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from undrift.reporting.record import Record

if TYPE_CHECKING:
    from markupsafe import Markup


class Section(NamedTuple):
    """What the page shows under a heading of its own."""

    title: str
    html: Markup  # escaped by whoever made it
    note: str = ""  # how it is to be read


SECTIONS: tuple[Callable[[Sequence[Record]], Section | None], ...] = ()


def sections_of(records: Sequence[Record]) -> list[Section]:
    return [found for section in SECTIONS if (found := section(records)) is not None]
