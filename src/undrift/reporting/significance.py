"""Which of the runs of a task are clearly better than which, and how the methods rank over several tasks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from undrift.core.extras import MissingExtraError
from undrift.reporting import record as columns
from undrift.reporting.figures import apart, by_label, values_of
from undrift.reporting.record import Record
from undrift.reporting.wording import NBSP, count_text, list_text
from undrift.statistics.predictions import Array, Predictions
from undrift.statistics.samples import LEVEL, Answers, bootstrap_difference, independence, mcnemar
from undrift.statistics.seeds import FEWEST, holm, paired
from undrift.statistics.tasks import interquartile_mean, probability_of_improvement, ranking

_NAN = math.nan
_NEVER, _WHERE_IT_DECIDES, _ALWAYS = "never", "where it decides", "always"  # when runs are tested on test samples


@dataclass(frozen=True)
class Pair:
    """Two labels of a task and every test of their difference; `docs/statistics.md` says what each is about.

    All p are two-sided, those with holm in their name corrected for all pairs of the task.
    """

    label: str
    other: str
    seeds: int  # that both have, neither of the two runs failed
    difference: float  # of final values, label minus other, mean over these seeds
    t_p: float = _NAN
    t_p_holm: float = _NAN
    wilcoxon_p: float = _NAN
    wilcoxon_p_holm: float = _NAN
    cohens_d: float = _NAN
    rank_biserial: float = _NAN
    samples: int = 0  # test samples that both were tested on; tests of samples are about accuracy
    low: float = _NAN  # bootstrap interval of the difference over test samples
    high: float = _NAN
    mcnemar_p: float = _NAN  # exact; of several seeds the largest
    mcnemar_p_holm: float = _NAN
    mcnemar_corrected_p: float = _NAN
    independence_p: float = _NAN
    decided_by: Literal["", "seeds", "test samples"] = ""
    p: float = _NAN  # of the test that decides, corrected for all pairs
    better: str = ""  # the label that is clearly better; empty if neither is
    reason: str = ""

    @property
    def labels(self) -> tuple[str, str]:
        return self.label, self.other


def pairs_of(
    records: Sequence[Record], column: str | None = None, level: float = LEVEL, *, everything: bool = False
) -> list[Pair]:
    """Every pair of labels of one task, in their order, tested by the last value of a column of the history.

    By default the accuracy, where there is one, else the loss. Tests that do not decide are made where `everything` is
    asked for.
    """
    name = column or column_of(records)
    runs = {label: _runs(each, name) for label, each in by_label(apart(records)[0]).items()}
    on_samples = _NEVER if name != "accuracy" else _ALWAYS if everything else _WHERE_IT_DECIDES
    pairs = [_pair(runs, *labels, on_samples) for labels in itertools.combinations(runs, 2)]
    direction = {"higher": 1, "lower": -1}.get(columns.column(name).better or "", 0)
    return _decided(pairs, level, direction)


def column_of(records: Sequence[Record]) -> str:
    """What methods are compared by: the accuracy, where there is one."""
    known = any(math.isfinite(_final(record, "accuracy")) for record in records)
    return "accuracy" if known else "loss"


def _final(record: Record, column: str) -> float:
    known = [value for value in values_of(record.history, column) if math.isfinite(value)]
    return float(known[-1]) if known else math.nan


class _Run(NamedTuple):
    """What tests need of a run that did not fail."""

    final: float
    predictions: Predictions | None


def _runs(records: Sequence[Record], column: str) -> dict[int, _Run] | None:
    """By seed; None if all failed."""
    sound = [record for record in records if not record.failed]
    finals = {record.seed: _Run(_final(record, column), record.predictions) for record in sound}
    return {seed: run for seed, run in finals.items() if math.isfinite(run.final)} if sound else None


def _pair(runs: Mapping[str, dict[int, _Run] | None], label: str, other: str, on_samples: str) -> Pair:
    ours, theirs = runs[label] or {}, runs[other] or {}
    common = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    found = paired([a.final for a, _ in common], [b.final for _, b in common])
    pair = Pair(label, other, found.seeds, found.difference, reason=found.reason)
    if not common:
        failed = [name for name in (label, other) if runs[name] is None]
        return replace(pair, reason=f"every run of {list_text(failed)} failed") if failed else pair
    pair = replace(
        pair,
        t_p=found.t,
        wilcoxon_p=found.wilcoxon,
        cohens_d=found.cohens_d,
        rank_biserial=found.rank_biserial,
    )
    if found.seeds < FEWEST and not pair.reason:
        pair = _because(pair, f"{count_text(found.seeds, 'seed')}: too few to know the spread over seeds")
    decided = _deciding(pair)[0] == "seeds"
    if on_samples == _NEVER or (on_samples == _WHERE_IT_DECIDES and decided):
        return pair
    return _on_samples(pair, common, on_samples == _ALWAYS)


def _on_samples(pair: Pair, common: Sequence[tuple[_Run, _Run]], everything: bool) -> Pair:
    """With the tests of runs on the same test samples."""
    kept = [(a.predictions, b.predictions) for a, b in common]
    known = [(a, b) for a, b in kept if a is not None and b is not None and np.array_equal(a.targets, b.targets)]
    if len(known) < len(kept) or not len(known[0][0]):
        missing = any(a is None or b is None for a, b in kept)
        return _because(pair, "no predictions were kept" if missing else "the test samples differ")
    correct = [(a.correct, b.correct) for a, b in known]
    tables = [Answers.of(a, b) for a, b in correct]
    tests = [mcnemar(table) for table in tables]
    leads = {np.sign(table.only_first - table.only_second) for table in tables} - {0}
    alike = all(np.array_equal(a.targets, known[0][0].targets) for a, _ in known)
    interval = bootstrap_difference(_per_sample(correct, alike))
    return replace(
        pair,
        samples=len(correct[0][0]),
        low=interval.low,
        high=interval.high,
        # Seeds that contradict each other show no difference, however clear each is.
        mcnemar_p=max(test.exact for test in tests) if len(leads) < 2 else 1.0,
        mcnemar_corrected_p=max(test.corrected for test in tests) if len(leads) < 2 else 1.0,
        independence_p=max(filter(math.isfinite, map(independence, tables if everything else ())), default=math.nan),
    )


def _per_sample(correct: Sequence[tuple[Array, Array]], alike: bool) -> Array:
    """Differences per test sample: the mean over seeds, or those of all seeds where each has samples of its own."""
    differences = [a.astype(np.float64) - b for a, b in correct]
    joined: Array = np.stack(differences).mean(0).round(12) if alike else np.concatenate(differences)
    return joined


def _because(pair: Pair, reason: str) -> Pair:
    return replace(pair, reason=f"{pair.reason}; {reason}" if pair.reason else reason)


def _decided(pairs: Sequence[Pair], level: float, direction: int) -> list[Pair]:
    """With corrections for their number, and what follows; `direction` is 1 where more of the column is better."""
    deciding = [_deciding(pair) for pair in pairs]
    corrected = holm([p for _, p in deciding])
    each = {name: holm([getattr(pair, name) for pair in pairs]) for name in ("t_p", "wilcoxon_p", "mcnemar_p")}
    found = []
    for number, (pair, (decided_by, _)) in enumerate(zip(pairs, deciding, strict=True)):
        p = float(corrected[number])
        clear = p < level and (decided_by == "seeds" or pair.low > 0 or pair.high < 0)
        winner = pair.label if pair.difference * direction > 0 else pair.other
        decided = replace(
            pair,
            t_p_holm=float(each["t_p"][number]),
            wilcoxon_p_holm=float(each["wilcoxon_p"][number]),
            mcnemar_p_holm=float(each["mcnemar_p"][number]),
            decided_by=decided_by,
            p=p,
            better=winner if clear and direction else "",
        )
        found.append(replace(decided, reason="; ".join(filter(None, (how_decided(decided), pair.reason)))))
    return found


def _deciding(pair: Pair) -> tuple[Literal["", "seeds", "test samples"], float]:
    """The test that a verdict rests on: over seeds where there are enough, else on the test samples."""
    if pair.seeds >= FEWEST and math.isfinite(pair.t_p):
        return "seeds", pair.t_p
    return ("test samples", pair.mcnemar_p) if math.isfinite(pair.mcnemar_p) else ("", math.nan)


def how_decided(pair: Pair) -> str:
    """The test that a verdict rests on, in words; empty where there is none."""
    if pair.decided_by == "seeds":
        return f"paired t test over {count_text(pair.seeds, 'seed')}"
    if not pair.decided_by:
        return ""
    several = f" in each of {count_text(pair.seeds, 'seed')}" if pair.seeds > 1 else ""
    return f"McNemar’s exact test on {pair.samples:,}{NBSP}test samples{several}"


def frame(pairs: Sequence[Pair]) -> pd.DataFrame:
    """A row per pair."""
    return pd.DataFrame([asdict(pair) for pair in pairs], columns=[field.name for field in fields(Pair)])


def p_text(p: float, relation: str = "=") -> str:
    """Such as "p = 0.021"; `relation` is ≤ or ≥ where it stands for several."""
    if not math.isfinite(p):
        return "not tested"
    if p < 0.001:
        return f"p{NBSP}≥{NBSP}{p:.1g}" if relation == "≥" else f"p{NBSP}<{NBSP}0.001"
    return f"p{NBSP}{relation}{NBSP}{p:.2g}"


def summary_line(pairs: Sequence[Pair]) -> str:
    """One line on all pairs of a task: which are clearly better; empty where there is no pair."""
    if not pairs:
        return ""
    tested = [pair for pair in pairs if pair.decided_by]
    if not tested:
        return f"no test of {count_text(len(pairs), 'pair')}: {pairs[0].reason}"
    clear = [pair for pair in tested if pair.better]
    if not clear:
        smallest = min(tested, key=lambda pair: pair.p)
        return f"no clear difference ({p_text(smallest.p, '≥' if len(tested) > 1 else '=')}, {smallest.reason})"
    wins: dict[str, list[Pair]] = {}
    for pair in clear:
        wins.setdefault(pair.better, []).append(pair)
    said = [f"{winner} clearly better than {list_text(_beaten(won))}" for winner, won in wins.items()]
    largest = max(clear, key=lambda pair: pair.p)
    rest = len(pairs) - len(clear)
    unclear = f"; {count_text(rest, 'other pair')} unclear" if rest else ""
    return f"{'; '.join(said)}{unclear} ({p_text(largest.p, '≤' if len(clear) > 1 else '=')}, {largest.reason})"


def line_of(records: Sequence[Record]) -> str:
    """`summary_line` of the runs of a task, or why there are no tests."""
    try:
        return summary_line(pairs_of(records))
    except MissingExtraError as missing:
        return f"not tested, as {missing}"


def _beaten(won: Sequence[Pair]) -> list[str]:
    losers = [pair.other if pair.better == pair.label else pair.label for pair in won]
    return losers if len(losers) <= 3 else [count_text(len(losers), "other")]


# Several tasks


@dataclass(frozen=True)
class Ranks:
    """Methods over several tasks: what `Comparison.ranks` shows, and what a diagram is drawn from."""

    table: pd.DataFrame  # a row per label
    nemenyi: pd.DataFrame  # p of every pair
    tasks: int
    friedman_p: float
    critical_difference: float


def ranks_of(tasks: Sequence[Sequence[Record]], level: float = LEVEL) -> Ranks:
    """Ranks by final accuracy of the labels that all tasks have; a run that failed counts as an accuracy of 0."""
    groups = [by_label(apart(task)[0]) for task in tasks]
    labels = [label for label in groups[0] if all(label in group for group in groups)] if groups else []
    if len(groups) < 2 or len(labels) < 2:
        raise ValueError(
            f"ranks need at least 2 tasks that have 2 labels in common, got {count_text(len(groups), 'task')} with "
            f"{count_text(len(labels), 'label')} in common".replace(NBSP, " ")
        )
    scores = {label: [_accuracies(group[label]) for group in groups] for label in labels}
    means = np.array([[runs.mean() for runs in scores[label]] for label in labels]).T  # [tasks, labels]
    found = ranking(means, level)
    rows = []
    for number, label in enumerate(labels):
        middle = interquartile_mean(scores[label], level=level)
        improves = probability_of_improvement(scores[label], scores[labels[0]], level=level)
        rows.append(
            {
                "label": label,
                "average_rank": float(found.average[number]),
                "interquartile_mean": middle.value,
                "interquartile_mean_low": middle.low,
                "interquartile_mean_high": middle.high,
                "improvement": improves.value if number else math.nan,
                "improvement_low": improves.low if number else math.nan,
                "improvement_high": improves.high if number else math.nan,
            }
        )
    table = pd.DataFrame(rows)
    nemenyi = pd.DataFrame(found.nemenyi, index=labels, columns=labels)
    return Ranks(table, nemenyi, len(groups), found.friedman, found.critical_difference)


def _accuracies(runs: Sequence[Record]) -> Array:
    values = [_final(run, "accuracy") for run in runs]
    return np.array([0.0 if run.failed or math.isnan(v) else v for run, v in zip(runs, values, strict=True)])
