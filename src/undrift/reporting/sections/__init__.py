"""Parts of the report between the curves and the details, a file each.

A section is a function of the runs of one task, or of those of all tasks. It returns what the page shows, or None where
the runs have nothing of the kind. To add one, write its file and add a line to `SECTIONS` or `OVERALL`, in the order of
the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from undrift.reporting.record import Record
from undrift.reporting.sections.classes import classes
from undrift.reporting.sections.clients import clients
from undrift.reporting.sections.conformal import conformal
from undrift.reporting.sections.drift import drift
from undrift.reporting.sections.section import Section
from undrift.reporting.sections.sensitivity import accuracy_across, accuracy_against
from undrift.reporting.sections.significance import ranks_over_tasks, significance
from undrift.reporting.sections.tuning import choices

SECTIONS: tuple[Callable[[Sequence[Record]], Section | None], ...] = (
    choices,
    accuracy_against,
    significance,
    classes,
    clients,
    drift,
    conformal,
)
OVERALL: tuple[Callable[[Sequence[Sequence[Record]]], Section | None], ...] = (accuracy_across, ranks_over_tasks)


def sections_of(records: Sequence[Record]) -> list[Section]:
    return [found for section in SECTIONS if (found := section(records)) is not None]


def overall_sections(tasks: Sequence[Sequence[Record]]) -> list[Section]:
    return [found for section in OVERALL if (found := section(tasks)) is not None]
