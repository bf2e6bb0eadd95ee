"""Writes the pages of experiments whose results are stored, their curves, that of all algorithms, and the front page.

    make reproduction-report

`results/NAME` has what `undrift reproduce NAME` wrote: the histories of all runs, and how they were made.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from undrift.recommendation import page as all_algorithms
from undrift.reporting.export import markdown_table
from undrift.reproduce import curves, page, stored
from undrift.reproduce.experiment import Claim, Experiment, find, names
from undrift.reproduce.measures import measure_named
from undrift.reproduce.pairs import Pair, pairs
from undrift.reproduce.results import Results
from undrift.reproduce.verdicts import Outcome, verdicts
from undrift.statistics.seeds import paired

HOME = Path(__file__).parent
RESULTS = HOME / "results"
END = "<!-- end -->\n"
FIGURE = re.compile(r"\{([^{}]+)\}")
ABOUT = tomllib.loads((HOME / "papers.toml").read_text("utf-8"))
PAPERS: dict[str, dict[str, Any]] = ABOUT["papers"]  # by the name of their page


def pages() -> dict[Path, str]:
    """Paths and contents."""
    there = results()
    found = {HOME / f"{each.experiment.name}.md": experiment_page(each) for each in there}
    found |= {HOME / f"{name}.md": paper_page(name, there) for name in PAPERS}
    found[HOME / "grand.md"] = all_algorithms.markdown()
    return found | {HOME / "index.md": front_page(there)}


def front_page(there: Sequence[Results]) -> str:
    """The page as it is, with what is computed between comments."""
    text = (HOME / "index.md").read_text("utf-8")
    parts = {"answers": answers(there), "verdicts": summary(there), "claims": claims(there), "winners": winners(there)}
    for name, computed in parts.items():
        before, begin, rest = text.partition(f"<!-- table: {name} -->\n")
        text = f"{before}{begin}\n{computed}\n{END}{rest.partition(END)[2]}"
    return text


def answers(there: Sequence[Results]) -> str:
    """A sentence or two on every paper."""
    return "".join(
        f"* **[{about['paper']}]({name}.md): {about['answer']}** {filled(about['because'], there)}\n"
        for name, about in PAPERS.items()
    )


def filled(text: str, there: Sequence[Results]) -> str:
    """Prose with its figures, which stand in braces: ``{experiment | case | algorithm | measure}``."""
    return FIGURE.sub(lambda found: figure(found[1], there), text)


def figure(asked: str, there: Sequence[Results]) -> str:
    """The mean over seeds, or for the measure ``rounds`` how many were run.

    Of ``A - B``, how much larger the first is after the rounds that both have, and of ``interval of A - B`` the 95 %
    interval over seeds; of ``spread of A``, the standard deviation; of ``paper A``, what the paper prints. Where the
    experiment has no cases, none is given.
    """
    name, *cases, label, measure = (part.strip() for part in asked.split("|"))
    of, case = next(each for each in there if each.experiment.name == name), cases[0] if cases else ""
    rounds = of.rounds_of(case)
    if measure == "rounds":
        return page.rounds_text(rounds[label], rounds[label], 0)
    kind = measure_named(measure)
    if label.startswith("paper "):
        printed = next(each.values for each in of.experiment.figures if each.measure == measure)
        return f"{printed[case][label.removeprefix('paper ')].value:.{kind.digits}f}"
    if label.startswith("spread of "):
        return f"{of.values(case, label.removeprefix('spread of '), measure).spread:.{kind.digits}f}"
    labels = label.removeprefix("interval of ").split(" - ")
    count = None if kind.at_least else min(rounds[each] for each in labels)
    runs = [of.values(case, each, measure, count).values for each in labels]
    seeds = set.intersection(*({*each} for each in runs))
    first, *second = (sum(each[seed] for seed in seeds) / len(seeds) for each in runs)
    digits = min(kind.digits, 1)
    if label.startswith("interval of "):
        low, high = paired(*([each[seed] for seed in sorted(seeds)] for each in runs)).interval
        return " to ".join(f"{round(each, digits) + 0.0:+.{digits}f}" for each in (low, high))
    return f"{round(first - sum(second), digits) + 0.0:.{digits}f}"  # without the sign of a zero


def experiment_page(of: Results) -> str:
    home = next(name for name, about in PAPERS.items() if about["paper"] == of.experiment.paper)
    others = (
        f"All claims of the paper, and what differed: [{of.experiment.paper}]({home}.md); "
        "[how verdicts are made](index.md#how-verdicts-are-made). "
        f"Run it: `undrift reproduce {of.experiment.name}`; the runs shown here are in "
        f"`docs/reproduction/results/{of.experiment.folder}`."
    )
    data = ", ".join(ABOUT["copies"][name] for name in of.experiment.data_sets if name in ABOUT["copies"])
    return f"{page.markdown(of, picture(of), data).rstrip()}\n\n{others}\n"


def picture(of: Results) -> str:
    """The file of an experiment's curves; experiments that look at the same runs share it."""
    return f"{of.experiment.folder}.svg"


