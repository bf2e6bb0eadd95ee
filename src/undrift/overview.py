"""What there is, by name, with the measured costs of every algorithm: read from a file, so that nobody waits for torch.

`make docs` writes the file; tests/test_explain.py and tests/test_pages.py keep it true.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Cost:
    """What is kept between rounds, and what is sent and computed for a client in a round; sizes are in models."""

    client: float
    server: float  # besides the model
    server_per_client: float  # for every client that has taken part
    down: float
    up: float
    exchanges: int  # round trips between server and clients
    gradients: float  # per local step
    passes: float  # over all of a client's samples, besides the local steps
    stateless: bool  # clients keep nothing


@dataclass(frozen=True)
class Entry:
    """An algorithm in a list."""

    name: str
    title: str
    year: int | None
    cost: Cost


def algorithms() -> dict[str, Entry]:
    """The algorithms of this package by name."""
    rows: dict[str, Any] = _content()["algorithms"]
    return {name: Entry(name, row["title"], row["year"], Cost(**row["cost"])) for name, row in rows.items()}


def named(topic: str) -> dict[str, str]:
    """Names and one line about each: of "datasets", "models", "partitions" or "diagnostics"."""
    found: dict[str, str] = _content()[topic]
    return found


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def sizes(value: float) -> str:
    """A size in models, rounded to two digits."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def server_sizes(server: float, per_client: float) -> str:
    """What the server keeps, with N for the number of clients: ``1 + N``."""
    common, each = sizes(server), sizes(per_client)
    return common if each == "0" else f"{common} + {'' if each == '1' else each}N"
