"""Random damage to files, and what may come of it."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import psutil

_NUMBERS = [b"\xff" * 4, b"\x00" * 4, b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x80", b"\xff" * 8]


def mutated(rng: Random, content: bytes, pieces: Sequence[bytes] = (b"\x00", b"\n")) -> bytes:
    """The content with some of it flipped, overwritten, deleted, doubled, or cut off; `pieces` are inserted."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        edge = min(len(changed), 400)  # where headers and footers are
        anywhere, near = rng.randrange(len(changed) + 1), rng.randrange(edge + 1)
        place = rng.choice([anywhere, near, len(changed) - near])
        kind = rng.randrange(8)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[place : place + 1] = rng.randbytes(1)
        elif kind == 2:
            del changed[place : place + rng.choice([1, 4, 30, 1000])]
        elif kind == 3:
            changed[place:place] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 4:
            changed[place:place] = b"".join(rng.choice(pieces) for _ in range(rng.randrange(1, 6)))
        elif kind == 5:
            number = rng.choice(_NUMBERS)
            changed[place : place + len(number)] = number
        elif kind == 6:
            changed[place:place] = changed[max(0, place - 40) : place]
        elif rng.random() < 0.3:
            del changed[place:]
    return bytes(changed)


def refused(action: Callable[[], Any], *words: str) -> str | None:
    """None if the action works; else what it says: an error of input, in one line with one of the `words`."""
    try:
        action()
    except (ValueError, TypeError, OSError) as error:
        message = str(error)
        assert message.isprintable(), repr(message)
        assert len(message) < 1000, message
        assert not words or any(word in message for word in words), message
        return message
    return None


@contextmanager
def little_memory(extra: int = 3 << 30) -> Iterator[None]:
    """Meanwhile the process may take so many more bytes of address space; what asks for more gets a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
