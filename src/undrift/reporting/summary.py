"""Finished runs in a table and a sentence: what came out, in plain words and honest about seeds and divergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

_COLUMNS = (
    "round",
    "loss",
    "accuracy",
    "train_loss",
    "bytes_down",
    "bytes_up",
    "seconds",
    "participants",
    "diverged",
)
MISSING = "–"
NBSP = "\u00a0"  # keeps a number and its unit on one line


class Record(NamedTuple):
    """One finished run, as the report sees it."""

    label: str
    seed: int
    history: pd.DataFrame
    config: dict[str, Any]
    environment: dict[str, Any]


class Outcome(NamedTuple):
    """What the runs of one label came to: means over its seeds."""

    label: str
    runs: int
    accuracy: float
    accuracy_std: float
    best_accuracy: float
    loss: float
    rounds_to_target: float
    traffic: float
    seconds: float
    diverged: int
    reached: int  # seeds that reached the target
    last_round: int

    @property
    def all_diverged(self) -> bool:
        return self.diverged == self.runs


class Column(NamedTuple):
    """A column of the summary table: its texts, and the rows that hold the best value."""

    heading: str
    cells: list[str]
    best: set[int]


def summarise(records: Sequence[Record], target: float | None = None) -> pd.DataFrame:
    """A row per label, in order of first appearance; `attrs["target"]` is the accuracy aimed at.

    Without a `target` it is the mean final accuracy of the first label: how soon do the others
    get where the first one ended? It stays None where no run has an accuracy.
    """
    outcomes, aim = outcomes_of(records, target)
    summary = pd.DataFrame(outcomes, columns=list(Outcome._fields)).drop(columns=["reached", "last_round"])
    summary.attrs["target"] = aim
    return summary


def outcomes_of(records: Sequence[Record], target: float | None) -> tuple[list[Outcome], float | None]:
    _check(records, target)
    groups = by_label(records)
    if target is None:
        first = _mean(_last_finite(run.history["accuracy"]) for run in next(iter(groups.values())))
        target = first if math.isfinite(first) else None
    return [outcome_of(label, runs, target) for label, runs in groups.items()], target


def _check(records: Sequence[Record], target: float | None) -> None:
    if not records:
        raise ValueError("a report needs at least one record, got none")
    if target is not None and not 0 <= target <= 1:
        raise ValueError(f"target is an accuracy between 0 and 1, got {target!r}")
    seen: set[tuple[str, int]] = set()
    for record in records:
        name = f"{record.label!r} (seed {record.seed})"
        if missing := [column for column in _COLUMNS if column not in record.history]:
            raise ValueError(f"the history of {name} lacks the columns {', '.join(missing)}")
        if record.history.empty:
            raise ValueError(f"the history of {name} is empty")
        if (record.label, record.seed) in seen:
            raise ValueError(f"two records are both {name}")
        seen.add((record.label, record.seed))


def by_label(records: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.label, []).append(record)
    return groups


def outcome_of(label: str, runs: Sequence[Record], target: float | None) -> Outcome:
    histories = [run.history for run in runs]
    finals = [_last_finite(history["accuracy"]) for history in histories]
    arrivals = [_first_round_at(history, target) for history in histories]
    return Outcome(
        label=label,
        runs=len(runs),
        accuracy=_mean(finals),
        accuracy_std=_std(finals),
        best_accuracy=_mean(max(_finite(history["accuracy"]), default=math.nan) for history in histories),
        loss=_mean(_last_finite(history["loss"]) for history in histories),
        rounds_to_target=_mean(arrivals),
        traffic=_mean(float(traffic_of(history).sum()) for history in histories),
        seconds=_mean(float(history["seconds"].sum()) for history in histories),
        diverged=sum(divergence_round(history) is not None for history in histories),
        reached=len(_finite(arrivals)),
        last_round=max(int(history["round"].max()) for history in histories),
    )


def _finite(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)]


def _last_finite(values: Iterable[float]) -> float:
    return next(reversed(_finite(values)), math.nan)


def _mean(values: Iterable[float]) -> float:
    finite = _finite(values)
    return math.fsum(finite) / len(finite) if finite else math.nan


def _std(values: Iterable[float]) -> float:
    finite = _finite(values)
    return float(np.std(finite, ddof=1)) if len(finite) > 1 else math.nan


def _first_round_at(history: pd.DataFrame, target: float | None) -> float:
    """The first round with the target accuracy, NaN if there is none."""
    if target is None:
        return math.nan
    # The slack forgives the rounding of a target that is itself a mean of accuracies.
    reached = history.loc[history["accuracy"] >= target - 1e-9, "round"]
    return float(reached.iloc[0]) if len(reached) else math.nan


def traffic_of(history: pd.DataFrame) -> pd.Series:
    return history["bytes_down"].fillna(0) + history["bytes_up"].fillna(0)


def divergence_round(history: pd.DataFrame) -> int | None:
    rounds = history.loc[history["diverged"].astype(bool), "round"]
    return int(rounds.iloc[0]) if len(rounds) else None


# ---- from numbers to words ------------------------------------------------------------------------


def _decimal(value: float, digits: int = 3) -> str:
    """`value` with about three significant digits and never an exponent."""
    if not math.isfinite(value):
        return MISSING
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def number_text(value: float) -> str:
    """A loss: three significant digits, with an exponent where it is very large or small."""
    if not math.isfinite(value):
        return MISSING
    return f"{value:#.3g}".removesuffix(".")


def percent_text(value: float, std: float = math.nan) -> str:
    if not math.isfinite(value):
        return MISSING
    spread = f"{NBSP}±{NBSP}{100 * std:.1f}" if math.isfinite(std) else ""
    return f"{100 * value:.1f}{spread}{NBSP}%"


def _count(number: float, noun: str) -> str:
    whole = round(number)
    return f"{whole}{NBSP}{noun}" + ("" if whole == 1 else "s")


def _unit(values: Iterable[float], units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest unit that the largest value fills; one unit for all keeps them comparable."""
    largest = max(_finite(values), default=0.0)
    return next(((size, name) for size, name in units if largest >= size), units[-1])


