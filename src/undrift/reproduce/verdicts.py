"""Whether what a paper claims holds here."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from undrift.reporting.record import Record
from undrift.reporting.wording import NBSP, count_text, list_text
from undrift.reproduce.experiment import Claim
from undrift.reproduce.measures import Measure, measure_named
from undrift.reproduce.results import Correct, Results, first_rounds, seen_together, shared_rounds
from undrift.statistics.predictions import Array
from undrift.statistics.samples import Answers, mcnemar
from undrift.statistics.seeds import holm, paired

LEVEL = 0.05
SAME = 0.01  # of accuracies and other shares: what is less than that from each other counts as equal
SAME_RELATIVE = 0.1  # of other figures, such as rounds: so much of the other algorithm's
_NAMED = 5  # algorithms, in a sentence


class Outcome(StrEnum):
    REPRODUCED = "reproduced"
    PARTLY = "partly reproduced"
    NOT = "not reproduced"
    UNDECIDED = "not decided"


class Verdict(NamedTuple):
    claim: Claim
    outcome: Outcome
    reason: str


class Pair(NamedTuple):
    """The algorithm that is said to be better, against one of the others, and by how much it is better."""

    case: str
    other: str
    lead: float  # infinite where the other failed in all seeds, minus infinite where it did itself
    low: float = np.nan  # 95 % interval of the lead over seeds; NaN where these are too few
    high: float = np.nan
    p: float = np.nan  # that there is no difference
    margin: float = 0.0  # a lead below that counts as none
    claimed: float = 0.0  # the lead that the paper says it has; 0 after fewer rounds than the paper's
    decided: bool = True  # by the rounds that both were run
    untested: str = ""  # why there is no p

    @property
    def failed(self) -> bool:
        return not np.isfinite(self.lead)


def verdicts(results: Results) -> list[Verdict]:
    return [_verdict(results, claim) for claim in results.experiment.claims]


def _verdict(results: Results, claim: Claim) -> Verdict:
    found, not_better = pairs(results, claim), claim.equal or claim.no_better
    decided = [pair for pair in found if pair.decided]
    judged = [pair for pair in decided if not (pair.failed and not_better)]
    if not judged:
        reason = "the rounds that were run do not decide it" if found else "none of its comparisons were run"
        return Verdict(claim, Outcome.UNDECIDED, "one of them failed in all seeds" if decided else reason)
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
        return Verdict(claim, Outcome.REPRODUCED, _reason(claim, judged, len(judged)))
    reason = _reason(claim, judged, len(some))
    if len(ahead) == len(judged) and _all_within(results, claim):
        return Verdict(claim, Outcome.REPRODUCED, f"{reason}; all figures are within the paper's spread")
    if some and 2 * len(ahead) >= len(judged):
        return Verdict(claim, Outcome.PARTLY, reason)
    if claim.mcnemar:  # what is claimed is significance
        refuted = any(np.isfinite(pair.p) for pair in judged)
    else:
        refuted = any(pair.lead == -np.inf or pair.high < pair.claimed for pair in judged)
    return Verdict(claim, Outcome.NOT if refuted else Outcome.UNDECIDED, reason)


def _significant(judged: Sequence[Pair], p: Sequence[float] | Array) -> list[Pair]:
    """Those in which it is ahead with p below the level, or the other failed in all seeds."""
    return [pair for pair, each in zip(judged, p, strict=True) if pair.lead > 0 and (pair.failed or each < LEVEL)]


def _reason(claim: Claim, judged: Sequence[Pair], significant: int) -> str:
    if len(judged) == 1 and not judged[0].failed and not claim.mcnemar:
        return _difference(claim, judged[0])
    one_case = len({pair.case for pair in judged}) == 1
    named = [(pair, pair.other if one_case else f"{pair.other} ({pair.case})") for pair in judged]
    ahead = sum(pair.lead > 0 for pair in judged)
    text = f"{claim.better} is ahead in {ahead} of {len(judged)} comparisons, in {significant} with p < {LEVEL}"
    behind = _worst_first([(pair, name) for pair, name in named if pair.lead < 0 and not pair.failed], claim)
    level = [name for pair, name in named if pair.lead == 0]
    failed = [name for pair, name in named if pair.lead == np.inf]
    texts = {"behind": behind, "level with": level, "failed in all seeds:": failed}
    found = [text, *(f"{what} {list_text(names)}" for what, names in texts.items() if names)]
    if any(pair.lead == -np.inf for pair in judged):
        found.append(f"{claim.better} failed in all seeds")
    untested = {pair.untested for pair in judged}
    if len(untested) == 1:  # for the same reason
        found += filter(None, untested)
    return "; ".join(found)


def _worst_first(behind: Sequence[tuple[Pair, str]], claim: Claim) -> list[str]:
    """Names with leads; of many the largest."""
    texts = [f"{name} by {_size(claim, -pair.lead)}" for pair, name in sorted(behind, key=lambda each: each[0].lead)]
    shown = texts if len(texts) <= _NAMED else texts[: _NAMED - 1]
    left = len(texts) - len(shown)
    return [*shown, *([count_text(left, "other")] if left else [])]


def _size(claim: Claim, lead: float) -> str:
    return _number(claim, lead) + _unit(claim)


def _number(claim: Claim, lead: float, sign: str = "") -> str:
    measure = measure_named(claim.measure)
    value = 100 * lead if measure.percent else lead
    digits = 1 if measure.percent or measure.at_least else measure.digits
    digits = 0 if abs(value) >= 100 else min(digits, 2)
    return f"{round(value, digits) + 0.0:{sign},.{digits}f}".replace(",", NBSP)  # without the sign of a zero


def _unit(claim: Claim) -> str:
    measure = measure_named(claim.measure)
    return f"{NBSP}points" if measure.percent else f"{NBSP}rounds" if measure.at_least else ""


def _not_better(claim: Claim, judged: Sequence[Pair]) -> Verdict:
    """Of a claim that two are equal, or that one is not better. That no difference is seen does not show either.

    *Reproduced*: intervals of all differences are within the margin. *Not*: a difference is significant and not within
    it. *Partly*: otherwise, if some are within it.
    """
    within = [pair.high < pair.margin and (claim.no_better or pair.low > -pair.margin) for pair in judged]
    corrected = holm([pair.p for pair in judged])
    against = [p < LEVEL and (claim.equal or pair.lead > 0) for pair, p in zip(judged, corrected, strict=True)]
    reason = "; ".join(_difference(claim, pair) for pair in judged)
    if all(within):
        return Verdict(claim, Outcome.REPRODUCED, reason)
    if any(refuted and not small for refuted, small in zip(against, within, strict=True)):
        return Verdict(claim, Outcome.NOT, reason)
    return Verdict(claim, Outcome.PARTLY if any(within) else Outcome.UNDECIDED, reason)


def _difference(claim: Claim, pair: Pair) -> str:
    """How much higher the figure is than that of the other, and between what it may be."""
    measure = measure_named(claim.measure)
    figures = [pair.lead, pair.low, pair.high]
    if not measure.higher_is_better:
        figures = [-pair.lead, -pair.high, -pair.low]
    other = f"{pair.other} ({pair.case})" if len(claim.cases) > 1 else pair.other
    if claim.than_case:
        other = f"{pair.other} in {claim.than_case}"
    mean, low, high = (_number(claim, figure, sign="+") for figure in figures)
    text = f"{claim.better}{f' in {pair.case}' * bool(claim.than_case)} against {other}: {mean}{_unit(claim)}"
    if pair.untested:
        return f"{text}; {pair.untested}"
    return f"{text}, 95{NBSP}% interval {low} to {high}"


def pairs(results: Results, claim: Claim) -> list[Pair]:
    """All comparisons of a claim that were run."""
    found = []
    for case in claim.cases:
        there = claim.than_case or case
        for other in claim.than:
            runs = (case, claim.better), (there, other)
            if not all(results.runs(*run) for run in runs):
                continue
            sound = results.sound(*runs[0]), results.sound(*runs[1])
            pair = _pair(case, other, *sound, measure_named(claim.measure))
            if claim.mcnemar and not pair.failed:
                pair = _by_answers(pair, *(results.correct.get(run, {}) for run in runs))
            if sound[0] and all(results.too_early(claim.measure, *run) for run in runs):
                pair = pair._replace(decided=False)  # one that failed in all seeds is not ahead, however early that was
            found.append(pair._replace(claimed=_claimed(results, claim, *runs)))
    return found


def _claimed(results: Results, claim: Claim, first: tuple[str, str], second: tuple[str, str]) -> float:
    """The lead that the paper prints, less its spread; where it prints none, what counts as one; of cut runs, any."""
    wanted = [results.experiment.rounds(case) for case, _ in (first, second)]
    run = [results.rounds_of(case).get(label, 0) for case, label in (first, second)]
    measure = measure_named(claim.measure)
    if not measure.at_least and any(few < many for few, many in zip(run, wanted, strict=True)):
        return 0.0
    printed = results.printed(claim.measure)
    mine, theirs = (printed.get(case, {}).get(label) for case, label in (first, second))
    if mine is None or theirs is None:
        return SAME if measure.percent else 0.0
    lead = mine.value - theirs.value if measure.higher_is_better else theirs.value - mine.value
    return max(lead - max(mine.spread or 0, theirs.spread or 0), 0) / (100 if measure.percent else 1)


def _pair(case: str, other: str, mine: Sequence[Record], theirs: Sequence[Record], measure: Measure) -> Pair:
    """Of runs that did not fail: an algorithm that has none is behind one that has a value.

    Where one has more seeds than the other, those that both have decide.
    """
    if not mine:
        return Pair(case, other, -np.inf, decided=bool(theirs))
    if not theirs:
        return Pair(case, other, np.inf, decided=any(np.isfinite(measure.of(run)) for run in mine))
    if measure.of_every_look:
        together = seen_together([*mine, *theirs])
        mine, theirs = together[: len(mine)], together[len(mine) :]
    own, others = (
        _until_target(mine, theirs, measure) if measure.at_least else _after_same_rounds(mine, theirs, measure)
    )
    if not own or not others:
        return Pair(case, other, 0.0, decided=False)
    seeds = [seed for seed in own if seed in others]
    sign = 1 if measure.higher_is_better else -1
    test = paired([sign * own[seed] for seed in seeds], [sign * others[seed] for seed in seeds])
    means = [float(np.mean([each[seed] for seed in seeds or each])) for each in (own, others)]
    margin = SAME if measure.percent else SAME_RELATIVE * abs(means[1])
    lead = test.difference if seeds else sign * (means[0] - means[1])
    return Pair(case, other, lead, *test.interval, test.t, margin, untested=test.reason if np.isnan(test.t) else "")


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

    Nothing where that leaves open in some seed who was first, as where none came there: the seeds in which one came
    there early would decide for all.
    """
    assert measure.at_least is not None
    own, others = {}, {}
    for a, b in ((a, b) for a in mine for b in theirs if a.seed == b.seed):
        reached = [measure.of(run) for run in (a, b)]
        missing = [measure.at_least(run) for run, value in zip((a, b), reached, strict=True) if np.isnan(value)]
        if len(missing) == 2 or (missing and np.nanmin(reached) >= missing[0]):
            return {}, {}
        own[a.seed], others[b.seed] = (missing[0] if np.isnan(value) else value for value in reached)
    return own, others


def _by_answers(pair: Pair, mine: Correct, theirs: Correct) -> Pair:
    """With McNemar's p of the answers of final models, which has to hold in every seed: seeds answer the same samples.

    1 where in one of them the other is ahead; NaN where no answers were kept.
    """
    tables = [Answers.of(mine[seed], theirs[seed]) for seed in mine.keys() & theirs.keys()]
    if not tables:
        return pair._replace(p=np.nan, untested="no answers were kept")
    against = any((table.only_first - table.only_second) * pair.lead < 0 for table in tables)
    return pair._replace(p=1.0 if against else max(mcnemar(table).exact for table in tables))


def _all_within(results: Results, claim: Claim) -> bool:
    """Of runs that have all rounds of the paper, none of which failed."""
    there = {(claim.than_case or case, label) for case in claim.cases for label in claim.than}
    wanted = there | {(case, claim.better) for case in claim.cases}
    rows = [row for row in results.table(claim.measure) if (row.case, row.label) in wanted]
    whole = all(results.rounds_of(row.case).get(row.label, 0) >= results.experiment.rounds(row.case) for row in rows)
    return len(rows) == len(wanted) and whole and all(row.within and not row.here.failed for row in rows)
