"""What a verdict rests on, in words: by how much an algorithm is ahead of which others, or behind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from undrift.reporting.wording import NBSP, count_text, list_text
from undrift.reproduce.experiment import Claim
from undrift.reproduce.measures import measure_named
from undrift.reproduce.pairs import Pair
from undrift.statistics.samples import LEVEL

_NAMED = 5  # algorithms, in a sentence


def reason(claim: Claim, judged: Sequence[Pair], significant: int) -> str:
    if len(judged) == 1 and not judged[0].failed and not claim.mcnemar:
        return difference(claim, judged[0])
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


def difference(claim: Claim, pair: Pair) -> str:
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
