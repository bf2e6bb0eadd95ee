"""What users write as ``name(option=value)``: algorithms, plug-ins, aggregation rules and the like, as plain values."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from undrift.core import check

_LONGEST = 10_000  # characters


def read(text: str, what: str = "an algorithm") -> tuple[str, dict[str, Any]]:
    """A name and its options; bare words and names of files are strings, and a call among the values is a mapping."""
    name, parenthesis, rest = text.strip().partition("(")
    if len(text) > _LONGEST or not re.fullmatch(r"[\w -]+", name.strip()):
        raise ValueError(f"{what} is written name or name(option=value), got {check.shown(text)}")
    try:
        with warnings.catch_warnings(action="ignore"):  # of Python's parser, about text that is refused anyway
            parsed = ast.parse(f"_({rest}" if parenthesis else "_()", mode="eval")
        return name.strip(), _keywords(parsed.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two of text that is nested too deeply
        raise ValueError(f"options of {what} are written name(option=value, ...), got {check.shown(text)}") from None


def _keywords(call: ast.expr) -> dict[str, Any]:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError
    names = [keyword.arg for keyword in call.keywords]
    if call.args or None in names or len(set(names)) < len(names):
        raise ValueError
    return {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):  # the name of a file
        return f"{_value(node.value)}.{node.attr}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return {"name": node.func.id} | _keywords(node)
    return ast.literal_eval(node)
