"""The routes of the live page. Runs are named by ids that the server has given, never by paths."""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from undrift import overview
from undrift.core import check
from undrift.core.log import printable
from undrift.simulation.comparison import Comparison
from undrift.ui.access import Guard, Keys
from undrift.ui.catalogue import Catalogue, FollowedRun, UnknownRunError, plain_config
from undrift.ui.curves import curve_of
from undrift.ui.form import read_form
from undrift.ui.jobs import Jobs, RefusedError

_STATIC = Path(__file__).with_name("static")
_EVERY = 0.5  # seconds between two looks at the folder, while somebody watches
_READING = 0.3  # seconds of a look in which rows are read: an answer with fewer rows is better than a late one
_SILENCE = 15.0  # seconds after which a stream says that it is alive
_MOST_BODY = 64 << 10  # bytes of a request
# A report has a script of its own, in a page without an origin: it can neither read nor write anything here.
_REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts allow-downloads"
)


@dataclass
class Live:
    """What the routes share."""

    root: Path
    keys: Keys
    keep: bool = False  # whether runs that were started here go on when the server ends
    instance: str = field(default_factory=lambda: secrets.token_hex(4))  # versions are of one server only
    closing: bool = False

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.root.resolve())
        self.catalogue = Catalogue(self.root, self.jobs.is_stopping)
        self._turn = asyncio.Lock()  # one thread at a time looks at the runs
        self._looked = -math.inf

    async def alone(self, work: Callable[[], Any], *, fresh: bool = False) -> Any:
        """The result of work on the runs, of which no other is under way; at most so old, or `fresh`."""
        async with self._turn:
            if fresh or self.catalogue.reading or time.monotonic() - self._looked > _EVERY:
                await run_in_threadpool(self.catalogue.refresh, _READING)
                self._looked = time.monotonic()
            return await run_in_threadpool(work)

    def changes(self, since: str) -> dict[str, Any]:
        instance, _, version = since.partition("-")
        known = instance == self.instance and version.isdecimal() and len(version) < 18
        found = self.catalogue.changes(int(version) if known else 0)
        return {
            "all": not known,
            "version": f"{self.instance}-{found['version']}",
            "runs": found["runs"],
            "gone": found["gone"],
            "jobs": self.jobs.listed(),
            "unreadable": self.catalogue.unreadable[:20],
        }


def make_app(live: Live, *, loopback: bool, on_close: Callable[[list[int]], None] = lambda pids: None) -> Starlette:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        live.closing = True
        if not live.keep:
            on_close(await run_in_threadpool(live.jobs.close))

    routes = [
        Route("/", _page),
        Route("/favicon.ico", _no_icon),
        Route("/api/session", _session),
        Route("/api/runs", _runs),
        Route("/api/events", _events),
        Route("/api/curves", _curves),
        Route("/api/run/{id:str}", _run),
        Route("/api/start", _start, methods=["POST"]),
        Route("/api/stop", _stop, methods=["POST"]),
        Route("/api/resume", _resume, methods=["POST"]),
        Route("/report", _report),
        Mount("/static", StaticFiles(directory=_STATIC, packages=[("undrift.reporting", "shared")])),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, keys=live.keys, loopback=loopback)],
        exception_handlers={
            UnknownRunError: partial(_refused, 404),
            RefusedError: partial(_refused, 409),
        },
        lifespan=lifespan,
    )
    app.state.live = live
    return app


async def _refused(status: int, request: Request, error: Exception) -> Response:
    """One line that says what is wrong."""
    return PlainTextResponse(printable(check.first_line(error)), status)


