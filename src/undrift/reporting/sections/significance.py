"""Which differences between methods are clear: a matrix of all pairs, and ranks over several tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from undrift.core.extras import MissingExtraError
from undrift.reporting import rank_diagram
from undrift.reporting.figures import apart, by_label
from undrift.reporting.record import Record
from undrift.reporting.sections.section import Section, rendered
from undrift.reporting.significance import Pair, column_of, p_text, pairs_of, ranks_of, summary_line
from undrift.reporting.wording import MISSING, count_text, decimal_text, number_text

TITLE = "Significance"
_DIAGRAM = 3  # tasks and methods from which on ranks are drawn


class _Cell(NamedTuple):
    difference: str
    p: str
    better: bool  # the row's method, clearly
    title: str


def significance(records: Sequence[Record]) -> Section | None:
    """Differences of final values between all pairs of methods, with corrected p."""
    from markupsafe import Markup

    records, _ = apart(records)
    labels = list(by_label(records))
    if len(labels) < 2:
        return None
    column = column_of(records)
    try:
        pairs = pairs_of(records, column)
    except MissingExtraError as missing:
        return Section(TITLE, Markup(""), f"No tests: {missing}.")
    known = {pair.labels: pair for pair in pairs}
    rows = [[_cell(known, row, other, column) for other in labels] for row in labels]
    unit = "Points of final accuracy" if column == "accuracy" else "Final test loss"
    return Section(TITLE, rendered("significance.html", labels=labels, rows=rows, unit=unit), _note(pairs))


def _cell(known: dict[tuple[str, str], Pair], row: str, other: str, column: str) -> _Cell | None:
    if row == other:
        return None
    pair = known.get((row, other)) or known[other, row]
    difference = pair.difference if pair.label == row else -pair.difference
    if difference != difference:
        shown = MISSING
    elif column == "accuracy":
        points = round(100 * difference, 1)
        shown = f"{points:+.1f}".replace("-", "−") if points else "0.0"
    else:
        shown = number_text(difference).replace("-", "−")
    return _Cell(shown, p_text(pair.p), pair.better == row, pair.reason)


def _note(pairs: Sequence[Pair]) -> str:
    line = summary_line(pairs)
    return (
        f"{line[:1].upper()}{line[1:]}. Bold: the row’s method is clearly better than the column’s (p below 0.05, "
        f"corrected by Holm’s method for {count_text(len(pairs), 'pair')})."
    )


def ranks_over_tasks(tasks: Sequence[Sequence[Record]]) -> Section | None:
    """Average ranks over several tasks as a critical-difference diagram."""
    from markupsafe import Markup

    common = set.intersection(*(set(by_label(apart(task)[0])) for task in tasks))
    if len(tasks) < _DIAGRAM or len(common) < _DIAGRAM:
        return None
    title = f"Ranks over {len(tasks)} tasks"
    try:
        ranks = ranks_of(tasks)
        drawing = rank_diagram.svg(ranks)
    except MissingExtraError as missing:
        return Section(title, Markup(""), f"No ranks: {missing}.")
    return Section(
        title,
        Markup('<figure><div class="scroll" role="region" tabindex="0" aria-label="{}">{}</div></figure>').format(
            title, drawing
        ),
        "Average rank by final accuracy, 1 for the best; Friedman’s test that all are alike: "
        f"{p_text(ranks.friedman_p)}. "
        "A bar joins methods that Nemenyi’s test does not tell apart: their average ranks differ by less than "
        f"{decimal_text(ranks.critical_difference)}.",
    )
