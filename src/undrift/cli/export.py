"""`undrift export`: the trained model of a run, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from undrift.cli.console import print_markup, print_paths
from undrift.cli.help import examples


def register(app: typer.Typer) -> None:
    app.command(epilog=examples("undrift export runs/fedhbm-digits-1 model.safetensors"))(export)


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", hidden=True)],
    file: Annotated[Path, typer.Argument(metavar="FILE", hidden=True)],
) -> None:
    """Write the trained model of a run to a safetensors file.

    DIR is the run's directory; the model is that of its newest checkpoint.

    FILE gets the names that load_state_dict takes, without parameters that were not trained.

    Of files that exist, only an earlier export is replaced.
    """
    from undrift.storage import model_file
    from undrift.storage.directory import RunDirectory

    run = RunDirectory.open(directory)
    tensors, round = model_file.of_directory(run)
    path = model_file.write(file, tensors, {"label": run.config["label"], "round": str(round)})
    print_markup(escape(f"{run.config['label']} after round {round}: {len(tensors)} tensors"))
    print_paths(model=path)
