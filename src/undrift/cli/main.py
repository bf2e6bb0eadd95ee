"""The command line. Commands import what they need when they are called, so that help does not wait for torch."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import click
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from undrift.cli import bench as bench_cli
from undrift.cli import data as data_cli

if TYPE_CHECKING:
    from undrift.cli.config import Config, Recipe
    from undrift.profile import Profile
    from undrift.reporting.summary import Column
    from undrift.simulation.compare import Comparison
    from undrift.simulation.run import Run

FAILED, USAGE, INTERRUPTED = 1, 2, 130
_WIDE = 100  # columns of a terminal that has room for more than the essentials


class Commands(TyperGroup):
    """Turns errors into one line on stderr and an exit code; what is nobody's mistake but ours keeps its traceback."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        try:
            code = super().main(*args, **options | {"standalone_mode": False})
        except click.ClickException as error:
            code = _complain(error.format_message().rstrip("."), USAGE)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            print(f"undrift: {interruption or 'interrupted'}", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except (ValueError, TypeError, OSError) as error:
            raise typer.Exit(_complain(error, USAGE)) from None


def _complain(error: object, code: int) -> int:
    print(f"undrift: error: {' '.join(str(error).split())}", file=sys.stderr)
    return code


app = typer.Typer(
    name="undrift",
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_cli.app, name="data")


def main() -> None:
    # Threads that wait for one another spin for a moment only, then sleep: on a busy machine a run of small models is
    # several times faster than with the usual long spin, on a quiet one than with none.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal that has no ± must not end a run
    app(prog_name="undrift")


class Topic(StrEnum):
    ALGORITHMS = "algorithms"
    DATASETS = "datasets"
    MODELS = "models"
    PARTITIONS = "partitions"


# Arguments are explained by the command's text: with recent versions of click their own help is not shown.
ConfigFile = Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", hidden=True)]
Data = Annotated[str | None, typer.Option("--data", "-d", metavar="NAME", help="Data set [dim](digits)[/].")]
Model = Annotated[str | None, typer.Option("--model", "-m", metavar="NAME", help="Model [dim](cnn)[/].")]
Partition = Annotated[
    str | None, typer.Option(metavar="SCHEME", help="How samples are split, as in classes:2 or dirichlet:0.1.")
]
Clients = Annotated[int | None, typer.Option(metavar="N", help="How many clients share the data.")]
Rounds = Annotated[int | None, typer.Option(metavar="N", help="Rounds [dim](100)[/].")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any other setting, as in local.lr=0.05; repeatable."),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Where everything goes [dim](runs/...)[/].")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

_KEYS = {
    "data": "name, partition, clients, test_share, normalise",
    "model": "name",
    "local": "lr, lr_decay, epochs, steps, batch_size, momentum, weight_decay, clip, optimizer",
    "server": "lr, weighting",
    "run": "rounds, cohort, seed, eval_every, target, device, dtype, engine, precision, buffers, augment",
    "algorithm": "name, and its options",
}


def _epilog(*example: str, settings: bool = False) -> str:
    """An example and, where they matter, the settings; typer makes a line of every paragraph."""
    keys = [f"[bold]\\[{section}][/] {keys}" for section, keys in _KEYS.items()] if settings else []
    head = ["Settings, in CONFIG.toml by section, or with --set:", *keys, ""] if settings else []
    return "\n\n".join([*head, "Example:", *(f"[bold]{escape(line)}[/]" for line in example)])


@app.callback(invoke_without_command=True)
def undrift(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Federated learning that holds together when clients differ."""
    if version:
        from undrift import __version__

        print(f"undrift {__version__}")
    elif ctx.invoked_subcommand is None:
        ctx.get_help()


@app.command(epilog=_epilog("undrift run -a fedhbm -m mlp --rounds 60 --set local.lr=0.3", settings=True))
def run(
    config: ConfigFile = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", "-a", metavar="NAME", help="As in fedhbm or 'fedprox(mu=0.1)'.")
    ] = None,
    data: Data = None,
    model: Model = None,
    partition: Partition = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(metavar="S", help="Seed of everything random [dim](0)[/].")] = None,
    settings: Settings = None,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time of a round goes.")] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Run one experiment; with no argument, the built-in example.

    The example compares FedAvg with FedHBM on digits; every client sees two.

    CONFIG.toml holds settings, which options override. A data set brings its usual ones.
    """
    given = (config, algorithm, data, model, partition, clients, rounds, seed, settings, profile or None)
    if all(value is None for value in given):
        _example(out, as_json)
        return
    from undrift.cli import config as configuration
    from undrift.simulation.simulate import go_on, start

    chosen = _chosen(config, data, model, partition, clients, rounds, settings, algorithm, seed)
    recipe = configuration.recipe(chosen)
    label, instance = configuration.labelled(chosen.get("algorithm", {}))
    federation = recipe.federation(recipe.options.seed)
    home = out or _free(f"{instance.name()}-{recipe.data['name']}")
    watching = _profile(home, recipe.options.rounds) if profile else None

    def train() -> Run:
        run = start(instance, recipe.model, federation, None, None, recipe.augment, recipe.options, home, label)
        with watching or nullcontext():
            go_on([run], [watching] if watching else [], "raise")
        return run

    _train(train, as_json, watching)
    _say_usual(recipe, as_json)


@app.command(
    epilog=_epilog(
        "undrift compare -a fedavg,fedhbm --partition dirichlet:0.1 --seeds 5 --set local.lr=0.1",
        settings=True,
    )
)
def compare(
    config: ConfigFile = None,
    algorithms: Annotated[
        str | None,
        typer.Option("--algorithms", "-a", metavar="LIST", help="As in fedavg,fedhbm or 'fedprox(mu=0.1),fedavg'."),
    ] = None,
    data: Data = None,
    model: Model = None,
    partition: Partition = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seeds: Annotated[
        str, typer.Option(metavar="N", help="How many seeds [dim](1)[/], or which: 0,1,7.", show_default=False)
    ] = "1",
    rates: Annotated[
        str | None, typer.Option("--lr", metavar="LIST", help="Local learning rates, as in 0.01,0.1: a row for each.")
    ] = None,
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare algorithms on the same data and the same seeds.

    The first of them is what the others are measured against.

    CONFIG.toml holds settings, which options override. A data set brings its usual ones.

    Runs that --out holds already are not repeated.
    """
    from undrift import compare as compare_runs
    from undrift.cli import config as configuration

    chosen = _chosen(config, data, model, partition, clients, rounds, settings)
    recipe = configuration.recipe(chosen)
    named = [configuration.labelled(each) for each in configuration.algorithm_sections(algorithms or "")]
    if not named:
        raise ValueError("compare needs algorithms, as in: undrift compare -a fedavg,fedhbm")
    if len(dict(named)) < len(named):
        raise ValueError(f"algorithms must differ, got {', '.join(label for label, _ in named)}")
    options = asdict(recipe.options)
    first = options.pop("seed")
    if rates is not None:
        options["lr"] = _rates(rates)
    home = out or _free(f"compare-{recipe.data['name']}")
    try:
        comparison = compare_runs(
            dict(named),
            recipe.model,
            recipe.federation,
            seeds=_seeds(seeds, first),
            augment=recipe.augment,
            out=home,
            **options,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; go on with the same command and --out {home}") from None
    _show_comparison(comparison, home, f"{recipe.data['name']}: {', '.join(label for label, _ in named)}", as_json)
    _say_usual(recipe, as_json)


@app.command(epilog=_epilog("undrift resume runs/fedhbm-digits-1 --rounds 200"))
def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", hidden=True)],
    rounds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Rounds in total, if others.")] = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped, or add rounds to it.

    DIR is its directory. The numbers are those of a run that never stopped.
    """
    from undrift import resume as go_on

    _train(lambda: go_on(directory, rounds), as_json)


@app.command(epilog=_epilog("undrift report runs/fedavg-digits-1 runs/fedhbm-digits-1 -o both.html"))
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run directories, or such that hold some.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="The page [dim](DIR/report.html)[/].")
    ] = None,
) -> None:
    """Put runs into one HTML page.

    Every DIR is a run directory or holds some.

    The page needs no other file and no network.
    """
    from undrift import Comparison
    from undrift.reporting.summary import headline

    comparison = Comparison.from_directories(directories)
    home = directories[0] if len(directories) == 1 else Path()
    page = comparison.report(output or home / "report.html", title=", ".join(path.name for path in directories))
    _say(escape(headline(comparison.records, comparison.target)))
    _say_where(report=page)


