"""How the settings of every algorithm were chosen, where they were tuned."""

from __future__ import annotations

from collections.abc import Sequence

from undrift.reporting.choices import Choices
from undrift.reporting.record import Record
from undrift.reporting.sections.section import Section, rendered
from undrift.reporting.sections.sensitivity import picture

_NOTE = (
    "Chosen by the {} on training samples that clients held out, never by the test set. Of configurations that share a "
    "value, the pictures show the best; bands reach from the lowest to the highest seed."
)


def choices(records: Sequence[Record]) -> Section | None:
    """Records of a tuning, and of the comparison of its winners, have what it chose."""
    found = records[0].config.get("tuning")
    if not isinstance(found, Choices):
        return None
    pictures = [(each.key, picture(each)) for each in found.pictures]
    html = rendered("tuning.html", choices=found, pictures=pictures)
    return Section("How the settings were chosen", html, _NOTE.format(found.figure))
