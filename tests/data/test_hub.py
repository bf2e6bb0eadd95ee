"""Downloads from the hub, of which a server in a thread of this process is a small copy."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from rich.filesize import decimal
from typer.testing import CliRunner

import hub_files
import undrift as ud
from undrift.cli import app
from undrift.data import cache, hub

TRAIN, TEST = "mnist/train-00000-of-00001.parquet", "mnist/test-00000-of-00001.parquet"


class FakeHub:
    """Lists and sends files as the hub does: a redirect to where a file is, ranges, checksums in the list."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.files: dict[tuple[str, str], bytes] = {}  # by revision and path
        self.asked: list[tuple[str, str]] = []  # paths of files, and the range asked for
        self.wrong: dict[str, Any] = {}  # changes to the entries of the list
        self.breaks: list[int] = []  # after how many bytes the next answers end
        self.codes: list[int] = []  # status of the next answers, instead of the right one
        self.ranges = True  # whether ranges are understood
        self.redirect = f"{self.endpoint}/cdn"

    def entries(self, revision: str) -> list[dict[str, Any]] | None:
        found = [
            {"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
            | {"lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)} | self.wrong}
            for (home, path), content in self.files.items()
            if home == revision
        ]
        return (
            [{"type": "directory", "path": "mnist"}, {"type": "file", "path": "README.md"}, *found] if found else None
        )


def handler(fake: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if fake.codes:
                self.answer(fake.codes.pop(0))
            elif path.startswith("/api/datasets/ylecun/mnist/tree/"):
                entries = fake.entries(unquote(path.rpartition("/")[2]))
                self.answer(404 if entries is None else 200, json.dumps(entries).encode())
            elif path.startswith("/datasets/ylecun/mnist/resolve/"):
                self.answer(302, headers={"Location": fake.redirect + path})
            elif path.startswith("/cdn/datasets/ylecun/mnist/resolve/"):
                revision, _, name = path.removeprefix("/cdn/datasets/ylecun/mnist/resolve/").partition("/")
                self.send(name, fake.files[unquote(revision), unquote(name)])
            else:
                self.answer(404)

        def send(self, name: str, content: bytes) -> None:
            asked = self.headers.get("Range", "")
            fake.asked.append((name, asked))
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and fake.ranges else 0
            headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
            end = fake.breaks.pop(0) if fake.breaks else len(content)
            self.answer(206 if start else 200, content[start:end], headers, len(content) - start)

        def answer(
            self, code: int, content: bytes = b"", headers: dict[str, str] | None = None, length: int | None = None
        ) -> None:
            self.send_response(code)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content) if length is None else length))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None: ...

    return Handler


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    found = FakeHub(server.server_address[1])
    server.RequestHandlerClass = handler(found)
    for split in ("train", "test"):
        file = tmp_path / "files" / f"{split}.parquet"
        hub_files.write(file, hub_files.table("mnist", split, 20))
        found.files["main", f"mnist/{split}-00000-of-00001.parquet"] = file.read_bytes()
    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", found.endpoint)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(hub, "_PAUSES", (0.0, 0.0))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def downloads() -> list[str]:
    """What is kept of downloads."""
    return sorted(path.name for path in (cache.home() / ".downloads" / "mnist").glob("*"))


def test_a_data_set_is_fetched_once_unless_it_is_damaged(fake: FakeHub) -> None:
    manifest = ud.data.get("mnist")
    assert manifest["source"] == f"{fake.endpoint}/datasets/ylecun/mnist"
    assert np.array_equal(ud.data.load("mnist", "iid", 2).x.numpy(), hub_files.pixels("mnist", 20, 5))
    assert fake.asked == [(TRAIN, ""), (TEST, "")]
    assert not downloads()
    ud.data.get("mnist")
    assert len(fake.asked) == 2
    (cache.home() / "mnist" / "train_y.npy").write_bytes(b"not what it was")
    ud.data.get("mnist")
    assert len(fake.asked) == 4
    assert cache.intact("mnist")


