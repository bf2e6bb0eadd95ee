"""`undrift data`: fetch and import data sets, draw partitions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from undrift.cli import complete
from undrift.cli.console import print_json, print_paths, print_table
from undrift.cli.help import examples
from undrift.cli.options import DEFAULT_DATA, AsJson, Clients, Data, Partition
from undrift.cli.own_code import short, use_data
from undrift.core import check
from undrift.core.extras import MissingExtraError

commands = typer.Typer(rich_markup_mode="rich")
_FIGURES = {
    "samples": "Samples",
    "classes": "Classes",
    "entropy": "Entropy of labels, bits",
    "jensen_shannon": "Jensen–Shannon distance to the whole",
    "earth_mover": "Earth mover's distance to the whole",
}


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="data")


@commands.callback(invoke_without_command=True)
def data(ctx: typer.Context) -> None:
    """Fetch or import a data set; draw a partition."""
    if ctx.invoked_subcommand is None:
        ctx.get_help()


@commands.command(epilog=examples("undrift data get mnist --from ~/downloads/mnist"))
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", hidden=True, autocompletion=complete.datasets)],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Import these files instead of fetching.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a data set from the Hugging Face hub, or import its files, into the local cache.

    `undrift list datasets` shows the names.

    Files are parquet in the hub's layout, idx (MNIST) or CIFAR's batches.
    """
    from undrift.data import cache
    from undrift.data import get as fetch

    manifest = fetch(name, source)
    path = cache.home() / manifest["name"]
    if as_json:
        print_json(manifest | {"path": str(path)})
        return
    shapes = [
        [part, " × ".join(f"{size:,}" for size in facts["shape"]), facts["dtype"]]
        for part, facts in manifest["arrays"].items()
    ]
    print_table(["Array", "Shape", "Type"], shapes)
    print(f"source: {manifest['source']}")
    print_paths(cache=path)


@commands.command(epilog=examples("undrift data show -d digits --partition dirichlet:0.1 --clients 20"))
def show(
    data: Data = None,
    partition: Partition = None,
    clients: Clients = None,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of the partition.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Picture, .png or .html [dim](both, named after the data)[/].")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the clients and classes of a partition, and measure how much clients differ."""
    from undrift.data import default_partition, full_name, load
    from undrift.data.heterogeneity import heterogeneity, summary
    from undrift.data.picture import draw

    use_data(data)
    name = full_name(data or DEFAULT_DATA)
    federation = load(name, partition, clients, seed)
    scheme = None if check.names_code(name) else partition or default_partition(name)  # code says itself who has what
    title = name if scheme is None else f"{name}, {scheme}"
    stem = re.sub(r"[^A-Za-z0-9.]+", "-", short(name) if scheme is None else f"{name}-{scheme}")
    targets = [Path(f"{stem}.png"), Path(f"{stem}.html")] if out is None else [out]
    pictures, hint = [], ""
    for target in targets:
        try:
            pictures.append(draw(federation, target, title))
        except MissingExtraError as error:
            if out is not None:
                raise
            hint = f"no {target}: {error}"
    figures = summary(heterogeneity(federation))
    if as_json:
        about = {"data": name, "partition": scheme, "seed": seed}
        print_json(about | figures | {"pictures": [str(path) for path in pictures]})
        return
    rows = [
        [_FIGURES[figure], *(f"{value:,.{0 if figure == 'samples' else 2}f}" for value in values.values())]
        for figure, values in figures["per_client"].items()
    ]
    print(f"{title}: {figures['clients']:,} clients share {figures['samples']:,} samples\n")
    print_table(["Per client", "Smallest", "Mean", "Largest"], rows, numbers=range(1, 4))
    print(f"\nOn average a client's size is {figures['size_inequality']:.0%} off the mean size.")
    for path in pictures:
        print_paths(picture=path)
    if hint:
        print(hint)