@app.command("list", epilog=_epilog("undrift list algorithms"))
def list_(
    topic: Annotated[Topic, typer.Argument(metavar="|".join(Topic), hidden=True)], as_json: AsJson = False
) -> None:
    """List algorithms, data sets, models or partitions."""
    rows = {
        Topic.ALGORITHMS: _algorithms,
        Topic.DATASETS: _datasets,
        Topic.MODELS: _models,
        Topic.PARTITIONS: _partitions,
    }[topic]()
    if as_json:
        _print_json(rows)
        return
    if topic is Topic.ALGORITHMS:
        _print_algorithms(rows)
        return
    headings = {"name": "Name", "here": "Here", "about": "About"}
    _print_table([headings[key] for key in rows[0]], [[_cell(value) for value in row.values()] for row in rows])
    if topic is Topic.PARTITIONS:
        _say("\n[dim]A number follows a colon, a least number of samples a comma: classes:2, dirichlet:0.1,min=10[/]")


@app.command(epilog=_epilog("undrift explain fedhbm"))
def explain(name: Annotated[str, typer.Argument(metavar="NAME", hidden=True)]) -> None:
    """Explain an algorithm: its idea, its paper, what it keeps and sends."""
    from undrift.explain import flowing, page

    found = page(name)
    _say(f"[bold]{found.label}[/]\n{escape(found.title)}")
    for heading, text in found.sections.items():
        _say(f"\n[bold]{heading}[/]")
        if heading == "Equations":
            _print_equations(text)
        else:
            _console().print(Padding(Text(flowing(text)), (0, 0, 0, 2), expand=False))
    _say("\n[bold]Options[/]")
    _print_pairs({name: repr(default) for name, default in found.options.items()})
    _console().print(Padding(found.weighted, (0, 0, 0, 2), expand=False))
    _say("\n[bold]Cost[/] [dim]measured, in sizes of a model of four equal layers[/]")
    _print_pairs(found.costs)


