"""Parquet files of the Hugging Face hub by plain HTTPS: listed, downloaded, checked; a broken download goes on.

    ~/.cache/undrift/.downloads/mnist/SHA256.part       a download under way; the next attempt goes on where it ended
    ~/.cache/undrift/.downloads/mnist/train-00000-of-00001.parquet

Files on disk have names of our own making, so that nothing a server says decides where is written. The environment
variable ``HF_ENDPOINT``, which the hub's own tools use as well, names another server.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from undrift.core.files import sha256
from undrift.core.version import __version__
from undrift.data import cache, progress
from undrift.data.catalogue import Description
from undrift.data.foreign import first_line, printable

_HUB = "https://huggingface.co"
# Where a repository has its own parquet files, and where the hub puts those that it made of other formats.
_REVISIONS = ("main", "refs/convert/parquet")
_TIMEOUT = 30  # seconds without a byte
_PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before further attempts, as long as none brings anything
_PIECE = 1 << 18  # bytes read at once
_LONGEST_LIST = 1 << 24  # bytes of a list of files
_WORTH_ANOTHER_TRY = (408, 425, 429, 500, 502, 503, 504)


class RemoteFile(NamedTuple):
    url: str
    size: int
    sha256: str  # as the hub knows it


class _BrokenError(Exception):
    """A connection failed in a way that another attempt may mend."""


class _MissingError(ValueError):
    """The server has no such file."""


def address(description: Description) -> str:
    """The page of a data set."""
    return f"{_endpoint()}/datasets/{description.hub}"


@contextmanager
def downloaded(name: str, description: Description) -> Iterator[Path]:
    """A directory with the parquet files of a data set; it is deleted when the block succeeds.

    What was downloaded before something went wrong is kept, and not downloaded again.
    """
    home = cache.home() / ".downloads"
    directory = home / name
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(home / f"{name}.lock"):
        files = {
            directory / f"{split}-{number:05d}-of-{len(parts):05d}.parquet": file
            for split, parts in _listed(name, description).items()
            for number, file in enumerate(parts)
        }
        size = sum(file.size for file in files.values())
        _require_space(directory, size)
        for stale in set(directory.glob("*.parquet")) - set(files):  # of another state of the repository
            stale.unlink()
        with progress.download(name, size) as advance:
            for target, file in files.items():
                _download(file, target, name, advance)
        yield directory
        shutil.rmtree(directory, ignore_errors=True)


# What there is


def _listed(name: str, description: Description) -> dict[str, list[RemoteFile]]:
    """The files of every split that is needed."""
    splits = [description.train, *([description.test] if description.test else [])]
    for revision in _REVISIONS:
        there = f"{_endpoint()}/api/datasets/{description.hub}/tree/{_quoted(revision)}?recursive=true"
        entries = [_entry(each, description, revision) for each in _list(there, name)]
        found = {split: _of_split(entries, split, description.config) for split in splits}
        if all(found.values()):
            return found
    raise ValueError(f"{address(description)} has no parquet files of the splits {', '.join(splits)}; {_files(name)}")


def _list(url: str, name: str) -> list[Any]:
    def read() -> list[Any]:
        with _open(url) as response:
            content = response.read(_LONGEST_LIST)
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _BrokenError(f"{url} is no list of files: {first_line(error)}") from None
        return found if isinstance(found, list) else []

    try:
        found: list[Any] = _persistently(read, name)
    except _MissingError:
        return []  # no such revision
    return found


def _entry(entry: Any, description: Description, revision: str) -> tuple[str, RemoteFile] | None:
    """Path and file of an entry of the hub's list; None for what is no parquet file, or not described completely."""
    match entry:
        case {"type": "file", "path": str(path), "lfs": {"oid": str(oid), "size": int(size)}}:
            if path.endswith(".parquet") and re.fullmatch("[0-9a-f]{64}", oid) and size > 0:
                place = f"{_endpoint()}/datasets/{description.hub}/resolve/{_quoted(revision)}/{_quoted(path, '/')}"
                return path, RemoteFile(place, size, oid)
    return None


