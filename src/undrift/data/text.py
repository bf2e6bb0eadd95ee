"""Text as numbers: characters of a fixed alphabet, and words of a vocabulary.

Words are numbered 1, 2, ... by decreasing frequency; 0 is padding, and after the last word come the numbers of an
unknown word, of the beginning and of the end of a sentence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Array = np.ndarray[Any, Any]

# The 80 characters of LEAF (Caldas et al., 2018); all others become a space.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
PADDING = 0
IGNORED = -100  # target of a position that is not predicted: the padding of a sentence; PyTorch's own number for it

_WORD = re.compile(r"[\w']+|[^\w\s]")
_CODES = np.full(128, ALPHABET.index(" "), dtype=np.int8)
_CODES[[ord(c) for c in ALPHABET]] = np.arange(len(ALPHABET))


def characters(text: str) -> Array:
    """Indices into the alphabet [len(text)]."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return _CODES[np.where(points < len(_CODES), points, ord(" "))]


def windows(codes: Array, length: int, most: int) -> tuple[Array, Array]:
    """Windows of `length` characters and the one after each; at most `most` of them, evenly spaced."""
    if len(codes) <= length:
        return np.zeros((0, length), dtype=codes.dtype), np.zeros(0, dtype=np.int64)
    found = sliding_window_view(codes, length + 1)
    found = found[evenly_spaced(len(found), most)]
    return found[:, :-1], found[:, -1].astype(np.int64)


def evenly_spaced(count: int, most: int) -> Array:
    """All indices below `count`, or `most` of them, evenly spaced."""
    return np.arange(count) if count <= most else np.arange(most) * count // most


def vocabulary(sentences: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """Numbers of the most frequent words; ties are broken alphabetically."""
    counts = Counter(word for sentence in sentences for word in sentence)
    frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size]
    return {word: number for number, (word, _) in enumerate(frequent, 1)}


def encode(sentences: Sequence[Sequence[str]], known: dict[str, int], *, size: int, length: int, marks: bool) -> Array:
    """Sentences as rows of numbers, truncated and padded [n, length]; with `marks`, between begin and end tokens."""
    unknown, begin, end = size + 1, size + 2, size + 3
    rows = np.full((len(sentences), length), PADDING, dtype=np.int16)
    for row, sentence in zip(rows, sentences, strict=True):
        numbers = [known.get(word, unknown) for word in sentence[:length]]
        if marks:
            numbers = [begin, *numbers, end][:length]
        row[: len(numbers)] = numbers
    return rows


def words(text: Any) -> list[str]:
    """Words of tokenised text: separated by spaces, or a list."""
    return text.split() if isinstance(text, str) else list(text)


def tokenise(text: str | None) -> list[str]:
    """Lower-case words of ordinary text; a punctuation mark is a word of its own."""
    return _WORD.findall((text or "").lower())
