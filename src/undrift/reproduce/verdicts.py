"""Whether what a paper claims holds here."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from undrift.reporting.wording import count_text
from undrift.reproduce.experiment import Claim
from undrift.reproduce.pairs import Pair, pairs
from undrift.reproduce.reasons import difference, reason
from undrift.reproduce.results import Results
from undrift.statistics.predictions import Array
from undrift.statistics.samples import LEVEL
from undrift.statistics.seeds import holm


class Outcome(StrEnum):
    REPRODUCED = "reproduced"
    PARTLY = "partly reproduced"
    NOT = "not reproduced"
    UNDECIDED = "not decided"


class Verdict(NamedTuple):
    claim: Claim
    outcome: Outcome
    reason: str


def verdicts(results: Results) -> list[Verdict]:
    return [_verdict(results, claim) for claim in results.experiment.claims]


def _verdict(results: Results, claim: Claim) -> Verdict:
    found, not_better = pairs(results, claim), claim.equal or claim.no_better
    decided = [pair for pair in found if pair.decided]
    judged = [pair for pair in decided if not (pair.failed and not_better)]
    if not judged:
        undecided = "the rounds that were run do not decide it" if found else "none of its comparisons were run"
        return Verdict(claim, Outcome.UNDECIDED, "one of them failed in all seeds" if decided else undecided)
    verdict = _not_better(claim, judged) if not_better else _better(results, claim, judged)
    left = {"not decided by the rounds that were run": len(found) - len(decided)}
    left["with one that failed in all seeds"] = len(decided) - len(judged)
    left["not run"] = len(claim.cases) * len(claim.than) - len(found)
    rest = [f"{count_text(count, 'comparison')} {why}" for why, count in left.items() if count]
    outcome = Outcome.PARTLY if rest and verdict.outcome is Outcome.REPRODUCED else verdict.outcome
    return Verdict(claim, outcome, "; ".join([verdict.reason, *rest]))


def _better(results: Results, claim: Claim, judged: Sequence[Pair]) -> Verdict:
    """*Reproduced*: the same order with significance, or all figures within the paper's spread.

    All comparisons have to hold, so that p of each needs no correction for their number. *Partly*: ahead in at least
    half of the comparisons, in some with significance, corrected. *Not*: otherwise, if the lead that the paper has can
    be excluded in some.
    """
    ahead = [pair for pair in judged if pair.lead > 0]
    some = _significant(judged, holm([pair.p for pair in judged]))
    if len(_significant(judged, [pair.p for pair in judged])) == len(judged):
        return Verdict(claim, Outcome.REPRODUCED, reason(claim, judged, len(judged)))
    text = reason(claim, judged, len(some))
    if len(ahead) == len(judged) and _all_within(results, claim):
        return Verdict(claim, Outcome.REPRODUCED, f"{text}; all figures are within the paper's spread")
    if some and 2 * len(ahead) >= len(judged):
        return Verdict(claim, Outcome.PARTLY, text)
    if claim.mcnemar:  # what is claimed is significance
        refuted = any(np.isfinite(pair.p) for pair in judged)
    else:
        refuted = any(pair.lead == -np.inf or pair.high < pair.claimed for pair in judged)
    return Verdict(claim, Outcome.NOT if refuted else Outcome.UNDECIDED, text)


def _significant(judged: Sequence[Pair], p: Sequence[float] | Array) -> list[Pair]:
    """Those in which it is ahead with p below the level, or the other failed in all seeds."""
    return [pair for pair, each in zip(judged, p, strict=True) if pair.lead > 0 and (pair.failed or each < LEVEL)]


def _not_better(claim: Claim, judged: Sequence[Pair]) -> Verdict:
    """Of a claim that two are equal, or that one is not better. That no difference is seen does not show either.

    *Reproduced*: intervals of all differences are within the margin. *Not*: a difference is significant and not within
    it. *Partly*: otherwise, if some are within it.
    """
    within = [pair.high < pair.margin and (claim.no_better or pair.low > -pair.margin) for pair in judged]
    corrected = holm([pair.p for pair in judged])
    against = [p < LEVEL and (claim.equal or pair.lead > 0) for pair, p in zip(judged, corrected, strict=True)]
    text = "; ".join(difference(claim, pair) for pair in judged)
    if all(within):
        return Verdict(claim, Outcome.REPRODUCED, text)
    if any(refuted and not small for refuted, small in zip(against, within, strict=True)):
        return Verdict(claim, Outcome.NOT, text)
    return Verdict(claim, Outcome.PARTLY if any(within) else Outcome.UNDECIDED, text)


def _all_within(results: Results, claim: Claim) -> bool:
    """Of runs that have all rounds of the paper, none of which failed."""
    there = {(claim.than_case or case, label) for case in claim.cases for label in claim.than}
    wanted = there | {(case, claim.better) for case in claim.cases}
    rows = [row for row in results.table(claim.measure) if (row.case, row.label) in wanted]
    whole = all(results.rounds_of(row.case).get(row.label, 0) >= results.experiment.rounds(row.case) for row in rows)
    return len(rows) == len(wanted) and whole and all(row.within and not row.here.failed for row in rows)
