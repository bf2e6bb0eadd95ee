"""A profile on one screen."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from rich import box
from rich.columns import Columns
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from undrift.profile.kinds import kind
from undrift.profile.take import SKIPPED, Figures
from undrift.reporting.wording import unit_of_traffic

_SHOWN = 8  # operators or kernels
# Prefixes that many names share, and arguments at their end.
_CLUTTER = re.compile(
    r"^void |at::native::|at::cuda::|\(anonymous namespace\)::| ?\([^()]*\)$"
    r"|(?<=^autograd::)engine::evaluate_function: "
)


def table(figures: Figures) -> Group:
    ms = _milliseconds(max(figures.ms, figures.busy_ms))
    what = "Kernel" if figures.on_gpu else "Operator"
    parts = [[s.name, ms(s.ms), _percent(s.share), *_on_gpu(figures, s.device_ms, ms)] for s in figures.parts]
    total = [
        "A round",
        ms(figures.ms),
        _percent(1),
        *_on_gpu(figures, sum(s.device_ms or 0 for s in figures.parts), ms),
    ]
    kinds = [[s.name, ms(s.ms), _percent(s.share)] for s in figures.kinds]
    longest: list[list[str | Text]] = [
        [_short(s.name), kind(s.name), ms(s.ms), _percent(s.share), f"{s.calls:.0f}"] for s in figures.kernels[:_SHOWN]
    ]
    side_by_side = [
        _columns(["Part", "ms", "Share", *(["GPU ms"] if figures.on_gpu else [])], [*parts, total], 1, last="bold"),
        _columns([f"{what}s", "ms", "Share"], kinds, 1),
    ]
    return Group(
        Text(_heading(figures, ms), style="bold"),
        "",
        Columns(side_by_side, padding=(1, 3)),
        "",
        _columns([f"Longest {what.lower()}s", "Kind", "ms", "Share", "Calls"], longest, 2),
        "",
        _pairs(_notes(figures, ms)),
    )


def _heading(figures: Figures, ms: Callable[[float], str]) -> str:
    first, last = figures.rounds[0], figures.rounds[-1]
    which = (
        f"Round {first}: {ms(figures.ms)} ms"
        if first == last
        else f"Rounds {first} to {last}: {ms(figures.ms)} ms each"
    )
    return which if figures.unprofiled_ms is None else f"{which}, {ms(figures.unprofiled_ms)} ms when not profiled"


def _notes(figures: Figures, ms: Callable[[float], str]) -> dict[str, str]:
    busy, idle = figures.busy_ms, figures.ms - figures.busy_ms
    if figures.on_gpu:
        notes = {"GPU": f"busy {ms(busy)} ms a round, {_percent(busy / figures.ms)} of the time; idle {ms(idle)} ms"}
    else:
        notes = {"Operators": f"{ms(busy)} ms a round, {busy / figures.ms:.2f} at a time"}
    notes["Processor"] = f"{figures.cores_busy:.2f} cores busy"
    places = {"of the host": figures.host_bytes, "of the GPU": figures.device_bytes}
    if taken := [f"{_size(most)} {place}" for place, most in places.items() if most]:
        notes["Memory"] = f"at most {', '.join(taken)}"
    if figures.rounds[0] <= SKIPPED:
        notes["Start-up"] = f"included; a run of more than {SKIPPED} rounds leaves it out"
    if figures.evaluations < len(figures.rounds):
        notes["Evaluated"] = f"{figures.evaluations} of these rounds"
    notes["Trace"] = "opens in https://ui.perfetto.dev and chrome://tracing"
    return notes


def _columns(headings: Sequence[str], rows: Sequence[Sequence[str | Text]], texts: int, last: str = "") -> Table:
    """A table like those of other commands; what does not fit is cut from the first column."""
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for place, heading in enumerate(headings):
        out.add_column(heading, justify="right" if place >= texts else "left", no_wrap=place > 0)
    for row in rows:
        out.add_row(*row, style=last if row is rows[-1] else "")
    return out


def _pairs(pairs: dict[str, str]) -> Padding:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for what, how in pairs.items():
        grid.add_row(what, how)
    return Padding(grid, (0, 0, 0, 2), expand=False)


def _milliseconds(largest: float) -> Callable[[float], str]:
    """A format with four significant digits for the largest, so that a column adds up."""
    decimals = min(3, max(0, 3 - math.floor(math.log10(largest))))
    return lambda ms: f"{ms:.{decimals}f}"


def _on_gpu(figures: Figures, ms: float | None, text: Callable[[float], str]) -> list[str]:
    return [text(ms or 0.0)] if figures.on_gpu else []


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _short(name: str) -> Text:
    return Text(_CLUTTER.sub("", name), no_wrap=True, overflow="ellipsis")


def _size(count: int) -> str:
    size, unit = unit_of_traffic([count])
    return f"{count / size:.3g} {unit}"
