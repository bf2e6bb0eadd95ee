"""`undrift show`: pictures, each a command in a file of its own."""

from __future__ import annotations

import typer

from undrift.cli import show_conformal, show_diagnostics, show_drift

commands = typer.Typer(rich_markup_mode="rich")


def register(app: typer.Typer) -> None:
    for picture in (show_drift, show_diagnostics, show_conformal):
        picture.register(commands)
    app.add_typer(commands, name="show")


@commands.callback(invoke_without_command=True)
def show(ctx: typer.Context) -> None:
    """Draw a picture: of client drift on two quadratics, of the drift diagnostics of runs, of prediction sets."""
    if ctx.invoked_subcommand is None:
        ctx.get_help()