def pictures() -> dict[Path, bytes]:
    """Paths and contents."""
    own = [each for each in results() if not each.experiment.runs_of]
    drawn = {HOME / picture(each): curves.svg(each) for each in own}
    return drawn | {HOME / all_algorithms.DIAGRAM: all_algorithms.diagram()}


def results() -> list[Results]:
    """Of all experiments whose runs are stored."""
    known = [experiment for experiment in map(find, names()) if (RESULTS / experiment.folder).exists()]
    return [stored.read(RESULTS / experiment.folder, experiment) for experiment in known]


def of_paper(name: str) -> list[Experiment]:
    return [each for each in map(find, names()) if each.paper == PAPERS[name]["paper"]]


def summary(there: Sequence[Results]) -> str:
    """How many claims of each paper have which verdict."""
    outcomes = [str(each) for each in Outcome if each is not Outcome.UNDECIDED]
    rows = []
    for name, about in PAPERS.items():
        claims = sum(len(each.claims) for each in of_paper(name))
        own = [each for each in there if each.experiment.paper == about["paper"]]
        found = [(one, each) for each in own for one in verdicts(each) if one.outcome is not Outcome.UNDECIDED]
        counts = [sum(one.outcome == outcome for one, _ in found) for outcome in outcomes]
        cut = sum("of" in rounds_of_claim(one.claim, each) for one, each in found)
        no_data = sum(len(each.claims) for each in of_paper(name) if missing_data(each))
        left = claims - len(found) - no_data
        rows.append([f"[{about['paper']}]({name}.md)", *map(str, (claims, *counts, cut, left, no_data))])
    heads = ["paper", "claims", *outcomes, "of these after fewer rounds", "not decided", "not testable here"]
    return markdown_table(heads, rows)


def claims(there: Sequence[Results]) -> str:
    """A table for every paper: each claim of what was run, and which experiments found what of it."""
    return "\n".join(
        f"**[{about['paper']}]({name}.md)**\n\n{_claims([of for of in there if of.experiment.paper == about['paper']])}"
        for name, about in PAPERS.items()
    )


def _claims(run: Sequence[Results]) -> str:
    rows: dict[str, dict[Outcome, list[str]]] = {}
    for of in run:
        for one in verdicts(of):
            link = f"[{of.experiment.table}]({of.experiment.name}.md)"
            rows.setdefault(one.claim.text, {}).setdefault(one.outcome, []).append(link)
    cells = [[claim, *("<br>".join(found.get(outcome, [])) for outcome in Outcome)] for claim, found in rows.items()]
    return markdown_table(["claim", *map(str, Outcome)], cells)


def rounds_of_claim(claim: Claim, of: Results) -> str:
    """After which its algorithms were compared: the fewest and the most of its cases and algorithms."""
    compared = [_after(claim, of, pair) for pair in pairs(of, claim)]
    wanted = max(of.experiment.rounds(case) for case in claim.cases)
    return page.rounds_text(min(compared), max(compared), wanted) if compared else "–"


def _after(claim: Claim, of: Results, pair: Pair) -> int:
    """The rounds that both have; where a target is to be reached, or one failed, those of the longer one."""
    there = claim.than_case or pair.case
    both = [of.rounds_of(case).get(label) for case, label in ((pair.case, claim.better), (there, pair.other))]
    known = [count for count in both if count is not None] or [of.rounds(pair.case)]
    return max(known) if measure_named(claim.measure).at_least else min(known)


def seeds_of_claim(claim: Claim, of: Results) -> str:
    """The fewest of an algorithm that it is about, and the most."""
    known = [
        count
        for pair in pairs(of, claim)
        for case, label in ((pair.case, claim.better), (claim.than_case or pair.case, pair.other))
        for count in [of.seeds_of(case)[label]]
    ]
    return page.rounds_text(min(known), max(known), 0) if known else "–"


