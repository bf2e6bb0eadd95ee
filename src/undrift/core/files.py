"""What files on disk need wherever they are written: to be there after a crash, and to be recognised."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path


class StorageError(OSError):
    """Something cannot be written: the disk is full, or the folder read-only. What was there before is as it was."""


_NOT_FOR_DIRECTORIES = (errno.EINVAL, errno.EBADF, errno.ENOTSUP)  # some network file systems


def sync(path: Path) -> None:
    """Returns when a file, or the names in a directory, would survive a loss of power.

    Windows and some file systems cannot do that for a directory; there a crash may undo the last renaming, which leaves
    the state before it.
    """
    if path.is_dir():
        _sync_names(path)
        return
    with path.open("r+b") as file:  # Windows refuses handles that cannot write
        os.fsync(file.fileno())


def _sync_names(directory: Path) -> None:
    try:
        handle = os.open(directory, os.O_RDONLY)
    except PermissionError:  # Windows opens no directories
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NOT_FOR_DIRECTORIES:
            raise
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
