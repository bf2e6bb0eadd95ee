"""Whether what a paper claims holds here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from undrift.reporting.record import Record
from undrift.reporting.wording import NBSP, count_text, list_text
from undrift.reproduce.experiment import Claim
from undrift.reproduce.measures import Measure, measure_named
from undrift.reproduce.results import Correct, Results, first_rounds, shared_rounds
from undrift.statistics.predictions import Array
from undrift.statistics.samples import Answers, mcnemar
from undrift.statistics.seeds import holm, paired

LEVEL = 0.05
SAME = 0.01  # of accuracies and other shares: what is less than that from each other counts as equal
SAME_RELATIVE = 0.1  # of other figures, such as rounds: so much of the other algorithm's


class Outcome(StrEnum):
    REPRODUCED = "reproduced"
    PARTLY = "partly reproduced"
    NOT = "not reproduced"
    UNTESTED = "not tested"


class Verdict(NamedTuple):
    claim: Claim
    outcome: Outcome
    reason: str


class Lead(NamedTuple):
    """By how much an algorithm is better than another; negative where it is worse."""

    mean: float = np.nan
    low: float = np.nan  # 95 % interval over seeds
    high: float = np.nan
    margin: float = np.nan  # less than that counts as equal


class Pair(NamedTuple):
    """The algorithm that is said to be better, against one of the others."""

    case: str
    other: str
    ahead: bool
    p: float  # NaN where seeds are too few, or one of them failed throughout
    decided: bool = True  # by the rounds that both were run
    lead: Lead = Lead()


def verdicts(results: Results) -> list[Verdict]:
    return [_verdict(results, claim) for claim in results.experiment.claims]


def _verdict(results: Results, claim: Claim) -> Verdict:
    found = _pairs(results, claim)
    pairs, undecided = [pair for pair in found if pair.decided], [pair for pair in found if not pair.decided]
    if not pairs:
        reason = "the rounds that were run do not decide it" if undecided else "none of its comparisons were run"
        return Verdict(claim, Outcome.UNTESTED, reason)
    corrected = holm([pair.p for pair in pairs])
    not_better = claim.equal or claim.no_better
    judged = _not_better(claim, pairs, corrected) if not_better else _better(results, claim, pairs, corrected)
    left = {"not decided by the rounds that were run": len(undecided)}
    left["not run"] = len(claim.cases) * len(claim.than) - len(found)
    rest = [f"{count_text(count, 'comparison')} {why}" for why, count in left.items() if count]
    if not rest or judged.outcome in (Outcome.NOT, Outcome.UNTESTED):
        return judged
    return Verdict(claim, Outcome.PARTLY, "; ".join([judged.reason, *rest]))


def _better(results: Results, claim: Claim, pairs: Sequence[Pair], corrected: Array) -> Verdict:
    """*Reproduced*: the same order with significance, or all figures within the paper's spread.

    *Partly*: the same order without significance, or ahead in at least half of the comparisons, in some with it. *Not*:
    otherwise; ahead of some by chance is what an algorithm that makes no difference would be, too.
    """
    ahead = [pair for pair in pairs if pair.ahead]
    sure = [pair for pair, p in zip(pairs, corrected, strict=True) if pair.ahead and p < LEVEL]
    reason = _one(claim, pairs[0], corrected[0]) if len(pairs) == 1 else _several(claim, pairs, len(sure))
    if len(sure) == len(pairs):
        return Verdict(claim, Outcome.REPRODUCED, reason)
    if len(ahead) == len(pairs) and _all_within(results, claim):
        return Verdict(claim, Outcome.REPRODUCED, f"{reason}; all figures are within the paper's spread")
    mostly = len(ahead) == len(pairs) or (bool(sure) and 2 * len(ahead) >= len(pairs))
    return Verdict(claim, Outcome.PARTLY if mostly else Outcome.NOT, reason)


def _one(claim: Claim, pair: Pair, p: float) -> str:
    known = f"with p < {LEVEL}" if p < LEVEL else f"not with p < {LEVEL}"
    if claim.than_case:  # on other data: neither is better than the other
        size = "higher" if pair.ahead == measure_named(claim.measure).higher_is_better else "lower"
        return f"{claim.better} has a {size} figure in {pair.case} than {pair.other} in {claim.than_case}, {known}"
    return f"{claim.better} is {'ahead of' if pair.ahead else 'behind'} {pair.other}, {known}"


def _several(claim: Claim, pairs: Sequence[Pair], sure: int) -> str:
    one_case = len({pair.case for pair in pairs}) == 1
    behind = [pair.other if one_case else f"{pair.other} ({pair.case})" for pair in pairs if not pair.ahead]
    reason = (
        f"{claim.better} is ahead in {len(pairs) - len(behind)} of {len(pairs)} comparisons, in {sure} with p < {LEVEL}"
    )
    return f"{reason}; behind {list_text(behind)}" if behind else reason


def _not_better(claim: Claim, pairs: Sequence[Pair], corrected: Array) -> Verdict:
    """Of a claim that two are equal, or that one is not better. That no difference is seen does not show either.

    *Reproduced*: intervals of all differences are within the margin. *Not*: all differences are significant, and none
    is within it. *Partly*: otherwise.
    """
    if not all(np.isfinite(pair.lead.low) for pair in pairs):
        return Verdict(claim, Outcome.UNTESTED, "a difference is tested with two seeds or more that did not fail")
    within = [_within_margin(claim, pair.lead) for pair in pairs]
    against = [p < LEVEL and (claim.equal or pair.ahead) for pair, p in zip(pairs, corrected, strict=True)]
    reason = "; ".join(_difference(claim, pair) for pair in pairs)
    if all(within):
        return Verdict(claim, Outcome.REPRODUCED, reason)
    refuted = all(against) and not any(within)
    return Verdict(claim, Outcome.NOT if refuted else Outcome.PARTLY, reason)


def _within_margin(claim: Claim, lead: Lead) -> bool:
    return lead.high < lead.margin and (claim.no_better or lead.low > -lead.margin)


def _difference(claim: Claim, pair: Pair) -> str:
    """How much higher the figure is than that of the other, and between what it may be."""
    measure = measure_named(claim.measure)
    figures = [pair.lead.mean, pair.lead.low, pair.lead.high]
    if not measure.higher_is_better:
        figures = [-pair.lead.mean, -pair.lead.high, -pair.lead.low]
    scale, unit = (100, f"{NBSP}points") if measure.percent else (1, "")
    mean, low, high = (f"{round(scale * figure, 1) + 0.0:+.1f}" for figure in figures)
    other = f"{pair.other} ({pair.case})" if len(claim.cases) > 1 else pair.other
    return f"{claim.better} against {other}: {mean}{unit}, 95{NBSP}% interval {low} to {high}"


def _pairs(results: Results, claim: Claim) -> list[Pair]:
    found = []
    for case in claim.cases:
        there = claim.than_case or case
        for other in claim.than:
            if not results.runs(case, claim.better) or not results.runs(there, other):
                continue
            sound = results.sound(case, claim.better), results.sound(there, other)
            pair = _pair(case, other, *sound, measure_named(claim.measure))
            if claim.mcnemar:
                pair = pair._replace(p=_mcnemar(results.correct, (case, claim.better), (there, other)))
            early = [results.too_early(claim.measure, *run) for run in ((case, claim.better), (there, other))]
            if sound[0] and all(early):  # one that failed in all seeds is not ahead, however early that was
                pair = pair._replace(decided=False)
            found.append(pair)
    return found


def _pair(case: str, other: str, mine: Sequence[Record], theirs: Sequence[Record], measure: Measure) -> Pair:
    """Of runs that did not fail: an algorithm that has none is behind one that has a value.

    Where one has more seeds than the other, those that both have decide.
    """
    if not mine or not theirs:
        ahead = any(np.isfinite(measure.of(run)) for run in mine)
        return Pair(case, other, ahead, np.nan, decided=ahead or not mine)
    own, others = (
        _until_target(mine, theirs, measure) if measure.at_least else _after_same_rounds(mine, theirs, measure)
    )
    if not own or not others:
        return Pair(case, other, False, np.nan, decided=False)
    seeds = [seed for seed in own if seed in others]
    sign = 1 if measure.higher_is_better else -1
    test = paired([sign * own[seed] for seed in seeds], [sign * others[seed] for seed in seeds])
    figures = [float(np.mean([each[seed] for seed in seeds or each])) for each in (own, others)]
    margin = SAME if measure.percent else SAME_RELATIVE * abs(figures[1])
    lead = Lead(sign * (figures[0] - figures[1]), *test.interval, margin)
    return Pair(case, other, lead.mean > 0, test.t, lead=lead)


Values = dict[int, float]  # by seed


def _after_same_rounds(mine: Sequence[Record], theirs: Sequence[Record], measure: Measure) -> tuple[Values, Values]:
    """Of what is measured of final models only, nothing where one has more rounds than the other."""
    lengths = [shared_rounds(mine), shared_rounds(theirs)]
    if lengths[0] != lengths[1] and measure.needs_predictions:
        return {}, {}
    cut = [{run.seed: measure.of(first_rounds(run, min(lengths))) for run in runs} for runs in (mine, theirs)]
    own, others = ({seed: value for seed, value in each.items() if np.isfinite(value)} for each in cut)
    return own, others


def _until_target(mine: Sequence[Record], theirs: Sequence[Record], measure: Measure) -> tuple[Values, Values]:
    """Rounds that were needed; a run that never came there counts with one more than it had, the least it would need.

    Of seeds in which that decides who was first: not where none came there, or one after the other had been ended.
    """
    assert measure.at_least is not None
    own, others = {}, {}
    for a, b in ((a, b) for a in mine for b in theirs if a.seed == b.seed):
        reached = [measure.of(run) for run in (a, b)]
        missing = [measure.at_least(run) for run, value in zip((a, b), reached, strict=True) if np.isnan(value)]
        if not missing or (len(missing) == 1 and np.nanmin(reached) < missing[0]):
            own[a.seed], others[b.seed] = (missing[0] if np.isnan(value) else value for value in reached)
    return own, others


def _mcnemar(correct: Mapping[tuple[str, str], Correct], first: tuple[str, str], second: tuple[str, str]) -> float:
    """Of the answers in all seeds that both have; NaN where none were kept."""
    mine, theirs = correct.get(first, {}), correct.get(second, {})
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        return np.nan
    return mcnemar(Answers.of(*(np.concatenate([each[seed] for seed in seeds]) for each in (mine, theirs)))).exact


def _all_within(results: Results, claim: Claim) -> bool:
    """Of runs that have all rounds of the paper."""
    wanted = {claim.better, *claim.than}
    rows = [row for row in results.table(claim.measure) if row.case in claim.cases and row.label in wanted]
    whole = all(
        results.rounds_of(row.case).get(row.label, 0) >= results.experiment.settings_of(row.case)["run.rounds"]
        for row in rows
    )
    return bool(rows) and whole and all(row.within for row in rows)
