"""The command line: one file a command, registered below.

Commands import what they need when they are called, so that help does not wait for torch.
"""

from undrift.cli import (
    bench,
    compare,
    data,
    explain,
    export,
    flower,
    listing,
    recommend,
    report,
    reproduce,
    resume,
    run,
    show,
    tune,
    ui,
)
from undrift.cli.group import app, main

__all__ = ["app", "main"]

for command in (
    run,
    compare,
    tune,
    resume,
    export,
    report,
    ui,
    listing,
    explain,
    data,
    show,
    recommend,
    reproduce,
    flower,
    bench,
):
    command.register(app)