@contextmanager
def _explained() -> Iterator[None]:
    """What is wrong with the user's input, or with files, is told in one line; anything else is a bug."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise RefusedError(str(error)) from error


def _live(request: Request) -> Live:
    live: Live = request.app.state.live
    return live


# Reading


async def _page(request: Request) -> Response:
    return HTMLResponse((_STATIC / "index.html").read_bytes())


async def _no_icon(request: Request) -> Response:
    return Response(status_code=204)


async def _session(request: Request) -> Response:
    live, writable = _live(request), bool(request.scope.get("writable"))
    return JSONResponse(
        {
            "folder": printable(os.fspath(live.root)),
            "writable": writable,
            "page": live.keys.page if writable else "",
            "algorithms": {entry.name: entry.title for entry in overview.algorithms().values()},
            "datasets": overview.named("datasets"),
            "models": overview.named("models"),
            "partitions": overview.named("partitions"),
        }
    )


async def _runs(request: Request) -> Response:
    live = _live(request)
    return _json(await live.alone(partial(live.changes, request.query_params.get("since", ""))))


async def _events(request: Request) -> Response:
    """What `_runs` answers, again and again, as server-sent events."""
    live = _live(request)
    since = request.headers.get("last-event-id") or request.query_params.get("since", "")
    return StreamingResponse(_stream(live, since), media_type="text/event-stream")


async def _stream(live: Live, since: str) -> AsyncIterator[str]:
    said, jobs = time.monotonic(), None
    while not live.closing:
        changes = await live.alone(partial(live.changes, since))
        if changes["version"] != since or changes["jobs"] != jobs:
            since, jobs, said = changes["version"], changes["jobs"], time.monotonic()
            yield f"id: {since}\ndata: {_dumped(changes)}\n\n"
        elif time.monotonic() - said > _SILENCE:
            said = time.monotonic()
            yield ": alive\n\n"
        await asyncio.sleep(0.05 if live.catalogue.reading else _EVERY)


async def _curves(request: Request) -> Response:
    """Curves of a column; each is given as ``ID-ID-ID~STAMP``: its runs, and what the page has of it."""
    live = _live(request)
    name = request.query_params.get("column", "accuracy")
    asked = request.query_params.getlist("curve")

    def draw() -> list[dict[str, Any]]:
        found, deadline = [], time.monotonic() + _READING
        for each in asked:
            ids, _, stamp = each.partition("~")
            members = [run for id in ids.split("-") if (run := live.catalogue.runs.get(id)) is not None]
            for run in members:
                if not run.read:
                    run.follow(deadline)
            if members:
                histories = [run.history for run in members]
                found.append({"curve": ids} | curve_of(histories, name, stamp))
        return found

    return _json({"column": name, "curves": await live.alone(draw)})


async def _run(request: Request) -> Response:
    """The configuration of a run."""
    live, id = _live(request), request.path_params["id"]

    def describe() -> dict[str, Any]:
        run = live.catalogue.find(id)
        return {"id": run.id, "folder": printable(os.fspath(run.home)), "config": plain_config(run)}

    return _json(await live.alone(describe))


async def _report(request: Request) -> Response:
    """The static report of some runs, as `undrift report` writes it."""
    live = _live(request)

    def chosen() -> list[Path]:
        runs = [live.catalogue.find(id) for id in request.query_params.getlist("run")]
        return [run.home for run in runs if run.config is not None and len(run.history)]

    homes = await live.alone(chosen)
    if not homes:
        raise RefusedError("a report needs at least one run with rounds; tick some")
    with _explained():
        page = await run_in_threadpool(_rendered, homes)
    return HTMLResponse(page, headers={"content-security-policy": _REPORT_POLICY})


def _rendered(homes: list[Path]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return Comparison.from_directories(homes).report(Path(folder) / "report.html").read_bytes()


# Writing


async def _start(request: Request) -> Response:
    live, given = _live(request), await _body(request)
    with _explained():
        job = await live.alone(lambda: live.jobs.start(read_form(given)))
    live.catalogue.look_again()
    return _json({"job": job.number, "name": printable(job.name)})


async def _stop(request: Request) -> Response:
    live = _live(request)
    run = await _named(request)
    await live.alone(partial(live.jobs.stop, run))
    return _json({})


async def _resume(request: Request) -> Response:
    live, given = _live(request), await _body(request)
    rounds = given.get("rounds")
    with _explained():
        if rounds is not None:
            check.integer("rounds", rounds, 1)
        run = await _named(request)
        job = await live.alone(partial(live.jobs.resume, run, rounds))
    return _json({"job": job.number})


async def _named(request: Request) -> FollowedRun:
    live, id = _live(request), (await _body(request)).get("run")
    run: FollowedRun = await live.alone(lambda: live.catalogue.find(str(id)), fresh=True)
    return run


async def _body(request: Request) -> dict[str, Any]:
    """A small JSON object."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "the request must be JSON")
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > _MOST_BODY:
        raise HTTPException(413, f"the request must have at most {_MOST_BODY} bytes")
    try:
        content = json.loads(await request.body())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise HTTPException(400, "the request must be a JSON object")
    return content


def _json(content: Any) -> Response:
    return Response(_dumped(content), media_type="application/json")


def _dumped(content: Any) -> str:
    return json.dumps(content, allow_nan=False, separators=(",", ":"))
