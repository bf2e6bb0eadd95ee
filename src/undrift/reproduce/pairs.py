"""An algorithm against another, over the seeds that both have: what claims are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from undrift.reporting.record import Record
from undrift.reproduce.experiment import Claim
from undrift.reproduce.measures import Measure, measure_named
from undrift.reproduce.results import Correct, Results, first_rounds, seen_together, shared_rounds
from undrift.statistics.samples import Answers, mcnemar
from undrift.statistics.seeds import paired

_SAME = 0.01  # of accuracies and other shares: what is less than that from each other counts as equal
_SAME_RELATIVE = 0.1  # of other figures, such as rounds: so much of the other algorithm's


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
        return _SAME if measure.percent else 0.0
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
    margin = _SAME if measure.percent else _SAME_RELATIVE * abs(means[1])
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
