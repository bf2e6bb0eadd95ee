"""The results of an experiment as text: a table beside the paper's figures, and verdicts."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping

from undrift.reporting.export import markdown_table
from undrift.reporting.record import Record
from undrift.reporting.wording import MISSING, NBSP, count_text
from undrift.reproduce.curves import window_rounds
from undrift.reproduce.experiment import Figure
from undrift.reproduce.measures import Measure, measure_named
from undrift.reproduce.results import Results, Row, Seeds
from undrift.reproduce.verdicts import verdicts


def table(results: Results, name: str) -> list[list[str]]:
    """Headings and rows of a measure, without columns that say nothing."""
    rows, measure = results.table(name), measure_named(name)
    cases, printed = len(results.experiment.cases) > 1, any(row.paper is not None for row in rows)
    rounds = {(row.case, row.label): _rounds_run(results, row) for row in rows}
    cells = [
        {
            "case": row.case,
            "algorithm": row.label,
            "rounds run": rounds[row.case, row.label],
            **_figures(row, measure),
        }
        for row in rows
    ]
    cut = len(set(rounds.values())) > 1 or any("of" in text for text in rounds.values())
    shown = {"case": cases, "rounds run": cut, "paper": printed, "difference": printed}
    heads = ["case", "algorithm", "rounds run", "paper", "here", "difference"]
    heads = [head for head in heads if shown.get(head, True)]
    return [heads, *([each[head] for head in heads] for each in cells)]


def _rounds_run(results: Results, row: Row) -> str:
    count = results.rounds_of(row.case).get(row.label)
    wanted = results.experiment.rounds(row.case)
    return MISSING if count is None else rounds_text(count, count, wanted)


def rounds_text(fewest: int, most: int, wanted: int) -> str:
    """Such as "400", "800 of 10 000", or "800–3 000 of 10 000" where algorithms differ."""
    text = f"{fewest:,}" if fewest == most else f"{fewest:,}–{most:,}"
    return (text + f" of {wanted:,}" * (fewest < wanted)).replace(",", NBSP)


def _figures(row: Row, measure: Measure) -> dict[str, str]:
    paper = MISSING if row.paper is None else _number(row.paper.value, measure) + _spread(row.paper, measure)
    rounded = round(row.difference, measure.digits) + 0.0  # without the sign of a zero
    difference = f"{rounded:+.{measure.digits}f}" if math.isfinite(rounded) else MISSING
    return {"paper": paper, "here": _here(row.here, measure), "difference": difference}


def _here(seeds: Seeds, measure: Measure) -> str:
    lost = {"failed": seeds.failed, "not reached": len(seeds.at_least)}
    notes = [
        why if count == seeds.runs else f"{why} in {count} of {count_text(seeds.runs, 'seed')}"
        for why, count in lost.items()
        if count
    ]
    if not seeds.values:
        return ", ".join(notes) or MISSING
    text = _number(seeds.mean, measure)
    if math.isfinite(seeds.spread):
        text += f"{NBSP}±{NBSP}{_number(seeds.spread, measure)}"
    return f"{text} ({', '.join(notes)})" if notes else text


def _number(value: float, measure: Measure) -> str:
    return f"{value:.{measure.digits}f}" if math.isfinite(value) else MISSING


def _spread(figure: Figure, measure: Measure) -> str:
    return "" if figure.spread is None else f"{NBSP}±{NBSP}{_number(figure.spread, measure)}"


def sentences(results: Results) -> list[tuple[str, str]]:
    """Of every claim what is found of it, and why."""
    short = " in the short version" if results.fast else ""
    return [(f"{each.outcome}{short}: {each.claim.text}.", _sentence(each.reason)) for each in verdicts(results)]


def _sentence(text: str) -> str:
    """Greek letters, with which names begin, stay as they are."""
    return f"{text[0].upper() if text[0].isascii() else text[0]}{text[1:]}."


def conditions(results: Results) -> list[str]:
    """What was cut: a line for cases in which it was the same."""
    experiment, lines = results.experiment, {}
    for case in results.records:
        wanted, seeds = experiment.rounds(case), results.seeds(case)
        most, fewest = results.rounds(case), min(results.rounds_of(case).values(), default=results.rounds(case))
        cut = f"{fewest} to " * (fewest < most) + count_text(most, "round") + f" of {wanted}" * (fewest < wanted)
        line = f"{cut}, {count_text(seeds, 'seed')}"
        if fewer := [f"{label}{NBSP}{count}" for label, count in results.seeds_of(case).items() if count < seeds]:
            line += f" ({', '.join(fewer)})"
        line += _evaluated(results.intervals_of(case))
        missing = [each.label for each in experiment.entries if each.label not in results.labels(case)]
        if missing:
            line += f", not run: {', '.join(missing)}"
        lines[case] = line
    left = [case for case in experiment.cases if case not in results.records]
    return _by_case(lines, experiment.cases) + [f"not run: {', '.join(left)}"] * bool(left)


def _evaluated(intervals: Mapping[str, int]) -> str:
    """Every how many rounds, where these are not all; of algorithms that differ from most, with their names."""
    (common, _), *others = Counter(intervals.values()).most_common() or [(1, 0)]
    if common == 1 and not others:
        return ""
    named = [
        f"{', '.join(label for label, each in intervals.items() if each == every)} every {every}" for every, _ in others
    ]
    most = "round" if common == 1 else f"{common}{NBSP}rounds"
    return f", evaluated every {most}" + f" ({'; '.join(named)})" * bool(named)


def markdown(results: Results, picture: str = "", data: str = "") -> str:
    """A page; `picture` is the path of the experiment's curves, `data` what figures are of, if that is to be said."""
    experiment = results.experiment
    lines = [f"# {experiment.paper}, {experiment.table}", "", f"{experiment.title}.", ""]
    for name in results.measures:
        measure = measure_named(name)
        unit, on = ", in %" if measure.percent else "", f", {data}" if data else ""
        heads, *rows = table(results, name)
        lines += [f"**{measure.text}{unit}{on}**", "", markdown_table(heads, rows)]
        if _cut_beside_paper(results, name):
            lines += ["What the paper has is after all rounds, also beside runs that were cut.", ""]
    lines += [f"* **{found}** {reason}" for found, reason in sentences(results)]
    if picture:
        lines += ["", f"![Test accuracy over rounds]({picture})", "", _caption(results, data)]
    lines += ["", f"Runs: {'; '.join(conditions(results))}.{_machine(results)}", ""]
    lines += [f"* {remark}" for remark in experiment.remarks]
    lines += ["", "## Algorithms", "", _algorithms(results)]
    lines += [*tuned, ""] if (tuned := _tuning(results)) else []
    lines += ["## Settings", "", "Of the experiment; which rounds and seeds were run is said above.", ""]
    return "\n".join([*lines, _settings(results)])


