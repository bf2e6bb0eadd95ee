"""What came out of the runs, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from undrift.core.extras import MissingExtraError
from undrift.reporting.figures import Outcome, apart, divergence_round, outcomes_of
from undrift.reporting.record import Record
from undrift.reporting.significance import Pair, how_decided, p_text, pairs_of
from undrift.reporting.targets import Targets
from undrift.reporting.wording import NBSP, count_text, list_text, number_text, percent_text, range_text

_NAMED = 3  # methods that a sentence names
_UNKNOWN_SPREAD = "; the spread over seeds is unknown"


def headline(records: Sequence[Record], targets: Targets = None) -> str:
    """The result in one to three sentences; the first label is what the others are compared with.

    Of several targets, the first is spoken of; of references, nothing is said.
    """
    outcomes, found = outcomes_of(records, targets)
    records, _ = apart(records)
    outcomes = [outcome for outcome in outcomes if not outcome.reference]
    target = found[0].accuracy if found and found[0].given and math.isfinite(found[0].accuracy) else None
    if all(outcome.all_diverged for outcome in outcomes):
        return _all_diverged(outcomes, records)
    finished = [outcome for outcome in outcomes if not outcome.all_diverged]
    finished = [outcome for outcome in finished if not outcome.failed] or finished
    evaluated = [outcome for outcome in finished if math.isfinite(outcome.accuracy)]
    by_accuracy = bool(evaluated)
    if not by_accuracy:
        evaluated = [outcome for outcome in finished if math.isfinite(outcome.loss)]
    if not evaluated:
        sentences = ["No round was evaluated on test data; only the training loss is known."]
    elif len(outcomes) == 1:
        sentences = [_single(outcomes[0], by_accuracy, target)]
    elif len(evaluated) == 1 or evaluated[0] is not outcomes[0]:
        sentences = [_without_baseline(evaluated, by_accuracy)]
    else:
        sentences = _compared(evaluated, by_accuracy, target, _tested(records, evaluated, by_accuracy))
    sentences += [_divergence(each) for each in outcomes if each.diverged]
    sentences += [_explosion(each) for each in outcomes if each.exploded]
    return " ".join(sentences)


def scope_of(records: Sequence[Record], outcomes: Sequence[Outcome]) -> str:
    """How much was run: "2 methods · 3 seeds each · 100 rounds · 10 clients a round"."""
    seeds = range_text((outcome.runs for outcome in outcomes), "seed")
    rounds = range_text((outcome.last_round for outcome in outcomes), "round")
    clients = range_text((record.history["participants"].max() for record in records), "client")
    if len(records) == 1:
        parts = [f"seed {records[0].seed}"]
    elif len(outcomes) == 1:
        parts = [seeds]
    else:
        parts = [count_text(len(outcomes), "method"), f"{seeds} each"]
    return " · ".join([*parts, rounds, f"{clients} a round"])


def _all_diverged(outcomes: Sequence[Outcome], records: Sequence[Record]) -> str:
    if len(records) == 1:
        last = outcomes[0].accuracy
        tail = f"; its last accuracy was {percent_text(last)}" if math.isfinite(last) else ""
        return f"{outcomes[0].label} diverged at round {divergence_round(records[0].history)}{tail}."
    if len(outcomes) == 1:
        return _divergence(outcomes[0])
    return f"Every run diverged: {list_text([outcome.label for outcome in outcomes])}."


def _divergence(outcome: Outcome) -> str:
    if outcome.runs == 1:
        return f"{outcome.label} diverged."
    if outcome.all_diverged:
        return f"{outcome.label} diverged in all {count_text(outcome.runs, 'run')}."
    return f"{outcome.diverged} of {count_text(outcome.runs, 'run')} of {outcome.label} diverged."


def _explosion(outcome: Outcome) -> str:
    where = "" if outcome.exploded == outcome.runs else f" in {outcome.exploded} of {count_text(outcome.runs, 'run')}"
    return f"The training loss of {outcome.label} exploded{where}."


def _final(outcome: Outcome, by_accuracy: bool) -> str:
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


def _single(outcome: Outcome, by_accuracy: bool, target: float | None) -> str:
    text = f"{outcome.label} ended at {_final(outcome, by_accuracy)}"
    text += f" after {count_text(outcome.last_round, 'round')}"
    if outcome.averaged < outcome.runs:
        text += f", over {outcome.averaged} of {count_text(outcome.runs, 'seed')}"
    elif outcome.runs > 1:
        text += f", the mean of {count_text(outcome.runs, 'seed')}"
    if target is None or not by_accuracy:
        return f"{text}."
    if not outcome.reached:
        return f"{text}; it did not reach {percent_text(target)}."
    return f"{text}; it reached {percent_text(target)} in {_rounds_to_target(outcome)}."


def _rounds_to_target(outcome: Outcome) -> str:
    """How many rounds it took, and in how many seeds if not in all."""
    rounds = count_text(outcome.rounds_to_target, "round")
    if outcome.reached == outcome.runs:
        return rounds
    return f"{rounds} ({outcome.reached}{NBSP}of{NBSP}{count_text(outcome.runs, 'seed')})"


def _best_of(outcomes: Sequence[Outcome], by_accuracy: bool) -> Outcome:
    return max(outcomes, key=lambda each: each.accuracy if by_accuracy else -each.loss)


def _without_baseline(evaluated: Sequence[Outcome], by_accuracy: bool) -> str:
    """The sentence where the first label, or everything but it, has nothing to compare."""
    best = _best_of(evaluated, by_accuracy)
    return f"{best.label} ended at {_final(best, by_accuracy)}."


def _tested(records: Sequence[Record], evaluated: Sequence[Outcome], by_accuracy: bool) -> list[Pair]:
    """The tests of the methods that are compared; none where the packages that make them are not installed."""
    labels = {outcome.label for outcome in evaluated}
    runs = [record for record in records if record.label in labels]
    try:
        return pairs_of(runs, "accuracy" if by_accuracy else "loss")
    except MissingExtraError:
        return []


def _compared(
    evaluated: Sequence[Outcome], by_accuracy: bool, target: float | None, pairs: Sequence[Pair]
) -> list[str]:
    baseline, others = evaluated[0], evaluated[1:]
    rival = _best_of(others, by_accuracy)
    lead = _lead(rival, baseline, by_accuracy)
    rank = f"{'highest' if by_accuracy else 'lowest'} of {len(evaluated)} methods"
    if len(others) == 1 or lead > 0:
        place = f" {rank}," if len(others) > 1 else ""
        first = f"{rival.label} ended{place} at {_final(rival, by_accuracy)}"
        first += f", {_gap(rival, baseline, by_accuracy)}"
        first += _target_clause(rival, baseline, lead, target) if by_accuracy else ""
    elif lead == 0:
        first = f"{baseline.label} and {rival.label} ended level, {rank}, at {_final(baseline, by_accuracy)}"
    else:
        first = f"{baseline.label} ended {rank}, at {_final(baseline, by_accuracy)}"
        first += f", {_gap(baseline, rival, by_accuracy)}, the next best"
    verdict = _verdict(_best_of(evaluated, by_accuracy), evaluated, pairs)
    return [f"{first}.", *filter(None, [verdict]), *_caveats(rival, baseline, by_accuracy, bool(verdict))]


def _verdict(best: Outcome, evaluated: Sequence[Outcome], pairs: Sequence[Pair]) -> str:
    """Whether the best is clearly better than the others; empty where no test could be made."""
    own = {
        next(name for name in pair.labels if name != best.label): pair for pair in pairs if best.label in pair.labels
    }
    tested = {name: pair for name, pair in own.items() if pair.decided_by}
    if not tested:
        return ""
    beaten = [name for name, pair in tested.items() if pair.better == best.label]
    unclear = [name for name in own if name not in beaten]
    shown = [tested[name] for name in (unclear or beaten) if name in tested]
    unknown = "" if all(pair.decided_by == "seeds" for pair in tested.values()) else _UNKNOWN_SPREAD
    corrected = f", corrected for {len(pairs)} pairs" if len(pairs) > 1 else ""
    if not unclear:
        least = max(shown, key=lambda pair: pair.p)
        test = f"{p_text(least.p, '≤' if len(shown) > 1 else '=')}, {how_decided(least)}{corrected}"
        if len(evaluated) == 2:
            return f"The difference is clear ({test}){unknown}."
        return f"{best.label} is clearly better than every other ({test}){unknown}."
    test = ""
    if shown:
        least = min(shown, key=lambda pair: pair.p)
        test = f" ({p_text(least.p, '≥' if len(shown) > 1 else '=')}, {how_decided(least)}{corrected})"
    if not any(own[name].difference for name in unclear):
        return f"There is no clear winner{test}{unknown}."
    others = list_text(unclear) if len(unclear) <= _NAMED else f"{len(unclear)} of {len(own)} others"
    return f"There is no clear winner: the lead of {best.label} over {others} may be chance{test}{unknown}."


def _target_clause(rival: Outcome, baseline: Outcome, lead: float, target: float | None) -> str:
    goal = f"{baseline.label}’s final accuracy" if target is None else percent_text(target)
    link = ", and" if (lead >= 0) == bool(rival.reached) else ", but"
    if not rival.reached:
        theirs = f"; {baseline.label} did, in {_rounds_to_target(baseline)}" if target and baseline.reached else ""
        return f"{link} did not reach {goal}{theirs}"
    ours = f"{link} reached {goal} in {_rounds_to_target(rival)}"
    if not baseline.reached:
        return f"{ours}; {baseline.label} did not reach it"
    if round(rival.rounds_to_target) < round(baseline.rounds_to_target):
        return f"{ours} instead of {_rounds_to_target(baseline).removesuffix(f'{NBSP}rounds')}"
    if round(rival.rounds_to_target) == round(baseline.rounds_to_target):
        return f"{ours}, as {baseline.label} did"
    return f"{ours}, against {_rounds_to_target(baseline)} for {baseline.label}"


def _caveats(rival: Outcome, baseline: Outcome, by_accuracy: bool, tested: bool) -> list[str]:
    """What a careful reader would ask about the comparison."""
    caveats = []
    stds = [outcome.finals["accuracy"].std for outcome in (rival, baseline)]
    spread = max(filter(math.isfinite, stds), default=math.nan)
    lead = _lead(rival, baseline, by_accuracy)
    if not tested and by_accuracy and lead and abs(lead) <= 100 * spread:
        caveats.append("The difference is within the spread over seeds.")
    if rival.last_round != baseline.last_round:
        ours = f"{rival.label} ran for {count_text(rival.last_round, 'round')}"
        caveats.append(f"{ours}, {baseline.label} for {baseline.last_round}.")
    return caveats
