"""The stored results as a page: tables, ranks, and what follows for the choice of an algorithm."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from undrift.core.extras import needs
from undrift.overview import algorithms as known
from undrift.recommendation import measured, ranks
from undrift.recommendation.measured import ALGORITHMS, BASELINE, MODELS, TASKS, Outcome, Outcomes
from undrift.reporting import rank_diagram
from undrift.reporting.export import markdown_table
from undrift.reporting.significance import Ranks
from undrift.reporting.wording import MISSING, NBSP, count_text, list_text
from undrift.statistics.samples import LEVEL

DIAGRAM = "grand.svg"  # beside the page
_FIRST = 3  # algorithms that a sentence names
_TIME_LIMITS = (1.1, 1.5, 2.0, 3.0)  # of a round, relative to the baseline's
_DEVICES = {"cpu": "two CPU cores"}  # of any other the file has no more than its name
_DATA = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_DIFFERENT = ("Dirichlet 0.1", "one class")  # partitions whose clients differ much
_INTRODUCTION = f"""\
# All algorithms on equal terms

Every algorithm of the library in its default form, in sixteen settings: two data sets, clients with samples of one
class, by Dirichlet(0.1), by Dirichlet(1) and IID, ten of a hundred clients a round or all of ten. Each ran at the rates
{", ".join(map(str, measured.RATES))} with {measured.SEEDS} seeds: {measured.ROUNDS} rounds of {measured.STEPS} steps
with {measured.BATCH} samples, plain SGD, clients weighted by their samples, LeNet on Fashion-MNIST, LeNet-5 on
CIFAR-10. A tenth of every client's training samples was held out; the rate with the best accuracy on them is the one
that is shown, where one at which a seed diverged comes after all others. `undrift recommend` answers from them.
"""
_LIMITS = f"""\
## What this cannot say

* {measured.ROUNDS} rounds are few. Algorithms that are slow at first and better later look worse than they are:
  [with 500 clients](fedhbm-table4.md) orders are those after thousands.
* Three rates, and every other option at its default. A rate below 0.01, or another β or α, may change the order.
* Three seeds: a difference must be large to show. Participation and number of clients change together (10 % of 100,
  all of 10).
* CIFAR-10 is a JPEG copy: pictures were compressed with loss, so that accuracies may be lower than on the original.
* It is the server's model that is measured. Algorithms that are made for models of the clients' own (FedBN,
  Per-FedAvg) are not shown at what they are for.
