"""The summary table for papers: Markdown, and LaTeX with `booktabs`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from undrift.reporting.table import Column
from undrift.reporting.wording import MISSING, NBSP

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    NBSP: "~",
    "–": "--",
    "’": "'",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    **{special: f"\\{special}" for special in "&%$#_{}"},
    # At the beginning of a row they would be an argument of the command that ends the one before.
    **{special: f"{{{special}}}" for special in "[*"},
}
# Greek capitals that LaTeX has a command for; the others look like Latin letters.
_CAPITALS = ("gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega")


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Of cells that are Markdown themselves."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *rows))


def markdown(table: Sequence[Column]) -> str:
    """A table of GitHub's and Pandoc's Markdown, the best values in bold."""
    headings, rows = _texts(table, _markdown_text, lambda text: f"**{text}**")
    rules = [":--", *("--:" for _ in headings[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rules, *rows)) + "\n"


def latex(table: Sequence[Column]) -> str:
    r"""A `tabular` for a document that says ``\usepackage{booktabs}``, the best values in bold."""
    headings, rows = _texts(table, latex_text, lambda text: f"\\textbf{{{text}}}")
    lines = [f"\\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}", "\\toprule", _latex_row(headings), "\\midrule"]
    return "\n".join([*lines, *map(_latex_row, rows), "\\bottomrule", "\\end{tabular}"]) + "\n"


def latex_text(text: str) -> str:
    """Plain text in which no character has a meaning for LaTeX; Greek letters as pdfTeX needs them."""
    return "".join(_LATEX.get(character) or _greek(character) for character in text)


def _greek(character: str) -> str:
    found = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(character, ""))
    if not found:
        return character
    name = "lambda" if found[2] == "LAMDA" else found[2].lower()
    if found[1] == "SMALL":
        return "o" if name == "omicron" else f"$\\{name}$"
    return f"$\\{name.capitalize()}$" if name in _CAPITALS else character


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _markdown_text(text: str) -> str:
    """Without what Markdown would read as markup."""
    return re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", text).replace(NBSP, " ").replace("\n", " ")


def _texts(
    table: Sequence[Column], escaped: Callable[[str], str], bold: Callable[[str], str]
) -> tuple[list[str], list[list[str]]]:
    """Headings and rows as text of a format; a unit that all cells of a column share is in its heading."""
    headings, columns = [], []
    for column in table:
        unit = _common_unit(column.cells)
        headings.append(escaped(f"{column.heading} ({unit})" if unit else column.heading))
        cells = [escaped(cell.removesuffix(f"{NBSP}{unit}") if unit else cell) for cell in column.cells]
        columns.append([bold(cell) if row in column.best else cell for row, cell in enumerate(cells)])
    return headings, [list(row) for row in zip(*columns, strict=True)]


def _common_unit(cells: Sequence[str]) -> str:
    """What all numbers of a column end in, such as "%" or "MB"; empty if there is nothing of the kind."""
    units = {cell.rpartition(NBSP)[2] if NBSP in cell else "" for cell in cells if cell != MISSING}
    unit = units.pop() if len(units) == 1 else ""
    return unit if re.fullmatch(r"%|×|[kMG]?B|s|min|h", unit) else ""
