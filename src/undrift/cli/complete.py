"""What the shell offers when Tab is pressed (`undrift --install-completion`); names come from a file, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

from undrift import overview

Offers = list[tuple[str, str]]  # words, and a line about each, which some shells show


def algorithms(incomplete: str) -> Offers:
    """Names of algorithms, also after a comma: ``fedavg,fedp``."""
    before, comma, word = incomplete.rpartition(",")
    known = {name: entry.title for name, entry in overview.algorithms().items()}
    known |= {entry.name: "" for entry in entry_points(group="undrift.algorithms")}
    return [(before + comma + name, about) for name, about in _beginning(word, known)]


def datasets(incomplete: str) -> Offers:
    return _beginning(incomplete, overview.named("datasets"))


def models(incomplete: str) -> Offers:
    return _beginning(incomplete, overview.named("models"))


def partitions(incomplete: str) -> Offers:
    return _beginning(incomplete, overview.named("partitions"))


def _beginning(word: str, known: Mapping[str, str]) -> Offers:
    return [(name, about) for name, about in known.items() if name.startswith(word)]
