"""The root of the command line: a group that turns errors into one line on stderr and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any, NoReturn

import click
import typer
from typer.core import TyperGroup

from undrift.cli import streams
from undrift.cli.console import print_error
from undrift.core import check
from undrift.core.extras import MissingExtraError
from undrift.core.files import StorageError
from undrift.core.log import printable

FAILED, USAGE = 1, 2  # exit codes


class Commands(TyperGroup):
    """Wrong input ends in one line; any other exception is a bug and keeps its traceback."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        try:
            code = super().main(*args, **options | {"standalone_mode": False})
        except click.ClickException as error:
            print_error(error.format_message().rstrip(".") + _known_as(error))
            code = USAGE
        try:
            sys.stdout.flush()
        except OSError as error:  # such as a full disk
            print_error(error)
            code = FAILED
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            print(f"undrift: {printable(str(interruption)) or 'interrupted'}", file=sys.stderr)
            raise typer.Exit(128 + getattr(interruption, "signal", signal.SIGINT)) from None  # as shells count
        except StorageError as error:
            fail(error)
        except (ValueError, TypeError, OSError, MissingExtraError) as error:
            print_error(error)
            raise typer.Exit(USAGE) from None


def _known_as(error: click.ClickException) -> str:
    """What an unknown option is called here, where other libraries call it so."""
    if not isinstance(error, click.NoSuchOption) or error.possibilities or error.ctx is None:
        return ""
    here = f"--{check.synonym(error.option_name.lstrip('-')).replace('_', '-')}"
    known = any(here in parameter.opts for parameter in error.ctx.command.params)
    return f"; did you mean {here}?" if known else ""


app = typer.Typer(
    name="undrift",
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def undrift(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Federated learning that counters client drift."""
    if version:
        from undrift import __version__

        print(f"undrift {__version__}")
    elif ctx.invoked_subcommand is None:
        ctx.get_help()


def fail(error: object) -> NoReturn:
    """End the command with the exit code of a run that failed, as opposed to wrong input."""
    print_error(error)
    raise typer.Exit(FAILED) from None


def main() -> None:
    """The entry point of ``undrift`` and ``python -m undrift``."""
    streams.open_closed()
    # Waiting threads spin briefly, then sleep. With the default long spin, runs of small models are several times
    # slower on a busy machine; with none, they are slower on an idle one.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    sys.stdout, sys.stderr = streams.tolerant(sys.stdout, 1), streams.tolerant(sys.stderr, 2)
    app(prog_name="undrift")
