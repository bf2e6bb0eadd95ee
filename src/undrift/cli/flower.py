"""`undrift flower`: the same algorithm in a real federation."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from undrift.cli import complete
from undrift.cli.console import print_markup, print_paths
from undrift.cli.help import CommandWithSettings, examples
from undrift.cli.options import DEFAULT_DATA, Rounds, Settings

commands = typer.Typer(rich_markup_mode="rich")
_CLIENTS = 10


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="flower")


@commands.callback(invoke_without_command=True)
def flower(ctx: typer.Context) -> None:
    """Train the same algorithm on real machines, with Flower."""
    if ctx.invoked_subcommand is None:
        ctx.get_help()


@commands.command(cls=CommandWithSettings, epilog=examples("undrift flower new hospitals -a fedhbm -m lenet5 -d mnist"))
def new(
    directory: Annotated[Path, typer.Argument(metavar="DIR", hidden=True)],
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            "-a",
            metavar="NAME",
            help="As in fedhbm or 'fedprox(mu=0.1)'.",
            autocompletion=complete.algorithms,
        ),
    ] = "fedavg",
    data: Annotated[
        str,
        typer.Option("--data", "-d", metavar="NAME", help="Data set of the example.", autocompletion=complete.datasets),
    ] = DEFAULT_DATA,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="Model [dim](the data set's default)[/].",
            autocompletion=complete.models,
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEME",
            help="How the example's samples are split, as in classes:2.",
            autocompletion=complete.partitions,
        ),
    ] = None,
    clients: Annotated[int, typer.Option(metavar="N", help="Number of clients.")] = _CLIENTS,
    rounds: Rounds = None,
    rate: Annotated[float | None, typer.Option("--lr", metavar="RATE", help="Local learning rate.")] = None,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of everything random.")] = 0,
    settings: Settings = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the files of an app in DIR.")] = False,
) -> None:
    """Write a Flower app that trains an algorithm on real machines, or simulates them.

    DIR is the app's folder, and its name the app's name.

    The app is a few lines to read and one file to change: data.py, which says where samples are.
    """
    from undrift import models
    from undrift.cli.config import combine, find_algorithm, resolve
    from undrift.core import check
    from undrift.data import default_partition, default_settings, full_name, is_local, load
    from undrift.data.partition import parse
    from undrift.flower.new import App, write

    name = full_name(data)
    scheme = partition or default_partition(name)
    parse(scheme)
    check.integer("--clients", clients, 1)
    if is_local(name):  # else it is said where the data set is
        load(name, scheme, clients, seed)
    chosen_model = model or str(default_settings(name).get("model", ""))
    check.choice("model", chosen_model, list(models.available()))
    given: dict[str, Any] = {"run.rounds": rounds, "run.seed": seed, "local.lr": rate}
    sections = combine(None, given, settings or (), algorithm)
    if stray := sections.get("data", {}) | sections.get("model", {}):
        raise ValueError(f"data and model are given by -d, --partition and -m, not by --set; got {next(iter(stray))}")
    resolve(sections)
    label = find_algorithm(sections).label
    words = ["undrift", "run", "-a", algorithm, "-d", name, "-m", chosen_model, "--partition", scheme]
    words += ["--clients", str(clients), "--seed", str(seed), "--set", "run.engine=sequential"]
    words += ["--rounds", str(rounds)] if rounds is not None else []
    words += ["--lr", str(rate)] if rate is not None else []
    words += [word for text in settings or () for word in ("--set", text)]
    own = {section: keys for section, keys in sections.items() if section != "algorithm"}
    shown = {"data": {"name": name, "partition": scheme}, "model": {"name": chosen_model}, **own}
    app = App(label, shown, algorithm, clients, shlex.join(words))
    path = write(directory, app, overwrite=overwrite)
    print_markup(f"{label} for {clients} clients; README.md there has the next steps")
    print_paths(app=path)


@commands.command(epilog=examples("undrift flower keys keys --nodes 3 --host fl.example.org"))
def keys(
    directory: Annotated[Path, typer.Argument(metavar="DIR", hidden=True)],
    nodes: Annotated[int, typer.Option(metavar="N", help="Number of SuperNodes.")] = 3,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Name or address of the SuperLink [dim](localhost and 127.0.0.1)[/]; repeatable."
        ),
    ] = None,
) -> None:
    """Make certificates and node keys for a federation.

    DIR is a new folder; its README.md has the commands that use them.

    Machines without a registered key are refused, and so is plain text.
    """
    from undrift.flower.keys import HOSTS, make

    path = make(directory, nodes, tuple(host or HOSTS))
    print_markup(f"certificates and {nodes} node keys; README.md there has the commands that use them")
    print_paths(keys=path)
