"""Code blocks of the documentation, and how a test runs them: a page is one namespace and one working directory."""

from __future__ import annotations

import re
import runpy
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from undrift.cli import app

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)(?: +title=\"(?P<title>[^\"]+)\")?[^\n`]*$")
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")
RUN = ("python", "bash")
SHOWN = ("text", "toml", "json", "bibtex", "latex")  # nothing to run; with a title, a file that later blocks use


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the line it begins at, and why it is not run, if so."""

    language: str
    title: str  # of a file that it shows
    line: int
    text: str
    not_run: str


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page in order. A comment in the line before says which one is not run, and why."""
    found: list[Block] = []
    lines = page.read_text("utf-8").splitlines()
    number = 0
    reason = ""
    while number < len(lines):
        if opening := _FENCE.match(lines[number]):
            start, indent = number + 1, opening["indent"]
            while lines[number := number + 1].strip() != "```":
                pass
            text = "\n".join(line.removeprefix(indent) for line in lines[start:number]) + "\n"
            found.append(Block(opening["language"], opening["title"] or "", start + 1, text, reason))
            reason = ""
        elif lines[number].strip():
            comment = _NOT_RUN.fullmatch(lines[number].strip())
            reason = comment[1] if comment else ""
        number += 1
    return found


def run(page: Path) -> int:
    """Run all blocks of a page in the working directory, and return how many commands and pieces of code there were."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for block in blocks(page):
        where = f"{page}:{block.line}"
        if block.language not in (*RUN, *SHOWN):
            raise ValueError(
                f"{where}: a block needs a language of {', '.join((*RUN, *SHOWN))}, got {block.language!r}"
            )
        if block.not_run:
            continue
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            # Line numbers in errors are those of the page.
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
            exec(code, namespace)
            count += 1
        elif block.language == "bash":
            for line in block.text.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    _command(words, where)
                    count += 1
    return count


def _command(words: list[str], where: str) -> None:
    """A command of a block, in this process."""
    if words[0] == "undrift" and "--install-completion" not in words:  # which would change the shell of whoever tests
        result = CliRunner().invoke(app, words[1:], prog_name="undrift")
        if result.exit_code:
            raise AssertionError(f"{where}: {shlex.join(words)} ended with {result.exit_code}\n{result.output}")
    elif words[0] == "python" and words[1].endswith(".py"):
        runpy.run_path(words[1], run_name="__main__")
    else:
        raise ValueError(f"{where}: mark what a test cannot run by <!-- not run: reason -->: {shlex.join(words)}")
