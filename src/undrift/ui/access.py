"""Who may read and who may write.

Writing (start, stop, resume) always needs the token: as a header, or as a cookie that the printed address sets once.
With a cookie, a request has to come from the page itself as well: other pages can make a browser send it, but cannot
read the page's own secret, nor claim its origin. On a loopback address reading needs no token; the request must then be
addressed to this machine by a loopback name, as a page of another site whose name was pointed here is not.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE_HEADER = "x-undrift-page"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether an address, or the name in a Host header, can only mean this machine."""
    name = host.lower().rstrip(".")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Keys:
    """The secrets of one server, none of which is kept on disk."""

    def __init__(self, port: int, say: Callable[[str], None] = lambda link: None) -> None:
        self.token = secrets.token_urlsafe(32)
        self.page = hmac.new(self.token.encode(), b"page", hashlib.sha256).hexdigest()
        self.cookie = f"undrift-{port}"  # browsers do not tell ports apart
        self._say = say  # tells the user, and nobody else, a fresh link
        self._link: str | None = None

    def new_link(self) -> str:
        """A secret for an address that can be opened once."""
        self._link = secrets.token_urlsafe(32)
        return self._link

    def use_link(self, given: str) -> bool:
        """Whether it is the link that was printed last, which is then used up."""
        if self._link is not None and _equal(given, self._link):
            self._link = None
            return True
        if self._link is None:  # so that there is always one to be used, and never a second one
            self._say(self.new_link())
        return False

    def has_cookie(self, connection: HTTPConnection) -> bool:
        return _equal(connection.cookies.get(self.cookie, ""), self.token)

    def has_header(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and _equal(given.strip(), self.token)


class Guard:
    """Lets through what is allowed, and adds headers that confine the page."""

    def __init__(self, app: ASGIApp, keys: Keys, loopback: bool) -> None:
        self.app, self.keys, self.loopback = app, keys, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def confined(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        connection = HTTPConnection(scope)
        answer = self._answer(connection, scope["method"])
        await (self.app if answer is None else answer)(scope, receive, confined)

    def _answer(self, connection: HTTPConnection, method: str) -> Response | None:
        """A refusal, or the answer to a link; None for what the application answers."""
        headers, keys = connection.headers, self.keys
        if self.loopback and not is_loopback(_name(headers.get("host", ""))):
            return PlainTextResponse("this server answers to localhost only", 421)
        by_header, by_cookie = keys.has_header(headers), keys.has_cookie(connection)
        connection.scope["writable"] = by_header or by_cookie
        if method == "GET" and connection.url.path == "/" and "link" in connection.query_params:
            return self._opened(connection, by_cookie)
        if not self.loopback and not by_header and not by_cookie:
            return PlainTextResponse("open the address that undrift ui printed, or send its token", 401)
        if method in ("GET", "HEAD"):
            return None
        if not by_header and not by_cookie:
            return PlainTextResponse("this page may only read: open the address that undrift ui printed", 401)
        if not _from_here(headers, strict=not by_header):
            return PlainTextResponse("this request comes from another page", 403)
        if not by_header and not _equal(headers.get(PAGE_HEADER, ""), keys.page):
            return PlainTextResponse("this request does not come from the page; load it again", 403)
        return None

    def _opened(self, connection: HTTPConnection, known: bool) -> Response:
        if not known and not self.keys.use_link(connection.query_params["link"]):
            text = "this address has been used; a new one is printed in the terminal where undrift ui runs"
            return PlainTextResponse(text, 403)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(self.keys.cookie, self.keys.token, httponly=True, samesite="strict", path="/")
        return answer


def _from_here(headers: Headers, *, strict: bool) -> bool:
    """Whether the page that sends a request is ours; a program that sends the token itself has no origin."""
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = headers.get("origin")
    if origin is None:
        return not strict
    return bool(headers.get("host")) and urlsplit(origin).netloc.lower() == headers["host"].lower()


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _equal(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret.encode())