def winners(there: Sequence[Results]) -> str:
    """The best in every measure that the paper prints, here and there; cases that have the same in a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for each in there:
        of = each.experiment
        for name, values in [(one.measure, one.values) for one in of.figures if one.measure != "best round"]:
            for case in [case for case in each.records if values.get(case)]:
                run = f"{len(each.labels(case))} of {len(of.entries)}"
                link, text = f"[{of.paper}, {of.table}]({of.name}.md)", measure_named(name).text
                rows.setdefault((link, text, *best(each, name, case), run), []).append(case)
    cells = [[link, text, ", ".join(cases) or "–", *rest] for (link, text, *rest), cases in rows.items()]
    heads = ["experiment", "measure", "case", "rounds", "best here", "best of the same in the paper", "algorithms run"]
    return markdown_table(heads, cells)


def best(of: Results, name: str, case: str) -> tuple[str, str, str]:
    """After how many rounds, the best here and in the paper, of those that were run.

    The rounds are those that all have whom the paper compares, but where a target is to be reached. Where it is too
    early to judge any of them, or one that has not reached a target in all seeds may do so first, nobody is the best.
    """
    measure, rounds = measure_named(name), of.rounds_of(case)
    paper = {row.label: row.paper.value for row in of.table(name) if row.case == case and row.paper is not None}
    compared = [rounds[label] for label in paper if label in rounds] or list(rounds.values()) or [of.rounds(case)]
    count = max(compared) if measure.at_least or measure.needs_predictions else min(compared)
    long_enough = [label for label in rounds if measure.at_least or rounds[label] >= count]
    found = {label: of.values(case, label, name, count) for label in long_enough}
    here = {
        label: fmean([*each.values.values(), *each.at_least.values()] or [math.nan]) for label, each in found.items()
    }
    here = {label: value for label, value in here.items() if math.isfinite(value)}
    choose = max if measure.higher_is_better else min
    first = choose(here, key=here.__getitem__, default="")
    if not first or found[first].at_least or all(of.too_early(name, case, label) for label in here):
        first = "–"
    wanted = of.experiment.rounds(case)
    return (
        page.rounds_text(min(compared), max(compared) if measure.at_least else min(compared), wanted),
        first,
        choose(paper, key=paper.__getitem__, default="–"),
    )


def paper_page(name: str, there: Sequence[Results]) -> str:
    """Verdicts, what differed, and what was not run and why."""
    experiments, run = of_paper(name), {each.experiment.name: each for each in there}
    paper = PAPERS[name]["paper"]
    judged = [
        [
            f"[{each.table}]({each.name}.md)",
            one.claim.text,
            f"**{one.outcome}**",
            rounds_of_claim(one.claim, run[each.name]),
            seeds_of_claim(one.claim, run[each.name]),
            one.reason,
        ]
        for each in experiments
        if each.name in run
        for one in verdicts(run[each.name])
    ]
    lines = [f"# {paper}", "", PAPERS[name]["reference"], ""]
    lines += ["[How verdicts are made](index.md#how-verdicts-are-made)", "", "## Claims", ""]
    lines += [markdown_table(["experiment", "claim", "verdict", "rounds", "seeds", "why"], judged)]
    lines += ["## What differed", "", *(f"* {filled(each, there)}" for each in PAPERS[name]["differences"]), ""]
    left = [
        [
            each.table,
            "<br>".join(claim.text for claim in each.claims) or "–",
            reason(each),
            f"`undrift reproduce {each.name}`",
        ]
        for each in experiments
        if each.name not in run
    ]
    lines += ["## Not run", "", markdown_table(["experiment", "claims", "why", "command"], left)] if left else []
    return "\n".join(lines)


def reason(of: Experiment) -> str:
    """Why an experiment was not run."""
    missing = missing_data(of)
    return f"not testable here, data not at hand: {', '.join(missing)}" if missing else "not run yet"


def missing_data(of: Experiment) -> list[str]:
    """Data sets of an experiment that were not at hand."""
    return [name for name in of.data_sets if name in ABOUT["not_at_hand"]]


def main() -> None:
    for path, text in pages().items():
        path.write_text(text, "utf-8")
    for path, drawing in pictures().items():
        path.write_bytes(drawing)


if __name__ == "__main__":
    main()
