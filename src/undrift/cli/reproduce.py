"""`undrift reproduce`: experiments of papers, beside their figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undrift.cli.console import print_json, print_markup, print_paths, print_table
from undrift.cli.help import examples
from undrift.cli.options import AsJson
from undrift.core.log import notice

if TYPE_CHECKING:
    from undrift.reproduce.results import Results


def register(app: typer.Typer) -> None:
    epilog = examples(
        "undrift reproduce",
        "undrift reproduce feddpc-table2 --fast",
        "undrift reproduce fedhbm-table3 --only FedAvg,FedHBM,non-IID --seeds 3",
    )
    app.command(epilog=epilog)(reproduce)


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", hidden=True)] = None,
    fast: Annotated[bool, typer.Option("--fast", help="The short version: some minutes on two cores.")] = False,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="How many seeds, instead of the experiment's.")] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", help="Rounds, instead of the experiment's.")] = None,
    only: Annotated[str, typer.Option(metavar="LIST", help="Some of its algorithms or cases.")] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where runs and results go [dim](reproduction/NAME)[/].")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment of a paper and show its figures beside the paper's.

    Without NAME, the experiments are listed, with their costs on this machine.

    Runs that are in --out already are not repeated: the same command continues what was interrupted, and what --only
    names is added to what is there.
    """
    if name is None:
        options = {"--seeds": seeds, "--rounds": rounds, "--only": only or None, "--out": out}
        if given := [option for option, value in options.items() if value is not None]:
            raise ValueError(f"{', '.join(given)}: of which experiment? Give its NAME; undrift reproduce lists them")
        _list(fast, as_json)
        return
    from undrift.reproduce import page, stored
    from undrift.reproduce.experiment import find
    from undrift.reproduce.plan import plan
    from undrift.reproduce.run import run
    from undrift.storage import files

    experiment = find(name)
    chosen = plan(experiment, fast=fast, seeds=seeds, rounds=rounds, only=only)
    home = out or Path("reproduction") / (experiment.folder + ("-fast" if fast else ""))
    written = home / f"{name}.md"
    stored.check_home(home, experiment, fast=fast)
    try:
        results = run(chosen, home)
    except KeyboardInterrupt as interruption:
        interruption.args = (f"interrupted; the same command continues in {home}",)
        raise
    stored.write(results, home)
    results = stored.read(home, experiment)  # with those of other algorithms and cases that were run before
    files.replace(written, page.markdown(results, _draw(results, home)).encode())
    if as_json:
        print_json(_plain(results))
        return
    _show(results)
    print_paths(runs=home, page=written)


def _draw(results: Results, home: Path) -> str:
    """The file of the curves in the folder; none where matplotlib is missing, since the runs took long."""
    from undrift.core.extras import MissingExtraError
    from undrift.reproduce import curves
    from undrift.storage import files

    picture = f"{results.experiment.folder}.svg"
    try:
        files.replace(home / picture, curves.svg(results))
    except MissingExtraError as error:
        notice(f"no curves on the page: {error}")
        return ""
    return picture


def _show(results: Results) -> None:
    from rich.markup import escape

    from undrift.reproduce import page
    from undrift.reproduce.measures import measure_named

    experiment = results.experiment
    print_markup(f"\n[bold]{escape(f'{experiment.paper}, {experiment.table}')}[/]: {escape(experiment.title)}\n")
    for name in results.measures:
        measure = measure_named(name)
        print_markup(f"[bold]{escape(measure.text)}[/]{', in %' if measure.percent else ''}")
        heads, *rows = page.table(results, name)
        print_table(heads, rows, numbers=range(heads.index("algorithm") + 1, len(heads)))
        print()
    for found, reason in page.sentences(results):
        print_markup(f"[bold]{escape(found)}[/] [dim]{escape(reason)}[/]")
    print_markup(f"[dim]{escape('; '.join(page.conditions(results)))}[/]\n")


def _plain(results: Results) -> dict[str, object]:
    from undrift.reproduce.verdicts import verdicts

    return {
        "experiment": results.experiment.name,
        "fast": results.fast,
        "figures": {
            measure: [
                {
                    "case": row.case,
                    "algorithm": row.label,
                    "paper": None if row.paper is None else row.paper.value,
                    "rounds": results.rounds_of(row.case).get(row.label),
                    "seeds": list(row.here.values),  # of the values
                    "values": list(row.here.values.values()),
                    "runs": row.here.runs,
                    "failed": row.here.failed,
                    "not_reached": len(row.here.at_least),
                }
                for row in results.table(measure)
            ]
            for measure in results.experiment.measures
        },
        "verdicts": [
            {"claim": each.claim.text, "verdict": each.outcome, "reason": each.reason} for each in verdicts(results)
        ],
    }


def _list(fast: bool, as_json: bool) -> None:
    from undrift.data import is_local
    from undrift.reproduce.cost import cost
    from undrift.reproduce.experiment import find, names
    from undrift.reproduce.plan import plan

    notice("timing a few steps of every model on this machine, about a minute on two cores")
    rows = []
    for name in names():
        experiment = find(name)
        rows.append((experiment, cost(plan(experiment, fast=fast and bool(experiment.fast)))))
    if as_json:
        about = [{"name": each.name, "paper": each.paper, "table": each.table} for each, _ in rows]
        print_json([one | found._asdict() for one, (_, found) in zip(about, rows, strict=True)])
        return
    shown = [
        [
            each.name,
            f"{each.paper}, {each.table}" + (f" (runs of {each.runs_of})" if each.runs_of else ""),
            f"{found.client_steps:.1e}".replace("e+0", "e"),
            _duration(found.seconds),
            ", ".join(data for data in each.data_sets if not is_local(data)),
        ]
        for each, found in rows
    ]
    heads = ["Name", "What", "Client steps", "Time here", "Data to get first"]
    columns = None if any(row[-1] for row in shown) else -1
    print_table(heads[:columns], [row[:columns] for row in shown], numbers=range(2, 4))
    print_markup(
        "\n[dim]Times are estimates from the gradients of every algorithm and a few steps on this machine. "
        "Data are fetched by undrift data get. --fast has short versions.[/]"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"