def test_a_file_gets_a_line_now_and_then(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = itertools.count(0, 20)
    monkeypatch.setattr("undrift.data.progress.monotonic", lambda: next(seconds))
    monkeypatch.setattr(hub, "_PIECE", 1000)
    size = sum(map(len, fake.files.values()))
    ud.data.get("mnist")
    first, *others = [record.getMessage() for record in caplog.records]
    assert first == f"downloading mnist: {decimal(size)}"
    assert f"downloading mnist: 1.0 kB of {decimal(size)}, {1000 / size:.0%}" in others
    assert 3 < len(others) < size / 1000
    assert others[-1] == "reading test: 20 of 20, 100%"


def test_files_that_the_hub_converted(fake: FakeHub) -> None:
    converted = {}
    for (_, path), content in fake.files.items():
        split = "train" if "train" in path else "test"
        converted["refs/convert/parquet", f"mnist/{split}/0000.parquet"] = content
    fake.files = converted
    ud.data.get("mnist")
    assert ud.data.is_local("mnist")


def test_broken_downloads_go_on_where_they_ended(fake: FakeHub) -> None:
    fake.breaks = [100, 300, 200]  # the third brings nothing
    ud.data.get("mnist")
    assert fake.asked[:4] == [(TRAIN, ""), (TRAIN, "bytes=100-"), (TRAIN, "bytes=300-"), (TRAIN, "bytes=300-")]
    assert ud.data.is_local("mnist")


def test_a_later_command_goes_on_where_one_was_given_up(fake: FakeHub) -> None:
    fake.breaks = [100] * 4
    with pytest.raises(
        ValueError, match=r"cannot fetch mnist: .* ended after 100 of [0-9,]+ bytes; try again later, or"
    ):
        ud.data.get("mnist")
    assert [Path(name).suffix for name in downloads()] == [".part"]
    fake.breaks.clear()
    fake.asked.clear()
    ud.data.get("mnist")
    assert fake.asked == [(TRAIN, "bytes=100-"), (TEST, "")]


def test_servers_without_ranges_send_all_again(fake: FakeHub) -> None:
    fake.ranges, fake.breaks = False, [100]
    ud.data.get("mnist")
    assert ud.data.is_local("mnist")


def test_busy_servers_are_asked_again(fake: FakeHub) -> None:
    fake.codes = [503, 429]
    ud.data.get("mnist")
    assert ud.data.is_local("mnist")


def refused(message: str) -> None:
    result = CliRunner().invoke(app, ["data", "get", "mnist"])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert message in result.stderr
    assert not ud.data.is_local("mnist")


def test_a_wrong_checksum_is_refused(fake: FakeHub) -> None:
    fake.wrong = {"oid": "ab" * 32}
    refused("arrived damaged: its checksum is not the hub's; try again, or import files: undrift data get mnist --from")
    assert not downloads()


@pytest.mark.parametrize("wrong", [{"oid": "../../../../etc/passwd"}, {"oid": 5}, {"size": -1}, {"size": "many"}])
def test_entries_that_lie_are_ignored(wrong: dict[str, Any], fake: FakeHub, tmp_path: Path) -> None:
    fake.wrong = wrong
    refused("has no parquet files of the splits train, test")
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "files"}


def test_more_bytes_than_announced_are_not_read(fake: FakeHub) -> None:
    fake.wrong = {"size": 50}
    refused("arrived damaged")


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ([404, 404], "has no parquet files of the splits train, test; import files: undrift data get mnist --from DIR"),
        ([403], "answers 403"),
        ([503] * 3, "cannot fetch mnist: "),
    ],
)
def test_answers_that_are_errors(codes: list[int], message: str, fake: FakeHub) -> None:
    fake.codes = codes
    refused(message)


def test_without_a_network(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    refused("cannot fetch mnist: 127.0.0.1:9 cannot be reached (")


def test_only_https(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    for redirect in ("file:///etc/passwd?", "ftp://example.org"):
        fake.redirect = redirect
        refused(redirect)
    monkeypatch.setenv("HF_ENDPOINT", "https://example.org")
    with pytest.raises(ValueError, match=r"read by https only, got http://example\.org/a"):
        hub._require_https("http://example.org/a")
    monkeypatch.setenv("HF_ENDPOINT", "ftp://example.org")
    refused("the hub's files are read by https only, got ftp://example.org")
