"""`ud.recommend`: which algorithm to use, from the stored results in the settings that are nearest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from undrift.core import check
from undrift.overview import algorithms as known
from undrift.overview import sizes
from undrift.recommendation import measured, ranks
from undrift.recommendation.measured import ALGORITHMS, BASELINE, CLIENTS, COHORT, Outcomes
from undrift.recommendation.situation import Nearest, Situation, nearest, situation
from undrift.reporting.wording import count_text, list_text
from undrift.statistics.samples import LEVEL
from undrift.statistics.seeds import holm

_NAMED = 4  # algorithms of a tie that are named
_FAR = 2  # times as many clients of a round, or fewer

Verdict = Literal["clear", "tie", "likely", "no difference shown"]


@dataclass(frozen=True)
class Row:
    """An algorithm in the nearest settings."""

    algorithm: str
    rank: float  # average, 1 for the best
    accuracy: float  # mean over settings and seeds; a run that was lost counts 0
    over_fedavg: float  # mean difference of these accuracies, paired by setting and seed
    everywhere: bool  # it is ahead of FedAvg in every setting, or behind it in every one
    p: float  # of the paired t test of that difference, by itself
    p_corrected: float  # for all algorithms that are compared, by Holm's method
    traffic: float  # bytes of a round, FedAvg's are 1
    rates: tuple[float, ...]  # that were chosen in these settings
    lost: int  # runs that diverged at these rates
    keeps_state: bool  # clients do
    server_per_client: float  # models that the server keeps for every client

    @property
    def certain(self) -> str:
        """Whether it is better or worse than FedAvg: "yes" after the correction and in every setting, or "likely".

        Seeds of a setting are alike, so that a test over settings and seeds alone would be sure too soon.
        """
        if self.p_corrected < LEVEL and self.everywhere:
            return "yes"
        return "likely" if self.p < LEVEL else "no"

    @property
    def better(self) -> bool:
        """Than FedAvg, for certain."""
        return self.over_fedavg > 0 and self.certain == "yes"


@dataclass(frozen=True)
class Recommendation:
    """An answer, and how sure it is."""

    algorithm: str
    answer: str  # a sentence
    verdict: Verdict
    sure: str  # a sentence
    rows: tuple[Row, ...]  # all that are allowed, the best rank first
    settings: tuple[str, ...]  # that were looked at
    distance: tuple[str, ...]  # from them to what was asked
    notes: tuple[str, ...]  # what to know besides, and what was not measured

    def plain(self) -> dict[str, Any]:
        """For JSON: figures that are not known are None."""
        content = asdict(self)
        content["rows"] = [
            {
                key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in row.items()
            }
            for row in content["rows"]
        ]
        return content

    def __str__(self) -> str:
        return "\n".join([self.answer, self.sure, *self.distance, *self.notes])


def recommend(
    *,
    clients: int,
    participation: float = 1.0,
    classes_per_client: float | None = None,
    alpha: float | None = None,
    partition: str | None = None,
    classes: int = measured.CLASSES,
    can_keep_state: bool = False,
    traffic: float | None = None,
) -> Recommendation:
    """Which algorithm to use, by the stored results of all algorithms in the settings that are nearest.

    Args:
        clients: How many there are.
        participation: The share of them that takes part in a round.
        classes_per_client: How many classes a client has; or `alpha`, of a Dirichlet distribution; or `partition`.
        alpha: As in ``dirichlet:0.1``.
        partition: In the library's notation, as in ``shards:2``.
        classes: How many there are in all.
        can_keep_state: Whether clients return and can keep a model or two between rounds.
        traffic: At most so many times FedAvg's bytes.

    Returns:
        The algorithm, how sure that is, the figures of all that are allowed, and what was not measured.
    """
    check.flag("can_keep_state", can_keep_state)
    if traffic is not None:
        check.number("traffic", traffic, 0, open_low=True)
    given = situation(clients, participation, classes_per_client, alpha, partition, classes)
    return _answer(given, measured.stored(), measured.same_as(measured.rows()), can_keep_state, traffic)


def _answer(
    given: Situation, found: Outcomes, same: dict[str, str], can_keep_state: bool, traffic: float | None
) -> Recommendation:
    kinds, others = nearest(given, found)
    tasks = _comparable(found, kinds)
    everywhere = [name for name in found[tasks[0]] if all(name in found[task] for task in tasks) and name not in same]
    names = [name for name in everywhere if _allowed(found, name, can_keep_state, traffic)]
    if not names:
        raise ValueError(f"traffic: no algorithm sends at most {traffic:g} times FedAvg's bytes; the least is 1")
    rows = _rows(found, tasks, names)
    verdict, tied = _verdict(found, tasks, rows)
    best = BASELINE if verdict == "no difference shown" else rows[0].algorithm
    notes = _notes(rows, best, can_keep_state)
    same_part = [each for each in others if each.part == kinds[0].part]
    if same_part:
        there = _comparable(found, same_part[:1])
        shared = [name for name in names if all(name in found[task] for task in there)]
        leader = next(iter(ranks.average_ranks(found, there, shared)))
        notes.append(f"In the next nearest setting ({same_part[0].text}) {leader} has the best rank.")
    notes += _not_measured(kinds, tasks, everywhere, same)
    return Recommendation(
        algorithm=best,
        answer=_sentence(rows, best, verdict),
        verdict=verdict,
        sure=_sure(rows, verdict, tied, len(tasks)),
        rows=tuple(rows),
        settings=tuple(tasks),
        distance=tuple(_distance(given, kinds)),
        notes=tuple(notes),
    )


def _comparable(found: Outcomes, kinds: Sequence[Nearest]) -> list[str]:
    """Their settings, without those in which too few algorithms were measured to be worth a comparison."""
    return ranks.complete({task: found[task] for kind in kinds for task in kind.tasks})[0]


def _allowed(found: Outcomes, name: str, can_keep_state: bool, traffic: float | None) -> bool:
    if not can_keep_state and not known()[name].cost.stateless:
        return False
    return traffic is None or measured.traffic(found, name) <= traffic


def _rows(found: Outcomes, tasks: list[str], names: list[str]) -> list[Row]:
    order = ranks.average_ranks(found, tasks, names)
    against = {name: ranks.difference(found, tasks, name, BASELINE) for name in order}
    p = {name: math.nan if name == BASELINE else against[name].t for name in order}
    corrected = dict(zip(p, holm(list(p.values())).tolist(), strict=True))
    rows = [
        Row(
            algorithm=name,
            rank=rank,
            accuracy=sum(found[task][name].score for task in tasks) / len(tasks),
            over_fedavg=against[name].difference,
            everywhere=_everywhere(found, tasks, name),
            p=p[name],
            p_corrected=corrected[name],
            traffic=measured.traffic(found, name),
            rates=tuple(sorted({found[task][name].rate for task in tasks})),
            lost=sum(found[task][name].failed for task in tasks),
            keeps_state=not known()[name].cost.stateless,
            server_per_client=known()[name].cost.server_per_client,
        )
        for name, rank in order.items()
    ]
    return sorted(rows, key=lambda row: (row.rank, -row.accuracy))


def _everywhere(found: Outcomes, tasks: list[str], name: str) -> bool:
    """Whether the difference from FedAvg has the same sign in every setting."""
    each = [ranks.difference(found, [task], name, BASELINE).difference for task in tasks]
    return min(each) > 0 or max(each) < 0


def _verdict(found: Outcomes, tasks: list[str], rows: list[Row]) -> tuple[Verdict, list[str]]:
    """With those, besides FedAvg, that the first is not shown to be better than."""
    first = rows[0]
    rivals = [row.algorithm for row in rows if row.algorithm != BASELINE]
    tied = ranks.not_significantly_worse(found, tasks, first.algorithm, rivals, corrected=True)
    if first.better:
        return ("tie" if tied else "clear"), tied
    if first.over_fedavg > 0 and first.certain == "likely":
        return "likely", tied
    return "no difference shown", tied


def _sentence(rows: list[Row], best: str, verdict: Verdict) -> str:
    first = rows[0]
    if verdict == "no difference shown":
        if first.algorithm == BASELINE:
            return f"Use {BASELINE}: none of the {len(rows) - 1} others that are allowed here has a better rank."
        return f"Use {BASELINE}; {first.algorithm} has the best rank, but is not shown to be better than FedAvg."
    return (
        f"Use {best}: {100 * first.over_fedavg:+.1f} points against FedAvg, {100 * first.accuracy:.1f} % accuracy, "
        f"{'the same traffic' if first.traffic == 1 else f'{first.traffic:.2g} times the traffic'}."
    )


def _sure(rows: list[Row], verdict: Verdict, tied: list[str], tasks: int) -> str:
    first, seeds = rows[0], measured.SEEDS
    runs = f"{count_text(tasks, 'setting')} × {count_text(seeds, 'seed')}"
    rest = [count_text(len(tied) - _NAMED, "other")] if len(tied) > _NAMED else []
    rivals = list_text(tied[:_NAMED] + rest)
    tie = f" {first.algorithm} is not shown to be better than {rivals}." if tied else ""
    if verdict in ("clear", "tie"):
        return f"Clearly better than FedAvg in these settings (p = {first.p_corrected:.2g}, corrected, {runs}).{tie}"
    others = [row.algorithm for row in rows[1:] if row.better]
    behind = f" Clearly better than FedAvg, though behind {first.algorithm} in rank: {list_text(others)}."
    certain = behind if others else ""
    if verdict == "likely":
        doubts = [] if first.p_corrected < LEVEL else [f"after a correction for {len(rows) - 1} algorithms"]
        doubts += [] if first.everywhere else ["in every one of them"]
        return (
            f"Likely, not certain: better than FedAvg in these settings with p = {first.p:.2g} ({runs}), but not "
            f"{list_text(doubts)}.{tie}{certain}"
        )
    if first.algorithm == BASELINE:
        return f"FedAvg has the best rank in these settings ({runs}).{tie}{certain}"
    p = f", p = {first.p:.2g}" if math.isfinite(first.p) else ""
    nor = f", nor than {rivals}" if tied else ""
    return f"{first.algorithm} is not shown to be better than FedAvg in these settings ({runs}{p}){nor}.{certain}"


def _distance(given: Situation, kinds: list[Nearest]) -> list[str]:
    share = COHORT / CLIENTS[kinds[0].part]
    there = list_text([f"{kind.skew:.2f}" for kind in kinds])
    lines = [
        f"Nearest {'setting' if len(kinds) == 1 else 'settings'}: {list_text([kind.text for kind in kinds])}. "
        f"Yours: {given.split}, {given.clients:,} clients.",
        f"How much clients differ (0 alike, 1 no class in common): {given.skew:.2f} in yours, {there} there.",
    ]
    if given.participation != share:
        far = ": far away" if max(given.participation / share, share / given.participation) > _FAR else ""
        lines.append(f"Participation: {100 * given.participation:g} % in yours, {100 * share:g} % there{far}.")
    return lines


def _notes(rows: list[Row], best: str, can_keep_state: bool) -> list[str]:
    notes, cost = [], known()[best].cost
    chosen = next(row for row in rows if row.algorithm == best)
    if chosen.keeps_state:
        notes.append(
            f"Clients keep {sizes(cost.client)} × the size of the model between rounds: they must "
            "return, and be the same ones."
        )
    if cost.server_per_client >= 0.5:
        notes.append("The server keeps a model for every client that has taken part, and must recognise clients.")
    if chosen.lost:
        notes.append(f"{chosen.lost} of its runs diverged at the rates that were chosen.")
    largest = max(measured.RATES)
    edge = [row.algorithm for row in rows if row.algorithm in (best, BASELINE) and largest in row.rates]
    if edge:
        who = "FedAvg, too," if best != BASELINE and BASELINE in edge else "it"
        notes.append(
            f"The largest rate that was tried, {largest:g}, was chosen here for {list_text(edge)}: {who} may be better "
            f"with a larger one; tune {'it' if best == BASELINE else 'both'}."
        )
    if not can_keep_state:
        notes.append("Only algorithms whose clients keep nothing between rounds were looked at.")
    return notes


def _not_measured(kinds: list[Nearest], tasks: list[str], everywhere: list[str], same: dict[str, str]) -> list[str]:
    notes = []
    absent = [name for name in ALGORITHMS if name not in everywhere and name not in same]
    if absent:
        notes.append(f"Not measured in these settings: {list_text(absent)}.")
    wanted = {
        task
        for task, each in measured.TASKS.items()
        for kind in kinds
        if each.partition == measured.PARTITIONS[kind.partition] and each.clients == CLIENTS[kind.part]
    }
    if left := sorted(wanted - set(tasks)):
        notes.append(f"Not measured, or not completely: {'; '.join(left)}.")
    notes.append(
        f"All figures are of {measured.ROUNDS} rounds of small networks on ten classes of images, three rates, "
        "default options: docs/reproduction/grand.md."
    )
    return notes
