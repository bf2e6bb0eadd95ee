"""The summary table: its columns, their texts, and which rows are best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from undrift.core import check
from undrift.reporting.figures import LAST_K, Figure, Goal, Outcome, outcomes_of
from undrift.reporting.record import EXPLODED, HistoryColumn, Record, column
from undrift.reporting.targets import Target, Targets
from undrift.reporting.wording import (
    MISSING,
    NBSP,
    decimal_text,
    list_text,
    mean_count_text,
    number_text,
    percent_text,
    spread_text,
    unit_of_time,
    unit_of_traffic,
)


class Column(NamedTuple):
    """A column of the summary table: its texts, and the rows that hold the best value."""

    heading: str
    cells: list[str]
    best: set[int]
    name: str = ""  # by which users choose it


SETTINGS = {"lr": "Rate", "server_lr": "Server rate", "weighting": "Weights"}  # headings of the columns of settings
# Columns by their names, besides metrics; the name of the method is always there.
NAMES = (
    "seeds",
    "accuracy",
    "best_accuracy",
    "best_round",
    "last_k",
    "loss",
    "rounds",
    "speed_up",
    "bytes",
    "traffic",
    "time",
    *SETTINGS,
)
# What a narrow terminal has no room for, in the order in which it goes.
SPARE = ("best_round", "bytes", "last_k", "best_accuracy", "time", "speed_up", "seeds", *SETTINGS, "loss", "traffic")


def columns(
    records: Sequence[Record],
    targets: Targets = None,
    last_k: int | None = None,
    chosen: Sequence[str] | None = None,
) -> list[Column]:
    """The summary table as text, the names of the methods first; of the others all, or those `chosen` by name.

    The mean over the last rounds is shown if it was asked for (`last_k`), or if runs are longer than that.
    """
    outcomes, found = outcomes_of(records, targets, last_k or LAST_K)
    names = [f"{each.label} ({text})" if (text := failure_text(each)) else each.label for each in outcomes]
    table = columns_of(outcomes, found, last_k)
    return [Column("Method", names, set(), "method"), *(table if chosen is None else _chosen(table, chosen))]


def _chosen(table: Sequence[Column], names: Sequence[str]) -> list[Column]:
    known = [*NAMES, *(column.name for column in table)]
    check_names(names, known)
    return [column for name in names for column in table if column.name == name]


def check_names(names: Sequence[str], known: Sequence[str] = NAMES) -> None:
    """Refuses a column that there is not."""
    if isinstance(names, str):
        raise TypeError(f"columns must be a list of names, got {check.shown(names)}")
    for name in names:
        check.choice("columns: a column", name, tuple(dict.fromkeys(known)))


def note(records: Sequence[Record], targets: Targets = None, last_k: int | None = None) -> str:
    """What to know of the figures, in one line."""
    outcomes, found = outcomes_of(records, targets, last_k or LAST_K)
    return caption(outcomes, found, last_k)


def columns_of(outcomes: Sequence[Outcome], targets: Sequence[Target], last_k: int | None = None) -> list[Column]:
    """The columns after the name, without those that would say nothing."""
    table = []
    if any(outcome.runs > 1 for outcome in outcomes):
        table.append(Column("Seeds", [_seeds_text(outcome) for outcome in outcomes], set(), "seeds"))
    for name in outcomes[0].finals:
        table += _final_columns(column(name), outcomes, last_k)
    for number in _shown_targets(outcomes, targets):
        table += _target_columns(outcomes, number, several=len(targets) > 1)
    table.append(_column("Traffic", "traffic", outcomes, [each.traffic for each in outcomes], min, _sizes))
    # Seeds that train together share their time, so that its spread is unknown.
    trained = all(math.isfinite(outcome.training_seconds) for outcome in outcomes)
    seconds = [outcome.training_seconds if trained else outcome.seconds for outcome in outcomes]
    cells = _with_unit([Figure(each, math.nan) for each in seconds], unit_of_time(seconds))
    table.append(Column("Training time" if trained else "Time", cells, set(), "time"))
    known = (name for name in SETTINGS if any(outcome.settings[name] is not None for outcome in outcomes))
    return table + [_setting_column(name, outcomes) for name in known]


def _shown_targets(outcomes: Sequence[Outcome], targets: Sequence[Target]) -> list[int]:
    """That a single method reaches its own final accuracy says nothing."""
    compared = sum(not outcome.reference for outcome in outcomes) > 1
    return [number for number, target in enumerate(targets) if compared or target.given]


def _setting_column(name: str, outcomes: Sequence[Outcome]) -> Column:
    values = [outcome.settings[name] for outcome in outcomes]
    cells = [f"{each:g}" if isinstance(each, float | int) else each or MISSING for each in values]
    return Column(SETTINGS[name], cells, set(), name)


def _with_unit(figures: Iterable[Figure], unit: tuple[float, str]) -> list[str]:
    size, name = unit

    def text(figure: Figure) -> str:
        if not math.isfinite(figure.mean):
            return MISSING
        mean, std = figure.mean / size, figure.std / size
        return f"{spread_text(mean, std, lambda value: decimal_text(value, like=mean))}{NBSP}{name}"

    return [text(figure) for figure in figures]


def _sizes(figures: Sequence[Figure]) -> list[str]:
    return _with_unit([each._replace(std=math.nan) for each in figures], unit_of_traffic(each.mean for each in figures))


def caption(outcomes: Sequence[Outcome], targets: Sequence[Target], last_k: int | None = None) -> str:
    """What to know of the figures; stands under the table."""
    notes = []
    methods = [outcome for outcome in outcomes if not outcome.reference]
    if any(outcome.runs > 1 for outcome in outcomes):
        notes.append("Means over seeds; ± is the standard deviation.")
        if len(methods) > 1:
            notes.append("Bold is better than all others by more than the larger standard deviation of the two.")
    elif len(methods) > 1:
        notes.append("One seed each: the spread between seeds is unknown, so nothing is bold.")
    else:
        notes.append("One seed: the spread between seeds is unknown.")
    notes += [
        f"{percent_text(target.accuracy)} is {_share_text(target.share)} of the centralised accuracy."
        for target in targets
        if target.share is not None and math.isfinite(target.accuracy)
    ]
    if any(0 < goal.reached < outcome.runs for outcome in methods for goal in outcome.goals):
        notes.append("Rounds are averaged over the seeds that reached the target.")
    if _shows_late(outcomes, last_k):
        notes += _late_notes(outcomes, last_k or LAST_K)
    if len(methods) < len(outcomes):
        notes.append("The centralised model is trained on the pooled data; its rounds are epochs.")
    if any(0 < outcome.failed < outcome.runs for outcome in outcomes):
        notes.append("Seeds that diverged or exploded are left out of the means.")
    if any(outcome.failed == outcome.runs for outcome in outcomes):
        notes.append("A method of which all runs failed is shown with their last finite values.")
    if any(outcome.exploded for outcome in outcomes):
        notes.append(f"Exploded: a training loss of over {EXPLODED} times that of the first round.")
    if len(methods) > 1 and any(outcome.failed for outcome in outcomes):
        notes.append("A method with a run that failed is never bold.")
    return " ".join(notes)


def _share_text(share: float) -> str:
    return f"{100 * share:g}{NBSP}%"


def _shows_late(outcomes: Sequence[Outcome], last_k: int | None) -> bool:
    """In a run that is hardly longer than the last rounds, their mean says little: it is shown where it is wanted."""
    return last_k is not None or all(each.last_round > LAST_K for each in outcomes if not each.reference)


def _late_notes(outcomes: Sequence[Outcome], last_k: int) -> list[str]:
    """Of how many rounds the mean is, where they are fewer than asked for."""
    fewer = {outcome.label: outcome.late_rounds for outcome in outcomes if outcome.late_rounds < last_k}
    if not fewer:
        return []
    if len(fewer) == len(outcomes) and len(set(fewer.values())) == 1:
        return [f"Runs have {min(fewer.values())} rounds, fewer than {last_k}: their mean is over all of them."]
    listed = list_text([f"{label} ({rounds})" for label, rounds in fewer.items()])
    return [f"The mean is over fewer than {last_k} rounds where a run is shorter: {listed}."]


def _final_columns(shown: HistoryColumn, outcomes: Sequence[Outcome], last_k: int | None) -> list[Column]:
    """The final values of a column of the histories; of the accuracy, also the best ones, and those of the end."""
    assert shown.heading is not None, "finals are kept of columns with a heading only"
    finals = [outcome.finals[shown.name] for outcome in outcomes]
    if not any(math.isfinite(final.mean) for final in finals):
        return []
    better = {"higher": max, "lower": min, None: None}[shown.better]
    found = [_column(shown.heading, shown.name, outcomes, finals, better, _shares if shown.percent else _numbers)]
    if shown.name == "accuracy":
        best, rounds = [each.best_accuracy for each in outcomes], [each.best_round for each in outcomes]
        found.append(_column("Best accuracy", "best_accuracy", outcomes, best, max, _shares))
        found.append(_column("Round of best", "best_round", outcomes, rounds, None, _counts))
        if _shows_late(outcomes, last_k):
            late, count = [each.late_accuracy for each in outcomes], last_k or LAST_K
            found.append(_column(f"Last{NBSP}{count} rounds", "last_k", outcomes, late, max, _shares))
    return found


def _shares(figures: Sequence[Figure]) -> list[str]:
    return [percent_text(figure.mean, figure.std) for figure in figures]


def _numbers(figures: Sequence[Figure]) -> list[str]:
    return [number_text(figure.mean) for figure in figures]


def _counts(figures: Sequence[Figure]) -> list[str]:
    return [spread_text(figure.mean, figure.std, mean_count_text) for figure in figures]


def _column(
    heading: str,
    name: str,
    outcomes: Sequence[Outcome],
    figures: Sequence[Figure],
    better: Callable[[Iterable[float]], float] | None,
    texts: Callable[[Sequence[Figure]], list[str]],
) -> Column:
    cells = texts(figures)
    return Column(heading, cells, set() if better is None else _best_rows(outcomes, figures, cells, better), name)


def _target_columns(outcomes: Sequence[Outcome], number: int, several: bool) -> list[Column]:
    """Rounds and bytes to a target, and the speed-up over the first method."""
    goals = [outcome.goals[number] for outcome in outcomes]
    to = f"to {percent_text(goals[0].target.accuracy)}"
    # A mean over only the seeds that reached the target flatters: it is shown, but is never the best.
    whole = [goal.reached == outcome.runs for goal, outcome in zip(goals, outcomes, strict=True)]

    def ranked(figures: Iterable[Figure]) -> list[Figure]:
        unknown = Figure(math.nan, math.nan)
        return [figure if all_did else unknown for figure, all_did in zip(figures, whole, strict=True)]

    rounds, traffic = [goal.rounds for goal in goals], [goal.traffic for goal in goals]
    cells = [_rounds_cell(goal, outcome) for goal, outcome in zip(goals, outcomes, strict=True)]
    found = [Column(f"Rounds {to}", cells, _best_rows(outcomes, ranked(rounds), cells, min), "rounds")]
    if any(math.isfinite(goal.speed_up) for goal in goals[1:]):
        factors = [_factor_text(goal.speed_up) for goal in goals]
        found.append(Column(f"Speed-up {to}" if several else "Speed-up", factors, set(), "speed_up"))
    sizes = _with_unit(traffic, unit_of_traffic(each.mean for each in traffic))
    found.append(Column(f"Traffic {to}", sizes, _best_rows(outcomes, ranked(traffic), sizes, min), "bytes"))
    return found


def _factor_text(factor: float) -> str:
    return f"{factor:.2f}{NBSP}×" if math.isfinite(factor) else MISSING


def _rounds_cell(goal: Goal, outcome: Outcome) -> str:
    text = spread_text(*goal.rounds, mean_count_text)
    return text if goal.reached in (0, outcome.runs) else f"{text} ({goal.reached} of {outcome.runs})"


def _best_rows(
    outcomes: Sequence[Outcome],
    figures: Sequence[Figure],
    cells: Sequence[str],
    better: Callable[[Iterable[float]], float],
) -> set[int]:
    """The rows that show the best value, if it beats every other one by more than the spread over seeds."""
    values, spreads = [figure.mean for figure in figures], [figure.std for figure in figures]
    # A diverged run stops early and cheaply, one whose loss exploded may look fast or accurate by chance: that must not
    # make it the best of any column. A reference is not ranked.
    rows = [
        row
        for row, outcome in enumerate(outcomes)
        if not outcome.reference and not failure_text(outcome) and math.isfinite(values[row])
    ]
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