def _of_split(entries: list[tuple[str, RemoteFile] | None], split: str, configuration: str | None) -> list[RemoteFile]:
    """Files in their order: ``mnist/train-00000-of-00001.parquet``, or ``default/train/0000.parquet``."""
    found = []
    for path, file in sorted(entry for entry in entries if entry is not None):
        *folders, stem = path.removesuffix(".parquet").split("/")
        wanted = configuration is None or configuration in folders
        if wanted and (stem == split or stem.startswith(f"{split}-") or folders[-1:] == [split]):
            found.append(file)
    return found


# Downloading


def _download(file: RemoteFile, target: Path, name: str, advance: Callable[[int], None]) -> None:
    if target.is_file() and sha256(target) == file.sha256:
        advance(file.size)
        return
    part = target.with_name(f"{file.sha256}.part")
    have = part.stat().st_size if part.is_file() else 0
    if have > file.size:
        part.unlink()
        have = 0
    advance(have)
    _persistently(lambda: _continue(file, part, advance), name, lambda: part.stat().st_size if part.is_file() else 0)
    if sha256(part) != file.sha256:
        part.unlink()
        raise ValueError(f"{file.url} arrived damaged: its checksum is not the hub's; try again, or {_files(name)}")
    part.replace(target)


def _continue(file: RemoteFile, part: Path, advance: Callable[[int], None]) -> None:
    """Bring the rest of a file, as far as the connection lasts."""
    have = part.stat().st_size if part.is_file() else 0
    if have == file.size:
        return
    with _open(file.url, have) as response:
        if have and response.status != http.client.PARTIAL_CONTENT:  # the server sends all of it again
            advance(-have)
            have = 0
        elif have and not str(response.headers.get("Content-Range")).startswith(f"bytes {have}-"):
            raise _BrokenError(f"{file.url} answers with another part than was asked for")
        with part.open("ab" if have else "wb") as out:
            while have < file.size and (piece := _piece(response, min(_PIECE, file.size - have))):
                out.write(piece)
                have += len(piece)
                advance(len(piece))
    if have < file.size:
        raise _BrokenError(f"{file.url} ended after {have:,} of {file.size:,} bytes")


def _piece(response: Any, size: int) -> bytes:
    try:
        return bytes(response.read(size))
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(f"the connection broke: {first_line(error)}") from error


def _persistently(action: Callable[[], Any], name: str, done: Callable[[], int] = lambda: 0) -> Any:
    """Repeat what fails because of the connection; as long as an attempt brings something, pauses begin anew."""
    before, pauses = done(), iter(_PAUSES)
    while True:
        try:
            return action()
        except _BrokenError as error:
            if done() > before:
                before, pauses = done(), iter(_PAUSES)
            pause = next(pauses, None)
            if pause is None:
                raise ValueError(f"cannot fetch {name}: {error}; try again later, or {_files(name)}") from None
            time.sleep(pause)


# Connections


class _Redirects(urllib.request.HTTPRedirectHandler):
    """The hub redirects to servers with the files; where it is asked by HTTPS, they are, too."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _require_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str, start: int = 0) -> Any:
    """A response, from the byte `start` on; what may pass is a _BrokenError, what is not there a _MissingError."""
    _require_https(url)
    headers = {"User-Agent": f"undrift/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        opener = urllib.request.build_opener(_Redirects)
        return opener.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            code, words = error.code, printable(str(error.reason))
        if code == http.client.NOT_FOUND:
            raise _MissingError(f"{url} is not there (404)") from None
        kind = _BrokenError if code in _WORTH_ANOTHER_TRY else ValueError
        raise kind(f"{url} answers {code} {words}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _BrokenError(f"{urllib.parse.urlsplit(url).netloc} cannot be reached ({first_line(reason)})") from error


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")


def _require_https(url: str) -> None:
    """Nothing is read without encryption, or from files, unless ``HF_ENDPOINT`` itself says so."""
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme != "https" and not (scheme == "http" and _endpoint().startswith("http://")):
        raise ValueError(f"the hub's files are read by https only, got {printable(url)}")


def _quoted(text: str, safe: str = "") -> str:
    return urllib.parse.quote(text, safe=safe)


# On this side


def _require_space(directory: Path, size: int) -> None:
    free = shutil.disk_usage(directory).free
    if size > free:
        raise ValueError(f"the download has {size:,} bytes, and {directory} has {free:,} left")


def _files(name: str) -> str:
    return f"import files: undrift data get {name} --from DIR"
