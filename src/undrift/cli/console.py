"""All printing of the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from undrift.core.log import printable


def console() -> Console:
    """Colours and the terminal's width on a terminal; in files and pipes nothing is truncated or wrapped."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 1000)


def print_markup(markup: str, width: int | None = None) -> None:
    """Print text with rich's markup, in at most `width` columns."""
    console().print(printable(markup), width=width)


def print_paths(**paths: Path) -> None:
    """Paths are never wrapped, so that they can be copied."""
    for name, path in paths.items():
        print(f"{name}: {printable(str(path))}")


def print_error(error: object) -> None:
    """An error in one line on stderr."""
    print(f"undrift: error: {printable(' '.join(str(error).split()))}", file=sys.stderr)


def print_json(content: Any) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:  # a terminal or a file of another encoding; escapes lose nothing
        text = json.dumps(content, indent=2, allow_nan=False)
    print(text)


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    numbers: range = range(0),
    width: int | None = None,
) -> None:
    """A table whose columns in `numbers` are aligned to the right, in at most `width` columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index in numbers else "left", no_wrap=index in numbers)
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
    console().print(table, width=width)


def _text(cell: str | Text) -> Text:
    if isinstance(cell, str):
        return Text(printable(cell))
    cell.plain = printable(cell.plain)
    return cell


def print_indented(content: RenderableType) -> None:
    console().print(Padding(content, (0, 0, 0, 2), expand=False))


def print_pairs(pairs: Mapping[str, str]) -> None:
    """Names and values in two columns, indented."""
    if not pairs:
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in pairs.items():
        grid.add_row(_text(name), _text(value))
    print_indented(grid)