def unit_of_traffic(values: Iterable[float]) -> tuple[float, str]:
    return _unit(values, ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")))


def unit_of_time(values: Iterable[float]) -> tuple[float, str]:
    # Minutes and hours only once there are a few of them: "90 s" reads better than "1.5 min".
    largest = max(_finite(values), default=0.0)
    return (3600, "h") if largest >= 7200 else (60, "min") if largest >= 300 else (1, "s")


def headline(records: Sequence[Record], target: float | None = None) -> str:
    """What came out, in plain words: the first label is what the others are compared with."""
    outcomes, _ = outcomes_of(records, target)
    if all(outcome.all_diverged for outcome in outcomes):
        return _nothing_converged(outcomes, records)
    sound = [outcome for outcome in outcomes if not outcome.all_diverged]
    evaluated = [outcome for outcome in sound if math.isfinite(outcome.accuracy)]
    by_accuracy = bool(evaluated)
    if not by_accuracy:
        evaluated = [outcome for outcome in sound if math.isfinite(outcome.loss)]
    if not evaluated:
        sentences = ["No round was evaluated on test data; only the training loss is known."]
    elif len(outcomes) == 1:
        sentences = [_alone(outcomes[0], by_accuracy, target)]
    elif len(evaluated) == 1 or evaluated[0] is not outcomes[0]:
        sentences = [_without_baseline(evaluated, by_accuracy)]
    else:
        sentences = _compared(evaluated, by_accuracy, target)
    return " ".join(sentences + [_divergence_sentence(each) for each in outcomes if each.diverged])


def _nothing_converged(outcomes: Sequence[Outcome], records: Sequence[Record]) -> str:
    if len(records) == 1:
        last = outcomes[0].accuracy
        tail = f"; its last accuracy was {percent_text(last)}" if math.isfinite(last) else ""
        return f"{outcomes[0].label} diverged at round {divergence_round(records[0].history)}{tail}."
    if len(outcomes) == 1:
        return _divergence_sentence(outcomes[0])
    return f"Every run diverged: {_listing([outcome.label for outcome in outcomes])}."


def _divergence_sentence(outcome: Outcome) -> str:
    if outcome.runs == 1:
        return f"{outcome.label} diverged."
    if outcome.all_diverged:
        return f"{outcome.label} diverged in all {_count(outcome.runs, 'run')}."
    return f"{outcome.diverged} of {_count(outcome.runs, 'run')} of {outcome.label} diverged."


def _listing(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _standing(outcome: Outcome, by_accuracy: bool) -> str:
    if by_accuracy:
        return f"{percent_text(outcome.accuracy)} accuracy"
    return f"a test loss of {number_text(outcome.loss)}"


def _lead(ours: Outcome, theirs: Outcome, by_accuracy: bool) -> float:
    """By how much `ours` is better: points of accuracy, or units of loss; 0 where no digit shows it."""
    if by_accuracy:
        return round(100 * (ours.accuracy - theirs.accuracy), 1)
    return 0.0 if number_text(ours.loss) == number_text(theirs.loss) else theirs.loss - ours.loss


def _gap(ours: Outcome, theirs: Outcome, by_accuracy: bool) -> str:
    lead = _lead(ours, theirs, by_accuracy)
    if lead == 0:
        return f"level with {theirs.label}"
    size = f"{abs(lead):.1f} points" if by_accuracy else number_text(abs(lead))
    # A better loss is a lower one.
    return f"{size} {'above' if (lead > 0) == by_accuracy else 'below'} {theirs.label}"


def _alone(outcome: Outcome, by_accuracy: bool, target: float | None) -> str:
    text = f"{outcome.label} ended at {_standing(outcome, by_accuracy)}"
    text += f" after {_count(outcome.last_round, 'round')}"
    if outcome.runs > 1:
        text += f", the mean of {_count(outcome.runs, 'seed')}"
    if target is None or not by_accuracy:
        return f"{text}."
    if not outcome.reached:
        return f"{text}; it did not reach {percent_text(target)}."
    return f"{text}; it reached {percent_text(target)} in {_arrival(outcome)}."


def _arrival(outcome: Outcome) -> str:
    """How many rounds it took, and how many seeds that speaks for if not for all."""
    rounds = _count(outcome.rounds_to_target, "round")
    if outcome.reached == outcome.runs:
        return rounds
    return f"{rounds} ({outcome.reached}{NBSP}of{NBSP}{_count(outcome.runs, 'seed')})"


def _best_of(outcomes: Sequence[Outcome], by_accuracy: bool) -> Outcome:
    return max(outcomes, key=lambda each: each.accuracy if by_accuracy else -each.loss)


def _without_baseline(evaluated: Sequence[Outcome], by_accuracy: bool) -> str:
    """The sentence where the first label, or everything but it, has nothing to compare."""
    best = _best_of(evaluated, by_accuracy)
    return f"{best.label} ended at {_standing(best, by_accuracy)}."


def _compared(evaluated: Sequence[Outcome], by_accuracy: bool, target: float | None) -> list[str]:
    baseline, others = evaluated[0], evaluated[1:]
    rival = _best_of(others, by_accuracy)
    lead = _lead(rival, baseline, by_accuracy)
    rank = f"{'highest' if by_accuracy else 'lowest'} of {len(evaluated)} methods"
    if len(others) == 1 or lead > 0:
        place = f" {rank}," if len(others) > 1 else ""
        first = f"{rival.label} ended{place} at {_standing(rival, by_accuracy)}"
        first += f", {_gap(rival, baseline, by_accuracy)}"
        first += _arrival_clause(rival, baseline, lead, target) if by_accuracy else ""
    elif lead == 0:
        first = f"{baseline.label} and {rival.label} ended level, {rank}, at {_standing(baseline, by_accuracy)}"
    else:
        first = f"{baseline.label} ended {rank}, at {_standing(baseline, by_accuracy)}"
        first += f", {_gap(baseline, rival, by_accuracy)}, the next best"
    return [f"{first}.", *_caveats(rival, baseline, by_accuracy)]


def _arrival_clause(rival: Outcome, baseline: Outcome, lead: float, target: float | None) -> str:
    goal = f"{baseline.label}’s final accuracy" if target is None else percent_text(target)
    link = ", and" if (lead >= 0) == bool(rival.reached) else ", but"
    if not rival.reached:
        theirs = f"; {baseline.label} did, in {_arrival(baseline)}" if target and baseline.reached else ""
        return f"{link} did not reach {goal}{theirs}"
    ours = f"{link} reached {goal} in {_arrival(rival)}"
    if not baseline.reached:
        return f"{ours}; {baseline.label} did not reach it"
    if round(rival.rounds_to_target) < round(baseline.rounds_to_target):
        return f"{ours} instead of {_arrival(baseline).removesuffix(f'{NBSP}rounds')}"
    return f"{ours}, against {_arrival(baseline)} for {baseline.label}"


def _caveats(rival: Outcome, baseline: Outcome, by_accuracy: bool) -> list[str]:
    """What a careful reader would ask about the comparison."""
    caveats = []
    spread = max(_finite((rival.accuracy_std, baseline.accuracy_std)), default=math.nan)
    lead = _lead(rival, baseline, by_accuracy)
    if by_accuracy and lead and abs(lead) <= 100 * spread:
        caveats.append("The difference is within the spread over seeds.")
    if rival.last_round != baseline.last_round:
        ours = f"{rival.label} ran for {_count(rival.last_round, 'round')}"
        caveats.append(f"{ours}, {baseline.label} for {baseline.last_round}.")
    return caveats


def scope_of(records: Sequence[Record], outcomes: Sequence[Outcome]) -> str:
    """How much was run: "2 methods · 3 seeds each · 100 rounds · 10 clients a round"."""
    seeds = _count_range((outcome.runs for outcome in outcomes), "seed")
    rounds = _count_range((outcome.last_round for outcome in outcomes), "round")
    clients = _count_range((record.history["participants"].max() for record in records), "client")
    if len(records) == 1:
        parts = [f"seed {records[0].seed}"]
    elif len(outcomes) == 1:
        parts = [seeds]
    else:
        parts = [_count(len(outcomes), "method"), f"{seeds} each"]
    return " · ".join([*parts, rounds, f"{clients} a round"])


def _count_range(numbers: Iterable[int], noun: str) -> str:
    ordered = sorted(numbers)
    low = "" if ordered[0] == ordered[-1] else f"{ordered[0]}–"
    return low + _count(ordered[-1], noun)


def columns(records: Sequence[Record], target: float | None = None) -> list[Column]:
    """The summary table in words, the names of the methods first."""
    outcomes, aim = outcomes_of(records, target)
    names = [f"{each.label} ({diverged_share(each)})" if each.diverged else each.label for each in outcomes]
    return [Column("Method", names, set()), *columns_of(outcomes, target if len(outcomes) == 1 else aim)]


# ---- from words to HTML ---------------------------------------------------------------------------


def columns_of(outcomes: Sequence[Outcome], target: float | None) -> list[Column]:
    """The summary's columns, without those that would say nothing."""
    # A run that blew up stops early and cheaply: that must not win it any column.
    sound = [not outcome.diverged for outcome in outcomes]
    finals = [outcome.accuracy for outcome in outcomes]
    bests = [outcome.best_accuracy for outcome in outcomes]
    losses = [outcome.loss for outcome in outcomes]
    columns = []
    if any(outcome.runs > 1 for outcome in outcomes):
        columns.append(Column("Seeds", [str(outcome.runs) for outcome in outcomes], set()))
    if _finite(finals):
        cells = [percent_text(outcome.accuracy, outcome.accuracy_std) for outcome in outcomes]
        columns.append(Column("Final accuracy", cells, _best_rows(finals, cells, sound, max)))
        cells = [percent_text(best) for best in bests]
        columns.append(Column("Best accuracy", cells, _best_rows(bests, cells, sound, max)))
    if _finite(losses):
        cells = [number_text(loss) for loss in losses]
        columns.append(Column("Final test loss", cells, _best_rows(losses, cells, sound, min)))
    if target is not None:
        # A mean over only the seeds that got there flatters: it is shown, but it does not win.
        rounds = [each.rounds_to_target if each.reached == each.runs else math.nan for each in outcomes]
        cells = [_rounds_cell(outcome) for outcome in outcomes]
        best = _best_rows(rounds, cells, sound, min)
        columns.append(Column(f"Rounds to {percent_text(target)}", cells, best))
    for heading, values, unit_of in (
        ("Traffic", [outcome.traffic for outcome in outcomes], unit_of_traffic),
        ("Time", [outcome.seconds for outcome in outcomes], unit_of_time),
    ):
        size, unit = unit_of(values)
        cells = [f"{_decimal(value / size)}{NBSP}{unit}" for value in values]
        columns.append(Column(heading, cells, _best_rows(values, cells, sound, min)))
    return columns


def _rounds_cell(outcome: Outcome) -> str:
    if not outcome.reached:
        return MISSING
    text = f"{outcome.rounds_to_target:.1f}".removesuffix(".0")
    return text if outcome.reached == outcome.runs else f"{text} ({outcome.reached} of {outcome.runs})"


def _best_rows(
    values: Sequence[float],
    cells: Sequence[str],
    fair: Sequence[bool],
    better: Callable[[Iterable[float]], float],
) -> set[int]:
    """The rows that show the best value; none where nothing worse competes with it."""
    rows = [row for row in range(len(values)) if fair[row]]
    finite = _finite(values[row] for row in rows)
    if not finite or len({cells[row] for row in rows}) == 1:
        return set()
    texts = {cells[row] for row in rows if values[row] == better(finite)}
    return {row for row in rows if cells[row] in texts}


def diverged_share(outcome: Outcome) -> str:
    return "diverged" if outcome.runs == 1 else f"{outcome.diverged} of {outcome.runs} diverged"