app.command(cls=bench_cli.BenchCommand, epilog=_epilog("undrift bench --work W3 --peers fluke,pfl"))(bench_cli.bench)


# Settings


def _chosen(
    config: Path | None,
    data: str | None,
    model: str | None,
    partition: str | None,
    clients: int | None,
    rounds: int | None,
    settings: list[str] | None,
    algorithm: str | None = None,
    seed: int | None = None,
) -> Config:
    """The file, then the options, then what is --set."""
    from undrift.cli import config as configuration

    chosen = configuration.read(config) if config else {}
    if algorithm is not None:
        chosen |= {"algorithm": configuration.algorithm_section(algorithm)}
    short = {
        ("data", "name"): data,
        ("data", "partition"): partition,
        ("data", "clients"): clients,
        ("model", "name"): model,
        ("run", "rounds"): rounds,
        ("run", "seed"): seed,
    }
    for (section, key), value in short.items():
        if value is not None:
            chosen = configuration.with_value(chosen, section, key, value)
    for text in settings or ():
        chosen = configuration.with_value(chosen, *configuration.setting(text))
    return chosen


def _seeds(text: str, first: int) -> list[int]:
    """``5``: so many from the first; ``0,1,7``: these."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds must be a count or a list such as 0,1,7, got {text!r}") from None
    if len(numbers) > 1:
        return numbers
    if numbers[0] < 1:
        raise ValueError(f"--seeds must be at least 1, got {text}")
    return list(range(first, first + numbers[0]))


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--lr must be a number or a list such as 0.01,0.1, got {text!r}") from None


def _free(name: str) -> Path:
    """The first directory runs/NAME-N that is not there."""
    return next(path for path in (Path("runs") / f"{name}-{n}" for n in count(1)) if not path.exists())


# Results


def _example(out: Path | None, as_json: bool) -> None:
    import torch

    from undrift.cli import example

    torch.set_num_threads(1)  # threads would mostly wait for each other, the matrices being small
    home = out or _free("demo")
    if not as_json:
        _say(example.ABOUT)
    try:
        comparison = example.play(home)
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None
    _show_comparison(comparison, home, "FedAvg and FedHBM on handwritten digits", as_json)


def _show_comparison(comparison: Comparison, home: Path, title: str, as_json: bool) -> None:
    from undrift.reporting.summary import columns, headline

    page = comparison.report(home / "report.html", title)
    sentence = headline(comparison.records, comparison.target)
    table = comparison.table()
    if as_json:
        rows = json.loads(table.to_json(orient="records", double_precision=15))
        places = {"out": str(home), "report": str(page)}
        _print_json({"headline": sentence, "target": table.attrs["target"], "table": rows, **places})
    else:
        shown = _fitting(columns(comparison.records, comparison.target))
        cells = [[Text(text, style="bold" if row in c.best else "") for row, text in enumerate(c.cells)] for c in shown]
        print()
        _print_table([_broken(c.heading) for c in shown], zip(*cells, strict=True), numbers=range(1, len(shown)))
        _say(f"\n{escape(sentence)}\n")
        _say_where(runs=home, report=page)
    if (table["diverged"] == table["runs"]).all():
        raise typer.Exit(_complain("every run diverged", FAILED))


def _fitting(columns: list[Column]) -> list[Column]:
    """Without the columns that a narrow terminal has no room for; the report has them all."""
    for spare in ("Best accuracy", "Time", "Seeds"):
        widths = [
            max(len(line) for text in (_broken(c.heading), *c.cells) for line in text.split("\n")) for c in columns
        ]
        if sum(widths) + 2 * len(widths) - 2 <= _console().width:
            break
        columns = [c for c in columns if c.heading != spare]
    return columns


def _broken(heading: str) -> str:
    """A heading in two lines, as columns of numbers are narrow."""
    return "\n".join(heading.rsplit(" ", 1))


def _profile(home: Path, rounds: int) -> Profile:
    from undrift.profile import SKIPPED, Profile

    return Profile(home / "profile.json", min(SKIPPED, rounds - 1))


def _train(begin: Callable[[], Run], as_json: bool, profile: Profile | None = None) -> None:
    from undrift import DivergenceError

    try:
        done = begin()
    except DivergenceError as error:
        _show_run(error.run, as_json, profile)
        raise typer.Exit(_complain(error, FAILED)) from None
    except KeyboardInterrupt:
        if profile is not None and not as_json:
            _show_profile(profile)
        raise
    _show_run(done, as_json, profile)


def _show_run(run: Run, as_json: bool, profile: Profile | None = None) -> None:
    from undrift.reporting.report import write
    from undrift.reporting.summary import Record, columns

    assert run.out is not None
    record = Record(run.label, run.options.seed, run.history, run.config, run.environment)
    title = f"{run.label} on {run.config['data']['name']}"
    page: Path | None = None
    try:
        page = write(run.out / "report.html", [record], title, run.options.target)
    except ModuleNotFoundError as missing:  # a machine that can only compute
        print(f"undrift: no report, as {missing.name} is not installed", file=sys.stderr)
    if as_json:
        profiled = {} if profile is None else {"profile": profile.figures and asdict(profile.figures)}
        _print_json(_figures(run) | {"out": str(run.out), "report": page and str(page)} | profiled)
        return
    name, *shown = columns([record], run.options.target)
    _say(f"\n[bold]{escape(name.cells[0])}[/] on {run.config['data']['name']}")
    pairs = {"Engine": run.engine, "Rounds": str(run.rounds)} | {c.heading: c.cells[0] for c in shown}
    _print_pairs(pairs)
    print()
    if profile is not None:
        _show_profile(profile)
    _say_where(run=run.out, **({} if page is None else {"report": page}))


def _show_profile(profile: Profile) -> None:
    from undrift.profile.table import table

    if profile.figures is None:
        _say(f"No profile: the run ended too early, as the first {profile.skip} rounds are not watched.\n")
        return
    _console().print(table(profile.figures))
    print()
    _say_where(profile=Path(profile.figures.trace))


def _figures(run: Run) -> dict[str, Any]:
    history = run.history

    def last(column: str) -> float | None:
        known = history[column].dropna()
        return float(known.iloc[-1]) if len(known) else None

    return {
        "label": run.label,
        "seed": run.options.seed,
        "rounds": run.rounds,
        "accuracy": last("accuracy"),
        "loss": last("loss"),
        "bytes_down": int(history["bytes_down"].sum()),
        "bytes_up": int(history["bytes_up"].sum()),
        "seconds": float(history["seconds"].sum()),
        "diverged": bool(history["diverged"].any()),
        "engine": run.environment["engine"],
        "engine_reason": run.environment["engine_reason"],
    }


# Lists


def _algorithms() -> list[dict[str, Any]]:
    import torch

    from undrift import algorithms
    from undrift.explain import page

    torch.set_num_threads(1)  # what is measured is tiny
    rows = []
    for name in algorithms.available():
        found = page(name)
        cost = found.cost
        rows.append(
            {
                "name": name,
                "year": found.year,
                "client_state": round(cost.client, 2),
                "server_state": round(cost.server, 2),
                "server_state_per_client": round(cost.server_per_client, 2),
                "down": round(cost.down, 2),
                "up": round(cost.up, 2),
                "gradients": round(cost.gradients, 2),
                "passes": round(cost.passes, 2),
                "stateless": cost.stateless,
                "title": found.title,
            }
        )
    return rows


def _datasets() -> list[dict[str, Any]]:
    from undrift.data import available, cache

    return [
        {"name": name, "here": name == "digits" or cache.manifest(name) is not None, "about": about}
        for name, about in available().items()
    ]


def _models() -> list[dict[str, Any]]:
    from undrift.models import available

    return [{"name": name, "about": about} for name, about in available().items()]


def _partitions() -> list[dict[str, Any]]:
    from undrift.data.partition import SCHEMES

    return [{"name": name, "about": (scheme.__doc__ or "").strip().splitlines()[0]} for name, scheme in SCHEMES.items()]


def _print_algorithms(rows: list[dict[str, Any]]) -> None:
    from undrift.explain import sizes

    def server(row: dict[str, Any]) -> str:
        common, each = sizes(row["server_state"]), sizes(row["server_state_per_client"])
        return common if each == "0" else f"{common} + {'' if each == '1' else each}N"

    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "Client": lambda row: "–" if row["stateless"] else sizes(row["client_state"]),
        "Server": server,
        "Down": lambda row: sizes(row["down"]),
        "Up": lambda row: sizes(row["up"]),
    }
    note = (
        "Sizes are in models, measured: what a client keeps, what the server keeps besides the model (N: for every "
        "client), and what a client receives and sends in a round."
    )
    if _console().width >= _WIDE:
        columns["Grads"] = lambda row: sizes(row["gradients"])
        columns["Passes"] = lambda row: sizes(row["passes"])
        note += " Grads are the gradients of a local step, passes those over all samples besides."
    cells = [
        [
            row["name"],
            str(row["year"] or "–"),
            *(text(row) for text in columns.values()),
            Text(row["title"], no_wrap=True, overflow="ellipsis"),
        ]
        for row in rows
    ]
    _print_table(["Name", "Year", *columns, "About"], cells, numbers=range(2, 2 + len(columns)))
    _say(f"\n[dim]{note} More: undrift explain NAME[/]")


# Printing


def _cell(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _console() -> Console:
    """Colours and the terminal's width on a terminal; in files and pipes nothing is cut or broken into lines."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 1000)


