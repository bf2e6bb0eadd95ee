"""Whether what a paper claims holds here."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from undrift.reporting.wording import count_text, list_text
from undrift.reproduce.experiment import Claim
from undrift.reproduce.measures import measure_named
from undrift.reproduce.results import Results, Seeds
from undrift.statistics.predictions import Array
from undrift.statistics.seeds import holm, paired

LEVEL = 0.05


class Outcome(StrEnum):
    REPRODUCED = "reproduced"
    PARTLY = "partly reproduced"
    NOT = "not reproduced"
    UNTESTED = "not tested"


class Verdict(NamedTuple):
    claim: Claim
    outcome: Outcome
    reason: str


class Duel(NamedTuple):
    """The algorithm that is said to be better, against one of the others."""

    case: str
    other: str
    ahead: bool
    p: float  # NaN where seeds are too few, or one of them failed throughout


def verdicts(results: Results) -> list[Verdict]:
    return [_verdict(results, claim) for claim in results.experiment.claims]


def _verdict(results: Results, claim: Claim) -> Verdict:
    duels = _duels(results, claim)
    if not duels:
        return Verdict(claim, Outcome.UNTESTED, "none of its runs are there")
    corrected = holm([duel.p for duel in duels])
    left = len(claim.cases) * len(claim.than) - len(duels)
    judged = _equal(claim, duels, corrected) if claim.equal else _better(results, claim, duels, corrected)
    if not left or judged.outcome in (Outcome.NOT, Outcome.UNTESTED):
        return judged
    return Verdict(claim, Outcome.PARTLY, f"{judged.reason}; {count_text(left, 'other')} not run")


def _better(results: Results, claim: Claim, duels: Sequence[Duel], corrected: Array) -> Verdict:
    """*Reproduced*: the same order with significance, or all figures within the paper's spread.

    *Partly*: the same order without, or only against some. *Not*: against none.
    """
    ahead = [duel for duel in duels if duel.ahead]
    sure = [duel for duel, p in zip(duels, corrected, strict=True) if duel.ahead and p < LEVEL]
    reason = f"{claim.better} is ahead in {len(ahead)} of {len(duels)} comparisons, in {len(sure)} with p < {LEVEL}"
    if behind := [duel for duel in duels if not duel.ahead]:
        reason += f"; behind {list_text([_named(duel, claim) for duel in behind])}"
    if len(sure) == len(duels):
        return Verdict(claim, Outcome.REPRODUCED, reason)
    if len(ahead) == len(duels) and _all_within(results, claim):
        return Verdict(claim, Outcome.REPRODUCED, f"{reason}; all figures are within the paper's spread")
    return Verdict(claim, Outcome.PARTLY if ahead else Outcome.NOT, reason)


def _equal(claim: Claim, duels: Sequence[Duel], corrected: Array) -> Verdict:
    """*Reproduced*: no difference is significant. *Not*: all are."""
    tested = np.isfinite(corrected)
    if not tested.all():
        return Verdict(claim, Outcome.UNTESTED, "a difference is tested with two seeds or more that did not fail")
    different = int((corrected < LEVEL).sum())
    reason = f"{different} of {count_text(len(duels), 'difference')} have p < {LEVEL}"
    if not different:
        return Verdict(claim, Outcome.REPRODUCED, reason)
    return Verdict(claim, Outcome.NOT if different == len(duels) else Outcome.PARTLY, reason)


def _duels(results: Results, claim: Claim) -> list[Duel]:
    found = []
    for case in claim.cases:
        mine = results.values(case, claim.better, claim.measure)
        for other in claim.than:
            theirs = results.values(claim.than_case or case, other, claim.measure)
            if mine.runs and theirs.runs:
                found.append(_duel(case, other, mine, theirs, claim))
    return found


def _duel(case: str, other: str, mine: Seeds, theirs: Seeds, claim: Claim) -> Duel:
    """An algorithm of which no run has a value is behind one that has."""
    if not mine.values or not theirs.values:
        return Duel(case, other, bool(mine.values), np.nan)
    sign = 1 if measure_named(claim.measure).higher_is_better else -1
    seeds = [seed for seed in mine.values if seed in theirs.values]
    test = paired([sign * mine.values[seed] for seed in seeds], [sign * theirs.values[seed] for seed in seeds])
    return Duel(case, other, sign * (mine.mean - theirs.mean) > 0, test.t)


def _named(duel: Duel, claim: Claim) -> str:
    return duel.other if len(claim.cases) < 2 else f"{duel.other} ({duel.case})"


def _all_within(results: Results, claim: Claim) -> bool:
    wanted = {claim.better, *claim.than}
    rows = [row for row in results.table(claim.measure) if row.case in claim.cases and row.label in wanted]
    return bool(rows) and all(row.within for row in rows)


def overall(found: Sequence[Verdict]) -> Outcome:
    """Of an experiment: what all its claims have in common."""
    outcomes = {verdict.outcome for verdict in found} - {Outcome.UNTESTED}
    if len(outcomes) == 1:
        return outcomes.pop()
    return Outcome.PARTLY if outcomes else Outcome.UNTESTED