* Runs shared a GPU, so that their own times say nothing: times of a round were measured apart.
"""


def markdown() -> str:
    """The whole page."""
    found, same = measured.stored(), measured.same_as(measured.rows())
    tasks, order = _order()
    numbered = "".join(f"{number}. {line}\n" for number, line in enumerate(advice(found, tasks, order), 1))
    parts = [_INTRODUCTION, f"## Which algorithm should I use?\n\n{numbered}"]
    parts += [f"{_LIMITS}{_edge(found)}", _missing(found), _coincide(same)]
    parts += [_accuracies(found), _winners(found, same), _ranks(found, tasks, order), _traffic(found, order)]
    parts.append(_seconds(found, tasks, order))
    return "\n".join(part for part in parts if part)


@cache
def _order() -> tuple[list[str], Ranks]:
    """The settings of the ranks, and the ranks of algorithms, of which those that coincide count once."""
    found, same = measured.stored(), measured.same_as(measured.rows())
    tasks, names = ranks.complete(found)
    return tasks, ranks.ranks(found, tasks, [name for name in names if name not in same])


def diagram() -> bytes:
    """The critical-difference diagram as SVG: the same bytes for the same results and version of matplotlib."""
    with needs("plot"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure

    order = _order()[1]
    table = order.table.assign(label=[label(str(name)) for name in order.table["label"]])
    named = replace(order, table=table, nemenyi=order.nemenyi.rename(index=label, columns=label))
    written = io.BytesIO()
    with rc_context({"svg.hashsalt": "undrift", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8.5, 1.2 + 0.22 * len(table)))
        rank_diagram.draw(named, figure.subplots())
        figure.savefig(written, format="svg", facecolor="white", bbox_inches="tight", metadata={"Date": None})
    return b"\n".join(line.rstrip() for line in written.getvalue().splitlines()) + b"\n"


def _edge(found: Outcomes) -> str:
    """Whether the baseline would have liked a larger rate."""
    edge, chosen = max(measured.RATES), [each[BASELINE].rate for each in found.values() if BASELINE in each]
    return (
        f"* FedAvg's rate is the largest of the three in {chosen.count(edge)} of {len(chosen)} settings: it may do "
        "better with a larger one. Momentum makes steps longer, too: part of what algorithms gain by it may be that.\n"
    )


def _missing(found: Outcomes) -> str:
    done = sum(len(each) for each in found.values())
    lines = [f"Measured so far: {done} of {len(TASKS) * len(ALGORITHMS)} (algorithm, setting) pairs."]
    absent = [task for task in TASKS if task not in found]
    if absent:
        lines.append(f"Not yet at all: {'; '.join(absent)}.")
    never = [name for name in ALGORITHMS if not any(name in each for each in found.values())]
    if never:
        lines.append(f"In no setting: {list_text([label(name) for name in never])}.")
    partly = [
        f"{task} ({len(each)} of {len(ALGORITHMS)})"
        for task, each in found.items()
        if len(each) < len(ALGORITHMS) - len(never)
    ]
    if partly:
        lines.append(f"In part: {'; '.join(partly)}.")
    return " ".join(lines) + "\n" if len(lines) > 1 else ""


def _coincide(same: dict[str, str]) -> str:
    if not same:
        return ""
    pairs = [f"{label(name)} = {label(other)}" for name, other in same.items()]
    return (
        f"Some algorithms are the same one here, run for run: {', '.join(pairs)}. Without batch normalisation FedBN is "
        "FedAvg; without momentum MimeLite is FedAvg, and Mime is MimeSVRG. Ranks count such a group once.\n"
    )


@cache
def label(name: str) -> str:
    """As it is written in Python."""
    from undrift.algorithms import available

    return available()[name].__name__


# Advice: every number is computed, so that the sentences hold for what is stored


def advice(found: Outcomes, tasks: Sequence[str], order: Ranks) -> list[str]:
    """Ten lines, over the settings of the ranks."""
    average = order.table.set_index("label")["average_rank"].sort_values(kind="stable")
    names = [str(name) for name in average.index]
    different = [task for task in tasks if any(f", {part}," in task for part in _DIFFERENT)]
    alike = [task for task in tasks if task not in different]
    entries = known()
    first = names[0]
    p = order.nemenyi.to_numpy()[list(order.nemenyi.index).index(first)]
    tied = int((p >= LEVEL).sum()) - 1  # without itself
    winners = {_best(found, task) for task in tasks}
    steady = [name for name in names if not any(found[task][name].failed_anywhere for task in tasks)]
    above = [name for name in steady if average[name] < average[BASELINE]]
    never = [name for name in names if name != BASELINE and all(_gain(found, task, name) >= 0 for task in tasks)]
    lost = sorted(names, key=lambda name: -_lost(found, tasks, name))[:_FIRST]
    shares = [f"{_linked(name)} ({100 * _lost(found, tasks, name):.0f}{NBSP}%)" for name in lost]
    below = [name for name in names if average[name] > average[BASELINE]]
    light = [name for name in names if measured.traffic(found, name) < 1.005]
    return [
        f"**Choose the rate first.** From the worst to the best of three rates FedAvg gains "
        f"{_mean([_span(found, task) for task in tasks]):.1f} points, averaged over {len(tasks)} settings; from "
        f"FedAvg to "
        f"the best algorithm of each setting it is {_mean([_lead(found, task) for task in tasks]):.1f}, rates "
        f"chosen for "
        "both.",
        f"**Nobody wins everywhere.** {len(winners)} algorithms come first in {len(tasks)} settings. The best average "
        f"rank has {_linked(first)} ({average[first]:.1f}), and Nemenyi's test does not separate it from {tied} of "
        f"the other "
        f"{len(names) - 1}.",
        _alike_or_not(found, alike, different),
        f"**A tenth of the clients a round, which differ much**: {_top(found, _where(different, '10 %'), names)}.",
        f"**All clients in every round, which differ much**: {_top(found, _where(different, 'all'), names)}.",
        f"**Clients that are alike**: {_top(found, alike, names)}.",
        "**Clients that keep nothing between rounds** (phones): "
        f"{_top(found, tasks, [name for name in names if entries[name].cost.stateless])}.",
        f"**Traffic at most FedAvg's**: {_top(found, tasks, light)}.",
        f"**Little to go wrong**: of those ranked before FedAvg, {_list(above)} lost no run at any of the three rates; "
        f"{_list(never)} {'is' if len(never) == 1 else 'are'} in no setting below FedAvg's mean.",
        f"**With care**: {list_text(shares)} lost the largest shares of their runs over the three rates; "
        f"{len(below)} of "
        f"{len(names) - 1} rank behind FedAvg after {measured.ROUNDS} rounds.",
    ]


def _list(names: Sequence[str]) -> str:
    return list_text([_linked(name) for name in names]) if names else "none"


def _alike_or_not(found: Outcomes, alike: Sequence[str], different: Sequence[str]) -> str:
    leads = [
        f"where clients {text} it is {_mean([_lead(found, task) for task in where]):.1f} points ({len(where)} settings)"
        for where, text in ((alike, "are alike (IID, Dirichlet(1))"), (different, "differ (Dirichlet(0.1), one class)"))
        if where
    ]
    return f"**It matters where clients differ.** From FedAvg to the best, {', '.join(leads)}."


def _where(tasks: Sequence[str], part: str) -> list[str]:
    return [task for task in tasks if task.endswith(f", {part}")]


def _top(found: Outcomes, tasks: Sequence[str], names: Sequence[str]) -> str:
    """The first few by rank among these, and how far each is from FedAvg."""
    if not tasks:
        return "not measured yet"
    first = list(ranks.average_ranks(found, tasks, names))[:_FIRST]
    gains = [f"{_linked(name)} ({_mean([_gain(found, task, name) for task in tasks]):+.1f})" for name in first]
    return f"{list_text(gains)} points against FedAvg, mean of {count_text(len(tasks), 'setting')}"


def _gain(found: Outcomes, task: str, name: str) -> float:
    return 100 * (found[task][name].score - found[task][BASELINE].score)


def _best(found: Outcomes, task: str) -> str:
    return max(found[task].values(), key=lambda each: each.score).algorithm


def _lead(found: Outcomes, task: str) -> float:
    return _gain(found, task, _best(found, task))


def _span(found: Outcomes, task: str) -> float:
    return 100 * (found[task][BASELINE].mean - found[task][BASELINE].worst_rate)


def _lost(found: Outcomes, tasks: Sequence[str], name: str) -> float:
    each = [found[task][name] for task in tasks]
    return sum(one.failed_anywhere for one in each) / sum(one.runs for one in each)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _linked(name: str) -> str:
    return f"[{label(name)}](../algorithms/{name}.md)"


# Tables


def _accuracies(found: Outcomes) -> str:
    parts = [
        "## Accuracy\n",
        "Test accuracy after the last round in percent, mean ± standard deviation over seeds, then the rate. Bold: the "
        "best of a column, and all that a paired t test over its three seeds (p < 0.05, not corrected for their "
        "number) does not show to be worse. *n lost*: seeds that diverged, or whose training loss exploded, at the "
        "chosen rate; they are left out of the mean. –: all were lost. An empty cell was not measured.\n",
    ]
    for data in MODELS:
        tasks = [task for task in found if TASKS[task].data == data]
        if not tasks:
            continue
        bests = {task: _best(found, task) for task in tasks}
        bold = {task: {best, *_tied(found, task, best)} for task, best in bests.items()}
        names = [name for name in ALGORITHMS if any(name in found[task] for task in tasks)]
        heads = ["", *(task.removeprefix(f"{data}, ").replace(" %", f"{NBSP}%") for task in tasks)]
        body = [
            [_linked(name), *(_cell(found[task].get(name), name in bold[task]) for task in tasks)] for name in names
        ]
        parts += [f"**{_DATA[data]}**\n", markdown_table(heads, body)]
    return "\n".join(parts)


def _tied(found: Outcomes, task: str, first: str) -> list[str]:
    return ranks.not_significantly_worse(found, [task], first, found[task], corrected=False)


def _cell(outcome: Outcome | None, bold: bool) -> str:
    if outcome is None:
        return ""
    lost = f", {outcome.failed}{NBSP}lost" if outcome.failed else ""
    if not outcome.accuracies:
        return f"{MISSING}{lost}"
    spread = f"{NBSP}±{NBSP}{100 * outcome.std:.1f}" if math.isfinite(outcome.std) else ""
    text = f"{100 * outcome.mean:.1f}{spread}"
    return f"{f'**{text}**' if bold else text} at{NBSP}{outcome.rate:g}{lost}"


def _winners(found: Outcomes, same: dict[str, str]) -> str:
    body = []
    for task, each in found.items():
        names = [name for name in each if name not in same]
        first, second = sorted(names, key=lambda name: -each[name].score)[:2]
        tied = [name for name in _tied(found, task, first) if name not in same]
        body.append(
            [
                task,
                f"{_linked(first)} {_percent(each[first].mean)}",
                f"{_linked(second)} {_percent(each[second].mean)}",
                _percent(each[BASELINE].mean) if BASELINE in each else "",
                f"{len(tied)} of {len(names) - 1}",
            ]
        )
    heads = ["setting", "first", "second", "FedAvg", "not significantly worse"]
    return f"## Winners\n\n{markdown_table(heads, body)}"


def _ranks(found: Outcomes, tasks: Sequence[str], order: Ranks) -> str:
    table = order.table.sort_values("average_rank", kind="stable")
    left_out = [task for task in found if task not in tasks]
    ranked, same = set(table["label"]), measured.same_as(measured.rows())
    absent = [label(name) for name in ALGORITHMS if name not in ranked and name not in same]
    friedman = "p < 0.001" if order.friedman_p < 0.001 else f"p = {order.friedman_p:.2g}"
    said = [
        f"Average ranks of {len(table)} algorithms over {order.tasks} settings by mean accuracy, 1 for the best; a run "
        f"that was lost counts 0. Friedman's test that all are alike: {friedman}. By Nemenyi's test, ranks more than "
        f"**{order.critical_difference:.1f}** apart differ (p < 0.05). *Over FedAvg*: how likely a run is better "
        "than one of FedAvg's in the same setting, with its 95 % interval over seeds. In the picture a bar joins "
        "algorithms that the test does not tell apart."
    ]
    if left_out:
        said.append(f"Left out, as not all algorithms were measured: {'; '.join(left_out)}.")
    if absent:
        said.append(f"Without a rank, as they were not measured in all of these settings: {list_text(absent)}.")
    body = []
    figures = table[["average_rank", "improvement", "improvement_low", "improvement_high"]].to_numpy(float)
    for name, (rank, value, low, high) in zip(map(str, table["label"]), figures.tolist(), strict=True):
        over = f"{100 * value:.0f}{NBSP}% ({100 * low:.0f}–{100 * high:.0f})" if math.isfinite(value) else ""
        mean = _mean([found[task][name].score for task in tasks])
        wins = sum(_best(found, task) == name for task in tasks)
        lost = f"{100 * _lost(found, tasks, name):.0f}{NBSP}%"
        body.append([_linked(name), f"{rank:.1f}", _percent(mean), over, str(wins), lost])
    heads = ["", "average rank", "mean accuracy", "over FedAvg", "settings won", "runs lost at all rates"]
    drawing = f"![Average ranks; a bar joins algorithms that Nemenyi's test does not tell apart]({DIAGRAM})"
    return f"## Ranks\n\n{' '.join(said)}\n\n{drawing}\n\n{markdown_table(heads, body)}"


def _traffic(found: Outcomes, order: Ranks) -> str:
    """Those that no other algorithm beats in rank with as little traffic."""
    average = order.table.set_index("label")["average_rank"]
    names = [str(name) for name in average.index]
    sent = {name: measured.traffic(found, name) for name in names}
    body = []
    for limit in sorted({round(value, 2) for value in sent.values()}):
        inside = [name for name in names if sent[name] <= limit + 0.005]
        first = sorted(inside, key=average.__getitem__)[:_FIRST]
        here = [name for name in names if abs(sent[name] - limit) <= 0.005]
        body.append(
            [
                f"{limit:g}",
                ", ".join(label(name) for name in here),
                ", ".join(f"{_linked(name)} ({average[name]:.1f})" for name in first),
            ]
        )
    heads = ["traffic, FedAvg = 1", "algorithms", "best average ranks with at most that"]
    fedavg = {task: each[BASELINE].bytes_per_round for task, each in found.items()}
    sizes = {TASKS[task].data: value / 1e6 for task, value in fedavg.items()}
    said = ", ".join(f"{value:.2f} MB on {_DATA[data]}" for data, value in sizes.items())
    return (
        "## Accuracy per byte\n\n"
        "All ran for the same number of rounds, so that bytes differ by what a round sends, down and up (exact, "
        f"from the messages; FedAvg with ten clients: {said}).\n\n"
        f"{markdown_table(heads, body)}"
    )


def _seconds(found: Outcomes, tasks: Sequence[str], order: Ranks) -> str:
    """The best ranks within some multiples of FedAvg's time, of those settings that have the same clients."""
    names, times = [str(name) for name in order.table["label"]], measured.times()
    parts = [
        "## Accuracy per second\n",
        "All ran for the same number of rounds, so that seconds differ by how long a round takes: relative to FedAvg's "
        "with LeNet on samples of Fashion-MNIST's size, each algorithm taking turns with FedAvg. Algorithms that pass "
        "over all samples of a client cost more the more it has: 540 where ten of a hundred clients take part, "
        "5400 where all of ten do. Ranks are among the settings with these clients. "
        "`python docs/reproduction/times.py FILE.csv` measures it.\n",
    ]
    for (device, part), each in times.groupby(["device", "clients"], sort=False):
        own = _where(tasks, str(part))
        taken = {BASELINE: 1.0} | dict(zip(map(str, each["algorithm"]), each["ratio"].astype(float), strict=True))
        average = ranks.average_ranks(found, own, names)
        body, before = [], 0.0
        for limit in (*_TIME_LIMITS, math.inf):
            here = sorted((name for name in names if before < taken[name] <= limit), key=taken.__getitem__)
            inside = [name for name in average if taken[name] <= limit][:_FIRST]
            if here:
                listed = ", ".join(f"{label(name)} ({taken[name]:.2f})" for name in here)
                first = ", ".join(f"{_linked(name)} ({average[name]:.1f})" for name in inside)
                body.append([f"{limit:g}" if math.isfinite(limit) else "more", listed, first])
            before = limit
        heads = ["time of a round at most, FedAvg = 1", "algorithms", "best average ranks with at most that"]
        clients = count_text(measured.COHORT, "client")
        where = f"{clients} of {measured.CLIENTS[str(part)]}"
        parts += [f"**{where}, {_DEVICES.get(str(device), device)}**\n", markdown_table(heads, body)]
    return "\n".join(parts)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}" if math.isfinite(value) else MISSING
