"""Finished runs as one self-contained HTML page: what came out, the curves, and how it was made."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
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
_MISSING = "–"
_NBSP = "\u00a0"  # keeps a number and its unit on one line
_COLOURS = 7  # --c0 … --c6 in the template's style sheet


class Record(NamedTuple):
    """One finished run, as the report sees it."""

    label: str
    seed: int
    history: pd.DataFrame
    config: dict[str, Any]
    environment: dict[str, Any]


class _Outcome(NamedTuple):
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


class _Metric(NamedTuple):
    """A curve the page draws, and how it is written."""

    key: str
    title: str
    percent: bool


_METRICS = (
    _Metric("accuracy", "Test accuracy", percent=True),
    _Metric("loss", "Test loss", percent=False),
    _Metric("train_loss", "Training loss", percent=False),
)


# ---- from runs to numbers -------------------------------------------------------------------------


def summarise(records: Sequence[Record], target: float | None = None) -> pd.DataFrame:
    """A row per label, in order of first appearance; `attrs["target"]` is the accuracy aimed at.

    Without a `target` it is the mean final accuracy of the first label: how soon do the others
    get where the first one ended? It stays None where no run has an accuracy.
    """
    outcomes, aim = _outcomes(records, target)
    summary = pd.DataFrame(outcomes, columns=list(_Outcome._fields)).drop(columns=["reached", "last_round"])
    summary.attrs["target"] = aim
    return summary


def _outcomes(records: Sequence[Record], target: float | None) -> tuple[list[_Outcome], float | None]:
    _check(records, target)
    groups = _by_label(records)
    if target is None:
        first = _mean(_last_finite(run.history["accuracy"]) for run in next(iter(groups.values())))
        target = first if math.isfinite(first) else None
    return [_outcome(label, runs, target) for label, runs in groups.items()], target


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


def _by_label(records: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.label, []).append(record)
    return groups


def _outcome(label: str, runs: Sequence[Record], target: float | None) -> _Outcome:
    histories = [run.history for run in runs]
    finals = [_last_finite(history["accuracy"]) for history in histories]
    arrivals = [_first_round_at(history, target) for history in histories]
    return _Outcome(
        label=label,
        runs=len(runs),
        accuracy=_mean(finals),
        accuracy_std=_std(finals),
        best_accuracy=_mean(max(_finite(history["accuracy"]), default=math.nan) for history in histories),
        loss=_mean(_last_finite(history["loss"]) for history in histories),
        rounds_to_target=_mean(arrivals),
        traffic=_mean(float(_traffic(history).sum()) for history in histories),
        seconds=_mean(float(history["seconds"].sum()) for history in histories),
        diverged=sum(_divergence_round(history) is not None for history in histories),
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


def _traffic(history: pd.DataFrame) -> pd.Series:
    return history["bytes_down"].fillna(0) + history["bytes_up"].fillna(0)


def _divergence_round(history: pd.DataFrame) -> int | None:
    rounds = history.loc[history["diverged"].astype(bool), "round"]
    return int(rounds.iloc[0]) if len(rounds) else None


# ---- from numbers to words ------------------------------------------------------------------------


def _decimal(value: float, digits: int = 3) -> str:
    """`value` with about three significant digits and never an exponent."""
    if not math.isfinite(value):
        return _MISSING
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def _number(value: float) -> str:
    """A loss: three significant digits, with an exponent where it is very large or small."""
    if not math.isfinite(value):
        return _MISSING
    return f"{value:#.3g}".removesuffix(".")


def _percent(value: float, std: float = math.nan) -> str:
    if not math.isfinite(value):
        return _MISSING
    spread = f"{_NBSP}±{_NBSP}{100 * std:.1f}" if math.isfinite(std) else ""
    return f"{100 * value:.1f}{spread}{_NBSP}%"


def _count(number: float, noun: str) -> str:
    whole = round(number)
    return f"{whole}{_NBSP}{noun}" + ("" if whole == 1 else "s")


def _unit(values: Iterable[float], units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest unit that the largest value fills; one unit for all keeps them comparable."""
    largest = max(_finite(values), default=0.0)
    return next(((size, name) for size, name in units if largest >= size), units[-1])


