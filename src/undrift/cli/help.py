"""What a command's help says after its options."""

from __future__ import annotations

from copy import copy

import click
from rich.markup import escape
from typer.core import TyperCommand


def examples(*lines: str) -> str:
    """An epilog with commands to copy; Typer prints every paragraph as a line."""
    return _paragraphs("Example:", *(f"[bold]{escape(line)}[/]" for line in lines))


class CommandWithSettings(TyperCommand):
    """Lists all settings before the examples; only help imports their declarations."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from undrift.cli.settings import SETTINGS

        lines = [f"[bold]{escape(f'[{section}]')}[/] {', '.join(keys)}" for section, keys in SETTINGS.items()]
        lines.append(f"[bold]{escape('[algorithm]')}[/] name, and its options")
        shown = copy(self)
        shown.epilog = _paragraphs("Settings, in CONFIG.toml by section, or with --set:", *lines, "", self.epilog or "")
        TyperCommand.format_help(shown, ctx, formatter)


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(texts)
