"""The summary table: its columns, their texts, and which rows are best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from undrift.reporting.figures import Outcome, outcomes_of
from undrift.reporting.record import EXPLODED, HistoryColumn, Record, column
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
    names = [f"{each.label} ({text})" if (text := failure_text(each)) else each.label for each in outcomes]
    # That a single method reaches its own final accuracy says nothing.
    return [Column("Method", names, set()), *columns_of(outcomes, target if len(outcomes) == 1 else common_target)]


def note(records: Sequence[Record], target: float | None = None) -> str:
    """What to know of the figures, in one line."""
    outcomes, common_target = outcomes_of(records, target)
    return caption(outcomes, common_target)


def columns_of(outcomes: Sequence[Outcome], target: float | None) -> list[Column]:
    """The columns after the name, without those that would say nothing."""
    table = []
    if any(outcome.runs > 1 for outcome in outcomes):
        table.append(Column("Seeds", [_seeds_text(outcome) for outcome in outcomes], set()))
    for name in outcomes[0].finals:
        table += _final_columns(column(name), outcomes)
    if target is not None:
        table.append(_rounds_column(outcomes, target))
    traffic = [outcome.traffic for outcome in outcomes]
    cells = _with_unit(traffic, unit_of_traffic(traffic))
    table.append(Column("Traffic", cells, _best_rows(outcomes, traffic, _spreads(outcomes, "traffic"), cells, min)))
    seconds = [outcome.seconds for outcome in outcomes]
    # Seeds that train together share their time, so that its spread is unknown.
    table.append(Column("Time", _with_unit(seconds, unit_of_time(seconds)), set()))
    known = (name for name in SETTINGS if any(outcome.settings[name] is not None for outcome in outcomes))
    return table + [_setting_column(name, outcomes) for name in known]


SETTINGS = {"lr": "Rate", "server_lr": "Server rate", "weighting": "Weights"}  # headings of the columns of settings


def _setting_column(name: str, outcomes: Sequence[Outcome]) -> Column:
    values = [outcome.settings[name] for outcome in outcomes]
    cells = [f"{each:g}" if isinstance(each, float | int) else each or MISSING for each in values]
    return Column(SETTINGS[name], cells, set())


def _with_unit(values: Iterable[float], unit: tuple[float, str]) -> list[str]:
    size, name = unit
    return [f"{decimal_text(value / size)}{NBSP}{name}" for value in values]


def caption(outcomes: Sequence[Outcome], target: float | None) -> str:
    """What to know of the figures; stands under the table."""
    notes = []
    if any(outcome.runs > 1 for outcome in outcomes):
        notes.append("Means over seeds; ± is the standard deviation.")
        if len(outcomes) > 1:
            notes.append("Bold is better than all others by more than the larger standard deviation of the two.")
    elif len(outcomes) > 1:
        notes.append("One seed each: the spread between seeds is unknown, so nothing is bold.")
    else:
        notes.append("One seed: the spread between seeds is unknown.")
    if target is not None and any(0 < outcome.reached < outcome.runs for outcome in outcomes):
        notes.append("Rounds are averaged over the seeds that reached the target.")
    if any(0 < outcome.failed < outcome.runs for outcome in outcomes):
        notes.append("Seeds that diverged or exploded are left out of the means.")
    if any(outcome.failed == outcome.runs for outcome in outcomes):
        notes.append("A method of which all runs failed is shown with their last finite values.")
    if any(outcome.exploded for outcome in outcomes):
        notes.append(f"Exploded: a training loss of over {EXPLODED} times that of the first round.")
    if len(outcomes) > 1 and any(outcome.failed for outcome in outcomes):
        notes.append("A method with a run that failed is never bold.")
    return " ".join(notes)


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
    best = _best_rows(outcomes, means, [final.std for final in finals], cells, better) if better else set()
    found = [Column(shown.heading, cells, best)]
    if shown.name == "accuracy":
        values = [outcome.best_accuracy for outcome in outcomes]
        cells = [percent_text(value) for value in values]
        spreads = _spreads(outcomes, "best_accuracy")
        found.append(Column("Best accuracy", cells, _best_rows(outcomes, values, spreads, cells, max)))
    return found


def _rounds_column(outcomes: Sequence[Outcome], target: float) -> Column:
    # A mean over only the seeds that reached the target flatters: it is shown, but is never the best.
    values = [each.rounds_to_target if each.reached == each.runs else math.nan for each in outcomes]
    cells = [_rounds_cell(outcome) for outcome in outcomes]
    best = _best_rows(outcomes, values, _spreads(outcomes, "rounds_to_target"), cells, min)
    return Column(f"Rounds to {percent_text(target)}", cells, best)


def _rounds_cell(outcome: Outcome) -> str:
    if not outcome.reached:
        return MISSING
    text = f"{outcome.rounds_to_target:.1f}".removesuffix(".0")
    return text if outcome.reached == outcome.runs else f"{text} ({outcome.reached} of {outcome.runs})"


def _spreads(outcomes: Iterable[Outcome], name: str) -> list[float]:
    return [outcome.spreads[name] for outcome in outcomes]


def _best_rows(
    outcomes: Sequence[Outcome],
    values: Sequence[float],
    spreads: Sequence[float],
    cells: Sequence[str],
    better: Callable[[Iterable[float]], float],
) -> set[int]:
    """The rows that show the best value, if it beats every other one by more than the spread over seeds."""
    # A diverged run stops early and cheaply, one whose loss exploded may look fast or accurate by chance: that must not
    # make it the best of any column.
    rows = [row for row, outcome in enumerate(outcomes) if not failure_text(outcome) and math.isfinite(values[row])]
    if not rows:
        return set()
    best = better(values[row] for row in rows)
    texts = {cells[row] for row in rows if values[row] == best}
    winners = {row for row in rows if cells[row] in texts}
    others = [row for row in rows if row not in winners]
    # The spread of a single seed is unknown (NaN), and nothing exceeds that.
    clear = all(
        abs(values[row] - values[other]) > spreads[row] and abs(values[row] - values[other]) > spreads[other]
        for row in winners
        for other in others
    )
    return winners if others and clear else set()


def failure_text(outcome: Outcome) -> str:
    """How many of the runs diverged, or had a training loss that exploded; empty where all is well."""
    words = ((outcome.diverged, "diverged"), (outcome.exploded, "exploded"))
    counts = [(count, word) for count, word in words if count]
    if outcome.runs == 1:
        return "".join(word for _, word in counts)
    if outcome.failed == outcome.runs:
        return ", ".join(f"{count} of {outcome.runs} {word}" for count, word in counts)
    return f"{_seeds_text(outcome)} seeds; {', '.join(f'{count} {word}' for count, word in counts)}" if counts else ""


def _seeds_text(outcome: Outcome) -> str:
    """How many seeds the means are over."""
    return str(outcome.runs) if outcome.averaged == outcome.runs else f"{outcome.averaged} of {outcome.runs}"