def _say(text: str) -> None:
    _console().print(text)


def _say_usual(recipe: Recipe, as_json: bool) -> None:
    """What was not asked for and is not the library's default."""
    if recipe.usual and not as_json:
        settings = ", ".join(f"{key}={value}" for key, value in recipe.usual.items())
        print(f"usual for {recipe.data['name']}: {settings}")


def _say_where(**places: Path) -> None:
    """Paths stay in one piece, so that they can be copied."""
    for what, path in places.items():
        print(f"{what}: {path}")


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))


def _print_table(headings: list[str], rows: Iterable[Sequence[str | Text]], numbers: range = range(0)) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for place, heading in enumerate(headings):
        number = place in numbers
        table.add_column(heading, justify="right" if number else "left", no_wrap=number)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    _console().print(table)


def _print_pairs(pairs: dict[str, str]) -> None:
    if not pairs:
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    for what, how in pairs.items():
        grid.add_row(Text(what), Text(how))
    _console().print(Padding(grid, (0, 0, 0, 2), expand=False))


def _print_equations(text: str) -> None:
    """Line by line; what does not fit hangs further in."""
    console = _console()
    for line in text.splitlines():
        margin = " " * (2 + len(line) - len(line.lstrip()))
        hanging = textwrap.fill(line.lstrip(), console.width, initial_indent=margin, subsequent_indent=margin + "    ")
        console.print(Text(hanging, style="cyan"))
