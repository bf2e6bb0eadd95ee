"""How the settings of every algorithm were chosen, where they were tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from undrift.reporting.record import Record
from undrift.reporting.sections.section import Section, rendered
from undrift.reporting.sections.sensitivity import picture

_NOTE = (
    "Chosen by the accuracy on training samples that clients held out, never by the test set. Of configurations that "
    "share a value, the pictures show the best; bands reach from the lowest to the highest seed."
)


def choices(records: Sequence[Record]) -> Section | None:
    """`Tuning.compare` gives its records what it chose."""
    tuning = records[0].config.get("tuning")
    if not isinstance(tuning, Mapping):
        return None
    pictures = [(found.key, picture(found)) for found in tuning["pictures"]]
    html = rendered("tuning.html", rows=tuning["rows"], notes=tuning["notes"], pictures=pictures)
    return Section("How the settings were chosen", html, _NOTE)
