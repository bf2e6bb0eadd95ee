"""`undrift ui`: a live page of the runs in a folder."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undrift.cli.help import examples
from undrift.core import extras

if TYPE_CHECKING:
    from undrift.ui.serve import Address

_PORT = 8420


def register(app: typer.Typer) -> None:
    app.command(epilog=examples("undrift ui runs"))(ui)


def ui(
    directory: Annotated[Path, typer.Argument(metavar="DIR", hidden=True)],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; this machine only by default.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="A free one is used if it is taken.")
    ] = _PORT,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Runs started in the page go on when this command ends.")
    ] = False,
) -> None:
    """Show the runs in DIR as a live page: curves that grow, compare, stop, resume, start.

    The address that is printed can be opened once and lets its browser start and stop runs. Others may only read, and
    with a --host that other machines reach, nothing at all. Ctrl-C ends it; runs it started are saved and stopped.
    """
    if not directory.is_dir():
        raise ValueError(f"{str(directory)!r} is no folder; give one that holds runs, or will")
    with extras.needs("ui"):
        from undrift.ui.access import is_loopback
        from undrift.ui.serve import serve

    def ready(address: Address) -> None:
        url = address.url(address.keys.new_link())
        if address.port != port and port:
            print(f"port {port} is taken; using {address.port}")
        if not is_loopback(host):
            print(
                "other machines can reach this page, and the connection is not encrypted: keep the address to yourself"
            )
        print(f"page: {url}")
        print(f"token: {address.keys.token} (for programs: Authorization: Bearer TOKEN)", flush=True)
        if open_browser:
            webbrowser.open(url)

    def again(url: str) -> None:
        print(f"page: {url}", flush=True)

    def left(pids: list[int]) -> None:
        if pids:
            print(f"still saving: process {', '.join(map(str, pids))}", flush=True)

    try:
        serve(directory, host, port, keep=keep, ready=ready, again=again, left=left)
    except KeyboardInterrupt:  # the way to end it
        return