def _cut_beside_paper(results: Results, name: str) -> bool:
    """Whether runs with fewer rounds stand beside the paper's figures; rounds to a target do not depend on them."""
    rows = [row for row in results.table(name) if row.paper is not None and not measure_named(name).at_least]
    return any(
        results.rounds_of(row.case).get(row.label, math.inf) < results.experiment.rounds(row.case) for row in rows
    )


def _machine(results: Results) -> str:
    """What they ran on, where it is known; of all but the commonest environment with their names."""
    ran: dict[str, dict[str, list[str]]] = {}
    for case, records in results.records.items():
        for label, (first, *_) in itertools.groupby(records, key=lambda record: record.label):
            if "device" in first.environment:
                ran.setdefault(_environment(first), {}).setdefault(case, []).append(label)
    if not ran:
        return ""
    common, *others = sorted(ran, key=lambda each: -sum(map(len, ran[each].values())))
    texts = [common]
    for environment in others:
        labels = {case: ", ".join(found) for case, found in ran[environment].items()}
        texts.append(f"{environment}: {'; '.join(_by_case(labels, results.experiment.cases))}")
    return " " + " ".join(f"On {text}." for text in texts)


def _environment(record: Record) -> str:
    device, torch = record.environment["device"], record.environment["torch"]
    return f"{'a CPU' if device == 'cpu' else device}, torch {torch.partition('+')[0]}"


def _caption(results: Results, data: str) -> str:
    seeds = max(results.seeds(case) for case in results.records)
    text = "Test accuracy over rounds" + (f", {data}" if data else "")
    text += ", mean over seeds; bands reach from the lowest to the highest" if seeds > 1 else ""
    rounds = window_rounds(results)
    text += f"; a point is the mean over {rounds}{NBSP}rounds" if rounds > 1 else ""
    return f"{text}. A dotted line is a run that failed." if _some_failed(results) else f"{text}."


def _some_failed(results: Results) -> bool:
    return any(record.failed for records in results.records.values() for record in records)


def _algorithms(results: Results) -> str:
    rows = []
    for entry in results.experiment.entries:
        texts = {case: each.algorithms.get(entry.label) for case, each in results.chosen.items()}
        as_run = {case: f"`{text}`" for case, text in texts.items() if text}
        if as_run:
            rows.append([entry.label, "<br>".join(_by_case(as_run, results.chosen)), entry.source, entry.note])
    return markdown_table(["algorithm", "as it was run", "source", "note"], rows)


def _tuning(results: Results) -> list[str]:
    """Out of how many configurations those that were run were chosen."""
    found = {}
    for case, chosen in results.chosen.items():
        if chosen.tried:
            counts = Counter(each.label for each in chosen.tried).values()
            many = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)}–{max(counts)}"
            found[case] = f"each the best of {many} configurations on held-out training samples."
    return [f"* {line}" for line in _by_case(found, results.chosen)]


def _by_case(texts: Mapping[str, str], among: Collection[str]) -> list[str]:
    """A line for every text, after the cases that have it; without them where these are all there are."""
    cases: dict[str, list[str]] = {}
    for case, text in texts.items():
        cases.setdefault(text, []).append(case)
    return [text if len(each) == len(among) else f"{', '.join(each)}: {text}" for text, each in cases.items()]


def _settings(results: Results) -> str:
    experiment = results.experiment
    given = {**experiment.settings, "seeds": experiment.seeds}
    rows = [[f"`{key}`", f"`{one.value}`", one.source, one.note] for key, one in given.items()]
    for case, own in experiment.cases.items():
        rows += [
            [f"`{key}`", f"`{one.value}`", one.source, f"{case}{'; ' if one.note else ''}{one.note}"]
            for key, one in own.items()
        ]
    return markdown_table(["setting", "value", "source", "note"], rows)
