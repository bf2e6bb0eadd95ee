"""The server of the live page: an address, the page, and an orderly end."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from undrift.ui.access import Keys, is_loopback
from undrift.ui.app import Live, make_app


@dataclass(frozen=True)
class Address:
    """Where the page is, as it is printed."""

    host: str
    port: int
    keys: Keys

    def url(self, link: str) -> str:
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/?link={link}"


class _Server(uvicorn.Server):
    """Ends the streams that pages listen to, which would go on for ever."""

    live: Live

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.live.closing = True
        super().handle_exit(sig, frame)


def serve(
    root: Path,
    host: str,
    port: int,
    *,
    keep: bool,
    ready: Callable[[Address], None],
    again: Callable[[str], None],
    left: Callable[[list[int]], None],
) -> None:
    """Serve until a signal comes. `ready` learns the address, `again` further ones, `left` which processes go on."""
    with _bound(host, port) as listening:
        number = listening.getsockname()[1]
        keys = Keys(number, lambda link: again(address.url(link)))
        address = Address(host, number, keys)
        live = Live(root, keys, keep)
        app = make_app(live, loopback=is_loopback(host), on_close=left)
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            http="h11",
            ws="none",
            loop="asyncio",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=5,
        )
        server = _Server(config)
        server.live = live
        ready(address)
        server.run(sockets=[listening])


def _bound(host: str, port: int) -> socket.socket:
    """A socket at the port, or at a free one if that is taken."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise ValueError(f"--host {host!r} is no address of this machine") from None
    for number in (port, 0):
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address[0], number, *address[2:]))
        except OSError as error:
            listening.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES) or not number:
                raise ValueError(f"--host {host}, --port {number}: {error.strerror}") from None
        else:
            listening.listen()  # from here on the address answers
            return listening
    raise AssertionError("a free port is always found")
