"""The summary table: its columns, their texts, and which rows are best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from undrift.reporting.figures import Outcome, outcomes_of
from undrift.reporting.record import HistoryColumn, Record, column
from undrift.reporting.wording import (
    MISSING,
    NBSP,
    decimal_text,
    number_text,
    percent_text,
    unit_of_time,
    unit_of_traffic,
)


class Column(NamedTuple):
    """A column of the summary table: its texts, and the rows that hold the best value."""

    heading: str
    cells: list[str]
    best: set[int]


def columns(records: Sequence[Record], target: float | None = None) -> list[Column]:
    """The summary table as text, the names of the methods first."""
    outcomes, common_target = outcomes_of(records, target)
    names = [f"{each.label} ({diverged_text(each)})" if each.diverged else each.label for each in outcomes]
    # That a single method reaches its own final accuracy says nothing.
    return [Column("Method", names, set()), *columns_of(outcomes, target if len(outcomes) == 1 else common_target)]


def columns_of(outcomes: Sequence[Outcome], target: float | None) -> list[Column]:
    """The columns after the name, without those that would say nothing."""
    table = []
    if any(outcome.runs > 1 for outcome in outcomes):
        table.append(Column("Seeds", [str(outcome.runs) for outcome in outcomes], set()))
    for name in outcomes[0].finals:
        table += _final_columns(column(name), outcomes)
    if target is not None:
        table.append(_rounds_column(outcomes, target))
    for heading, values, unit_of in (
        ("Traffic", [outcome.traffic for outcome in outcomes], unit_of_traffic),
        ("Time", [outcome.seconds for outcome in outcomes], unit_of_time),
    ):
        size, unit = unit_of(values)
        cells = [f"{decimal_text(value / size)}{NBSP}{unit}" for value in values]
        table.append(Column(heading, cells, _best_rows(outcomes, values, cells, min)))
    return table


def _final_columns(shown: HistoryColumn, outcomes: Sequence[Outcome]) -> list[Column]:
    """The final values of a column of the histories; of the accuracy, also the best ones."""
    assert shown.heading is not None, "finals are kept of columns with a heading only"
    finals = [outcome.finals[shown.name] for outcome in outcomes]
    means = [final.mean for final in finals]
    if not any(map(math.isfinite, means)):
        return []
    if shown.percent:
        cells = [percent_text(final.mean, final.std) for final in finals]
    else:
        cells = [number_text(mean) for mean in means]
    better = {"higher": max, "lower": min, None: None}[shown.better]
    best = _best_rows(outcomes, means, cells, better) if better else set()
    found = [Column(shown.heading, cells, best)]
    if shown.name == "accuracy":
        values = [outcome.best_accuracy for outcome in outcomes]
        cells = [percent_text(value) for value in values]
        found.append(Column("Best accuracy", cells, _best_rows(outcomes, values, cells, max)))
    return found


def _rounds_column(outcomes: Sequence[Outcome], target: float) -> Column:
    # A mean over only the seeds that reached the target flatters: it is shown, but is never the best.
    values = [each.rounds_to_target if each.reached == each.runs else math.nan for each in outcomes]
    cells = [_rounds_cell(outcome) for outcome in outcomes]
    return Column(f"Rounds to {percent_text(target)}", cells, _best_rows(outcomes, values, cells, min))


def _rounds_cell(outcome: Outcome) -> str:
    if not outcome.reached:
        return MISSING
    text = f"{outcome.rounds_to_target:.1f}".removesuffix(".0")
    return text if outcome.reached == outcome.runs else f"{text} ({outcome.reached} of {outcome.runs})"


def _best_rows(
    outcomes: Sequence[Outcome],
    values: Sequence[float],
    cells: Sequence[str],
    better: Callable[[Iterable[float]], float],
) -> set[int]:
    """The rows that show the best value; none where all show the same."""
    # A diverged run stops early and cheaply: that must not make it the best of any column.
    rows = [row for row, outcome in enumerate(outcomes) if not outcome.diverged]
    finite = [values[row] for row in rows if math.isfinite(values[row])]
    if not finite or len({cells[row] for row in rows}) == 1:
        return set()
    best = better(finite)
    texts = {cells[row] for row in rows if values[row] == best}
    return {row for row in rows if cells[row] in texts}


def diverged_text(outcome: Outcome) -> str:
    """How many of the runs diverged."""
    return "diverged" if outcome.runs == 1 else f"{outcome.diverged} of {outcome.runs} diverged"
