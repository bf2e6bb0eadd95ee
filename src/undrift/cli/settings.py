"""All settings of an experiment by section and key. Imports nothing slow, as help shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from undrift.cli.options import DEFAULT_DATA
from undrift.core import check
from undrift.simulation.arguments import settings
from undrift.simulation.options import Kind, Option, listed, number, registry, text, whole


def _setting(section: str, key: str, kind: Kind, meaning: str, *, default: Any = None) -> Option:
    """A setting that is no option of `simulate`."""
    return Option(name=key, default=default, meaning=meaning, kind=kind, section=section, key=key)


# The arguments of `undrift.data.load`, but for the seed, which is run.seed.
_DATA = (
    _setting("data", "name", text(), "data set, of `undrift list datasets`", default=DEFAULT_DATA),
    _setting("data", "partition", text(), "how samples are split among clients; None for the data set's own"),
    _setting("data", "clients", whole(1), "number of clients; None for the data set's own"),
    _setting(
        "data", "test_share", number(0, 1, open_high=True), "part of its samples that a client holds out", default=0.0
    ),
    _setting(
        "data",
        "validation_share",
        number(0, 1, open_high=True),
        "part of its training samples that a client holds out instead of all test sets, to choose settings by",
        default=0.0,
    ),
    _setting(
        "data",
        "normalise",
        Kind("true or false", (bool,), check.flag, lambda: "true or false"),
        "scale images to mean 0, std 1",
        default=True,
    ),
    _setting(
        "data",
        "features",
        text('"hog"'),
        "features of images instead of the images, computed once; None for the images",
    ),
)
TRACKERS = Option(
    name="callbacks",  # what they are for `simulate`
    default=(),
    meaning="tools that a run is logged to while it trains, each an extra",
    kind=listed(registry("trackers", "available")),
    section="run",
    key="trackers",
)
_MODEL = _setting("model", "name", text(), "model, of `undrift list models`; None for the data set's own")


def _by_section(options: Iterable[Option]) -> dict[str, dict[str, Option]]:
    """Sections in the order in which help and documentation show them."""
    found: dict[str, dict[str, Option]] = {section: {} for section in ("data", "model", "local", "server", "run")}
    for option in options:
        found.setdefault(option.section, {})[option.key] = option
    return found


SETTINGS = _by_section([*_DATA, _MODEL, *settings(), TRACKERS])
