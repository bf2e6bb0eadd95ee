"""`undrift explain`: one algorithm in detail."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from undrift.cli import complete
from undrift.cli.console import console, print_indented, print_markup, print_pairs
from undrift.cli.help import examples


def register(app: typer.Typer) -> None:
    app.command(epilog=examples("undrift explain fedhbm"))(explain)


def explain(
    name: Annotated[str, typer.Argument(metavar="NAME", hidden=True, autocompletion=complete.algorithms)],
) -> None:
    """Explain an algorithm: its idea, its paper, what it keeps and sends."""
    from undrift.explain import page, unwrapped

    found = page(name)
    print_markup(f"[bold]{found.label}[/]\n{escape(found.title)}")
    for heading, text in found.sections.items():
        print_markup(f"\n[bold]{heading}[/]")
        if heading == "Equations":
            _print_equations(text)
        else:
            print_indented(Text(unwrapped(text)))
    print_markup("\n[bold]Options[/]")
    print_pairs({f"{name} = {default!r}": found.meanings.get(name, "") for name, default in found.options.items()})
    print_indented(found.weights)
    print_markup("\n[bold]Cost[/] [dim]measured, in sizes of a model of four equal layers[/]")
    print_pairs(found.costs)


def _print_equations(text: str) -> None:
    """Every line keeps its indentation; the rest of a line that is too long is indented further."""
    output = console()
    for line in text.splitlines():
        margin = " " * (2 + len(line) - len(line.lstrip()))
        wrapped = textwrap.fill(line.lstrip(), output.width, initial_indent=margin, subsequent_indent=margin + "    ")
        output.print(Text(wrapped, style="cyan"))