def _traffic_unit(values: Iterable[float]) -> tuple[float, str]:
    return _unit(values, ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")))


def _time_unit(values: Iterable[float]) -> tuple[float, str]:
    # Minutes and hours only once there are a few of them: "90 s" reads better than "1.5 min".
    largest = max(_finite(values), default=0.0)
    return (3600, "h") if largest >= 7200 else (60, "min") if largest >= 300 else (1, "s")


def headline(records: Sequence[Record], target: float | None = None) -> str:
    """What came out, in plain words: the first label is what the others are compared with."""
    outcomes, _ = _outcomes(records, target)
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


def _nothing_converged(outcomes: Sequence[_Outcome], records: Sequence[Record]) -> str:
    if len(records) == 1:
        last = outcomes[0].accuracy
        tail = f"; its last accuracy was {_percent(last)}" if math.isfinite(last) else ""
        return f"{outcomes[0].label} diverged at round {_divergence_round(records[0].history)}{tail}."
    if len(outcomes) == 1:
        return _divergence_sentence(outcomes[0])
    return f"Every run diverged: {_listing([outcome.label for outcome in outcomes])}."


def _divergence_sentence(outcome: _Outcome) -> str:
    if outcome.runs == 1:
        return f"{outcome.label} diverged."
    if outcome.all_diverged:
        return f"{outcome.label} diverged in all {_count(outcome.runs, 'run')}."
    return f"{outcome.diverged} of {_count(outcome.runs, 'run')} of {outcome.label} diverged."


def _listing(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _standing(outcome: _Outcome, by_accuracy: bool) -> str:
    if by_accuracy:
        return f"{_percent(outcome.accuracy)} accuracy"
    return f"a test loss of {_number(outcome.loss)}"


def _lead(ours: _Outcome, theirs: _Outcome, by_accuracy: bool) -> float:
    """By how much `ours` is better: points of accuracy, or units of loss; 0 where no digit shows it."""
    if by_accuracy:
        return round(100 * (ours.accuracy - theirs.accuracy), 1)
    return 0.0 if _number(ours.loss) == _number(theirs.loss) else theirs.loss - ours.loss


def _gap(ours: _Outcome, theirs: _Outcome, by_accuracy: bool) -> str:
    lead = _lead(ours, theirs, by_accuracy)
    if lead == 0:
        return f"level with {theirs.label}"
    size = f"{abs(lead):.1f} points" if by_accuracy else _number(abs(lead))
    # A better loss is a lower one.
    return f"{size} {'above' if (lead > 0) == by_accuracy else 'below'} {theirs.label}"


def _alone(outcome: _Outcome, by_accuracy: bool, target: float | None) -> str:
    text = f"{outcome.label} ended at {_standing(outcome, by_accuracy)}"
    text += f" after {_count(outcome.last_round, 'round')}"
    if outcome.runs > 1:
        text += f", the mean of {_count(outcome.runs, 'seed')}"
    if target is None or not by_accuracy:
        return f"{text}."
    if not outcome.reached:
        return f"{text}; it did not reach {_percent(target)}."
    return f"{text}; it reached {_percent(target)} in {_arrival(outcome)}."


def _arrival(outcome: _Outcome) -> str:
    """How many rounds it took, and how many seeds that speaks for if not for all."""
    rounds = _count(outcome.rounds_to_target, "round")
    if outcome.reached == outcome.runs:
        return rounds
    return f"{rounds} ({outcome.reached}{_NBSP}of{_NBSP}{_count(outcome.runs, 'seed')})"


def _best_of(outcomes: Sequence[_Outcome], by_accuracy: bool) -> _Outcome:
    return max(outcomes, key=lambda each: each.accuracy if by_accuracy else -each.loss)


def _without_baseline(evaluated: Sequence[_Outcome], by_accuracy: bool) -> str:
    """The sentence where the first label, or everything but it, has nothing to compare."""
    best = _best_of(evaluated, by_accuracy)
    return f"{best.label} ended at {_standing(best, by_accuracy)}."


def _compared(evaluated: Sequence[_Outcome], by_accuracy: bool, target: float | None) -> list[str]:
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


def _arrival_clause(rival: _Outcome, baseline: _Outcome, lead: float, target: float | None) -> str:
    goal = f"{baseline.label}’s final accuracy" if target is None else _percent(target)
    link = ", and" if (lead >= 0) == bool(rival.reached) else ", but"
    if not rival.reached:
        theirs = f"; {baseline.label} did, in {_arrival(baseline)}" if target and baseline.reached else ""
        return f"{link} did not reach {goal}{theirs}"
    ours = f"{link} reached {goal} in {_arrival(rival)}"
    if not baseline.reached:
        return f"{ours}; {baseline.label} did not reach it"
    if round(rival.rounds_to_target) < round(baseline.rounds_to_target):
        return f"{ours} instead of {_arrival(baseline).removesuffix(f'{_NBSP}rounds')}"
    return f"{ours}, against {_arrival(baseline)} for {baseline.label}"


def _caveats(rival: _Outcome, baseline: _Outcome, by_accuracy: bool) -> list[str]:
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


def _scope(records: Sequence[Record], outcomes: Sequence[_Outcome]) -> str:
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
    outcomes, aim = _outcomes(records, target)
    names = [f"{each.label} ({_diverged_share(each)})" if each.diverged else each.label for each in outcomes]
    return [Column("Method", names, set()), *_columns(outcomes, target if len(outcomes) == 1 else aim)]


# ---- from words to HTML ---------------------------------------------------------------------------


def _columns(outcomes: Sequence[_Outcome], target: float | None) -> list[Column]:
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
        cells = [_percent(outcome.accuracy, outcome.accuracy_std) for outcome in outcomes]
        columns.append(Column("Final accuracy", cells, _best_rows(finals, cells, sound, max)))
        cells = [_percent(best) for best in bests]
        columns.append(Column("Best accuracy", cells, _best_rows(bests, cells, sound, max)))
    if _finite(losses):
        cells = [_number(loss) for loss in losses]
        columns.append(Column("Final test loss", cells, _best_rows(losses, cells, sound, min)))
    if target is not None:
        # A mean over only the seeds that got there flatters: it is shown, but it does not win.
        rounds = [each.rounds_to_target if each.reached == each.runs else math.nan for each in outcomes]
        cells = [_rounds_cell(outcome) for outcome in outcomes]
        best = _best_rows(rounds, cells, sound, min)
        columns.append(Column(f"Rounds to {_percent(target)}", cells, best))
    for heading, values, unit_of in (
        ("Traffic", [outcome.traffic for outcome in outcomes], _traffic_unit),
        ("Time", [outcome.seconds for outcome in outcomes], _time_unit),
    ):
        size, unit = unit_of(values)
        cells = [f"{_decimal(value / size)}{_NBSP}{unit}" for value in values]
        columns.append(Column(heading, cells, _best_rows(values, cells, sound, min)))
    return columns


def _rounds_cell(outcome: _Outcome) -> str:
    if not outcome.reached:
        return _MISSING
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


def _summary_table(outcomes: Sequence[_Outcome], target: float | None, caption: str, heading: str, css: str) -> str:
    columns = _columns(outcomes, target)
    headings = [heading, *(column.heading for column in columns)]
    head = "".join(f'<th scope="col" role="columnheader">{escape(text)}</th>' for text in headings)
    body = "".join(
        f'<tr role="row"><th scope="row" role="rowheader">{_name(outcome)}</th>'
        + "".join(_summary_cell(column, row) for column in columns)
        + "</tr>"
        for row, outcome in enumerate(outcomes)
    )
    # The roles restate what the style sheet takes away when it lays the rows out as cards.
    return (
        f'<table class="summary {css}" role="table"><caption>{escape(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{body}</tbody></table>'
    )


def _summary_cell(column: Column, row: int) -> str:
    text = escape(column.cells[row])
    if row in column.best:
        text = f'<strong>{text}<span class="unseen"> (best)</span></strong>'
    return f'<td role="cell" data-heading="{escape(column.heading)}">{text}</td>'


def _name(outcome: _Outcome) -> str:
    name = f"<span>{escape(outcome.label)}</span>"
    return f'{name} <span class="badge">{_diverged_share(outcome)}</span>' if outcome.diverged else name


def _diverged_share(outcome: _Outcome) -> str:
    return "diverged" if outcome.runs == 1 else f"{outcome.diverged} of {outcome.runs} diverged"


def _caption(outcomes: Sequence[_Outcome], aim: float | None) -> str:
    notes = []
    if any(outcome.runs > 1 for outcome in outcomes):
        notes.append("Means over seeds; ± is the standard deviation.")
    elif len(outcomes) > 1:
        notes.append("One seed each: the spread between seeds is unknown.")
    else:
        notes.append("One seed: the spread between seeds is unknown.")
    if len(outcomes) > 1:
        notes.append("Bold is the best of a column.")
    if aim is not None and any(0 < outcome.reached < outcome.runs for outcome in outcomes):
        notes.append("Rounds are averaged over the seeds that got there.")
    if any(outcome.diverged for outcome in outcomes):
        notes.append("A diverged run counts with its last finite values.")
        if len(outcomes) > 1:
            notes.append("A method with a diverged run is never the best.")
    return " ".join(notes)


def _every_run(records: Sequence[Record], target: float | None) -> str:
    """The seeds one by one, for whoever distrusts a mean."""
    if len(records) == len(_by_label(records)):
        return ""
    outcomes = [_outcome(f"{record.label}, seed{_NBSP}{record.seed}", [record], target) for record in records]
    table = _summary_table(outcomes, target, "Each seed on its own.", "Run", "runs")
    return _collapsible("Every run", table)


def _collapsible(heading: str, content: str) -> str:
    return f"<details><summary><h2>{escape(heading)}</h2></summary>{content}</details>"


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted keys with readable values."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def _settings(heading: str, records: Sequence[Record], of: Callable[[Record], Mapping[str, Any]]) -> str:
    """The keys in which the runs differ, a column per label, and then those they share."""
    groups = {label: [_flatten(of(run)) for run in runs] for label, runs in _by_label(records).items()}
    flats = [flat for group in groups.values() for flat in group]
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    differing = [key for key in keys if len({flat.get(key) for flat in flats}) > 1]
    common = [key for key in keys if key not in differing]
    tables = ""
    if differing:
        rows = [[key, *(_values_of(key, group) for group in groups.values())] for key in differing]
        tables += _settings_table("What differs between the runs", ["Key", *groups], rows)
    if common:
        caption = "What all runs share" if len(records) > 1 else "This run"
        tables += _settings_table(caption, ["Key", "Value"], [[key, flats[0][key]] for key in common])
    return _collapsible(heading, tables) if tables else ""


def _values_of(key: str, flats: Iterable[Mapping[str, str]]) -> str:
    return ", ".join(dict.fromkeys(flat.get(key, _MISSING) for flat in flats))


def _settings_table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        "".join((f'<tr><th scope="row">{escape(key)}</th>', *(f"<td>{escape(v)}</td>" for v in values), "</tr>"))
        for key, *values in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f'<table class="settings"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


# ---- the curves -----------------------------------------------------------------------------------


def _progress(record: Record) -> pd.DataFrame:
    """The history with what had been spent by the end of each round."""
    history = record.history
    spent = history.assign(traffic=_traffic(history).cumsum(), elapsed=history["seconds"].fillna(0).cumsum())
    return spent.replace([np.inf, -np.inf], np.nan)


def _line(run: pd.DataFrame, metric: str, scales: Mapping[str, float]) -> dict[str, list[float]]:
    """A curve's values, and what they are drawn against: round, traffic and time."""
    known = run.dropna(subset=[metric])
    return {
        "round": _short(known["round"]),
        "traffic": _short(known["traffic"] / scales["traffic"]),
        "elapsed": _short(known["elapsed"] / scales["elapsed"]),
        "y": _short(known[metric]),
    }


def _short(values: Iterable[float]) -> list[float]:
    """Five significant digits: more than a screen shows, and a third of the page's data."""
    return [float(f"{value:.5g}") for value in values]


def _mean_line(runs: Sequence[pd.DataFrame], metric: str, scales: Mapping[str, float]) -> dict[str, list[float]]:
    """The mean over seeds, round by round, and the lowest and highest seed where there are several."""
    if not runs:
        return {"round": [], "traffic": [], "elapsed": [], "y": []}
    known = pd.concat(runs)[["round", "traffic", "elapsed", metric]].dropna()
    by_round = known.groupby("round")
    line = _line(by_round.mean().reset_index(), metric, scales)
    if len(runs) > 1:
        line |= {"low": _short(by_round[metric].min()), "high": _short(by_round[metric].max())}
    return line


def _lost_line(
    record: Record, metric: str, scales: Mapping[str, float], ceiling: float
) -> dict[str, list[float] | float | str]:
    """The curve of a diverged run: where it goes through the roof, the roof is drawn."""
    run = _progress(record)
    lost = _divergence_round(record.history)
    return {
        **_line(run.assign(**{metric: run[metric].clip(upper=ceiling)}), metric, scales),
        "last": max(0, int((run.dropna(subset=[metric])["round"] <= lost).sum()) - 1),
        "text": escape(f"{record.label}, seed {record.seed}: diverged at round {lost}"),
    }


def _chart(metric: _Metric, groups: Sequence[Sequence[Record]], scales: Mapping[str, float]) -> dict[str, Any]:
    """The curves of one quantity; diverged runs are kept apart, for they would spoil every mean."""
    sound = [[run for run in group if _divergence_round(run.history) is None] for group in groups]
    means = [_mean_line([_progress(run) for run in group], metric.key, scales) for group in sound]
    highest = max((value for mean in means for value in mean.get("high", mean["y"])), default=math.inf)
    ceiling = highest + 2 * abs(highest)  # room to see a curve leave, without dwarfing the others
    lost = [
        {"method": method, **_lost_line(run, metric.key, scales, ceiling)}
        for method, group in enumerate(groups)
        for run in group
        if _divergence_round(run.history) is not None
    ]
    return {
        "id": metric.key,
        "title": metric.title,
        "percent": metric.percent,
        "means": means,
        "lost": [line for line in lost if line["y"]],
    }


def _needs_log_scale(chart: Mapping[str, Any]) -> bool:
    values = [value for line in [*chart["means"], *chart["lost"]] for value in line["y"]]
    return not chart["percent"] and min(values) > 0 and max(values) / min(values) > 20


def _charts(records: Sequence[Record], aim: float | None) -> dict[str, Any]:
    """All that the page's script needs to draw the curves, as plain JSON values."""
    groups = _by_label(records)
    totals = [_progress(record)[["traffic", "elapsed"]].iloc[-1] for record in records]
    traffic_size, traffic_unit = _traffic_unit(total["traffic"] for total in totals)
    time_size, time_unit = _time_unit(total["elapsed"] for total in totals)
    scales = {"traffic": traffic_size, "elapsed": time_size}
    axes = [{"key": "round", "name": "Rounds", "title": "Round", "unit": ""}]
    if any(total["traffic"] > 0 for total in totals):
        title = f"Traffic, down and up ({traffic_unit})"
        axes.append({"key": "traffic", "name": "Traffic", "title": title, "unit": traffic_unit})
    if any(total["elapsed"] > 0 for total in totals):
        axes.append({"key": "elapsed", "name": "Time", "title": f"Time ({time_unit})", "unit": time_unit})
    charts = [_chart(metric, list(groups.values()), scales) for metric in _METRICS]
    drawable = [chart for chart in charts if any(line["y"] for line in [*chart["means"], *chart["lost"]])]
    return {
        "methods": [escape(label) for label in groups],  # Plotly reads HTML in names
        "colours": _COLOURS,
        "axes": axes,
        "charts": [
            {
                **chart,
                "log": _needs_log_scale(chart),
                "level": aim if chart["id"] == "accuracy" else None,
            }
            for chart in drawable
        ],
    }


def _level(aim: float, baseline: str | None) -> str:
    """The legend of the dotted line at the target, named after the method that set it, if one did."""
    name = f"{baseline}’s final accuracy" if baseline is not None else "target"
    return f'<span class="level">{escape(f"{name}, {_percent(aim)}")}</span>'


def _figure(chart: Mapping[str, Any], outcomes: Sequence[_Outcome], baseline: str | None) -> str:
    written = _percent if chart["percent"] else _number
    ends = "; ".join(
        f"{outcome.label} ends at {written(mean['y'][-1])}" if mean["y"] else f"{outcome.label} has no curve"
        for outcome, mean in zip(outcomes, chart["means"], strict=True)
    )
    notes = '<span class="scale">log scale</span>' if chart["log"] else ""
    if chart["level"] is not None:
        notes += _level(chart["level"], baseline)
    return (
        f"<figure><figcaption><h3>{escape(chart['title'])}</h3>{notes}</figcaption>"
        f'<div class="chart" id="chart-{chart["id"]}" role="img" '
        f'aria-label="{escape(chart["title"])} as a line chart: {escape(ends)}."></div></figure>'
    )


def _curves_note(outcomes: Sequence[_Outcome]) -> str:
    notes = []
    if any(outcome.runs > 1 for outcome in outcomes):
        notes.append("Lines are means over seeds, bands reach from the lowest to the highest seed.")
    if any(outcome.diverged for outcome in outcomes):
        notes.append("Diverged runs are dotted lines that end in a cross, and no part of means or bands.")
    return f'<p class="note">{" ".join(notes)}</p>' if notes else ""


def _legend(outcomes: Sequence[_Outcome]) -> str:
    if len(outcomes) == 1:
        return ""
    chips = "".join(
        f'<button type="button" class="chip" aria-pressed="true" data-method="{method}" '
        f'style="--c:var(--c{method % _COLOURS});--dash:{_dash(method)}">{escape(outcome.label)}</button>'
        for method, outcome in enumerate(outcomes)
    )
    return f'<div class="legend" role="group" aria-label="Methods shown in the charts">{chips}</div>'


def _dash(method: int) -> str:
    """Beyond the palette the dashes tell methods of one colour apart."""
    return "dashed" if method // _COLOURS % 2 else "solid"


def _axis_switch(axes: Sequence[Mapping[str, str]]) -> str:
    choices = "".join(
        f'<label><input type="radio" name="axis" value="{axis["key"]}"{" checked" if place == 0 else ""}>'
        f"<span>{escape(axis['name'])}</span></label>"
        for place, axis in enumerate(axes)
    )
    return f'<fieldset class="axes"><legend class="unseen">Horizontal axis</legend>{choices}</fieldset>'


# ---- the page -------------------------------------------------------------------------------------


def render(records: Sequence[Record], title: str = "undrift", target: float | None = None) -> str:
    """The HTML text of the report; the first label is what the others are compared with."""
    from plotly.offline import get_plotlyjs

    outcomes, aim = _outcomes(records, target)
    if len(outcomes) == 1:
        aim = target  # that a method reaches its own end is no news
    baseline = outcomes[0].label if target is None else None
    data = _charts(records, aim)
    shape = "single" if len(outcomes) == 1 else "compared"
    parts = {
        "title": escape(title),
        "headline": escape(headline(records, target)),
        "scope": escape(_scope(records, outcomes)),
        "summary": _summary_table(outcomes, aim, _caption(outcomes, aim), "Method", shape),
        "legend": _legend(outcomes),
        "axes": _axis_switch(data["axes"]),
        "figures": "".join(_figure(chart, outcomes, baseline) for chart in data["charts"]),
        "note": _curves_note(outcomes),
        "runs": _every_run(records, aim),
        "config": _settings("Configuration", records, lambda record: record.config),
        "environment": _settings("Environment", records, lambda record: record.environment),
        "data": _script_json(data),
        "plotly": get_plotlyjs(),
    }
    template = resources.files("undrift").joinpath("report_template.html").read_text("utf-8")
    # One pass: a label that reads like a placeholder stays a label.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write(path: str | Path, records: Sequence[Record], title: str = "undrift", target: float | None = None) -> Path:
    """Write the report to `path`, all of it or nothing."""
    path = Path(path)
    page = render(records, title, target)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(page, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path
