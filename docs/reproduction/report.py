"""Writes the pages of experiments whose results are stored, their curves, that of all algorithms, and the front page.

    make reproduction-report

`results/NAME` has what `undrift reproduce NAME` wrote: the histories of all runs, and how they were made.
"""

from __future__ import annotations

from pathlib import Path

from undrift.recommendation import page as all_algorithms
from undrift.reproduce import curves, page, stored
from undrift.reproduce.experiment import find, names
from undrift.reproduce.results import Results
from undrift.reproduce.verdicts import verdicts

HOME = Path(__file__).parent
RESULTS = HOME / "results"
BEGIN, END = "<!-- table: claims -->\n", "<!-- end -->\n"


def pages() -> dict[Path, str]:
    """Paths and contents."""
    found = {HOME / f"{each.experiment.name}.md": page.markdown(each, picture(each)) for each in results()}
    front = HOME / "index.md"
    before, _, rest = front.read_text("utf-8").partition(BEGIN)
    found[HOME / "grand.md"] = all_algorithms.markdown()
    return found | {front: f"{before}{BEGIN}\n{claims()}\n{END}{rest.partition(END)[2]}"}


def picture(of: Results) -> str:
    """The file of an experiment's curves; experiments that look at the same runs share it."""
    return f"{of.experiment.folder}.svg"


def pictures() -> dict[Path, bytes]:
    """Paths and contents."""
    own = [each for each in results() if not each.experiment.runs_of]
    return {HOME / picture(each): curves.svg(each) for each in own}


def results() -> list[Results]:
    """Of all experiments whose runs are stored."""
    known = [experiment for experiment in map(find, names()) if (RESULTS / experiment.folder).exists()]
    return [stored.read(RESULTS / experiment.folder, experiment) for experiment in known]


def claims() -> str:
    """A row per claim, those of experiments that were not run last."""
    rows, there = [["paper", "claim", "verdict", "why"], ["---"] * 4], results()
    for each in there:
        of = each.experiment
        for found in verdicts(each):
            named = f"[{of.paper}, {of.table}]({of.name}.md)"
            rows.append([named, found.claim.text, f"**{found.outcome}**", found.reason])
    for of in map(find, sorted(set(names()) - {each.experiment.name for each in there})):
        command = f"`undrift reproduce {of.name}`"
        rows += [[f"{of.paper}, {of.table}", claim.text, "not run yet", command] for claim in of.claims]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    for path, text in pages().items():
        path.write_text(text, "utf-8")
    for path, drawing in pictures().items():
        path.write_bytes(drawing)


if __name__ == "__main__":
    main()
