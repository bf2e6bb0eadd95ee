"""Code of users on the command line: ``-m net.py:Net``, ``-d mydata.py:load``, ``-a mine.py:MyAlgorithm``.

A file is run only if an option of the command names it, never because a configuration file or a run directory does.
What is found there becomes known by the text of the option, or for an algorithm by its name, in this process.
"""

from __future__ import annotations

import importlib.util
import inspect
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from undrift.core import check

T = TypeVar("T")


def use_model(text: str | None, stored: str | None = None) -> None:
    """Make a model of a file known by the text that names it, and by that of a run directory."""
    if text is None or not check.names_code(text):
        return
    from torch import nn

    from undrift import models

    found = _find("model", text)
    if not isinstance(found, nn.Module) and not callable(found):
        raise TypeError(f"{text} must be a module, or a class or function that makes one, got {check.shown(found)}")

    def make(shape: tuple[int, ...], classes: int | None) -> nn.Module:
        module = found if isinstance(found, nn.Module) else _called(text, found, {"shape": shape, "classes": classes})
        if not isinstance(module, nn.Module):
            raise TypeError(f"{text} must give a torch.nn.Module, got {check.shown(module)}")
        return module

    for name in (text, stored):
        if isinstance(name, str) and check.names_code(name):
            models.add(name, make)


def use_data(text: str | None, stored: str | None = None) -> None:
    """The same for data."""
    if text is None or not check.names_code(text):
        return
    from undrift import data

    found = _find("data", text)

    def make(seed: int) -> Any:
        return _called(text, found, {"seed": seed}) if inspect.isfunction(found) or inspect.isclass(found) else found

    for name in (text, stored):
        if isinstance(name, str) and check.names_code(name):
            data.add(name, make)


def use_algorithms(text: str | None) -> str | None:
    """The list ``fedavg,mine.py:Mine(mu=0.1)`` with algorithms of files under their names, ``fedavg,mine(mu=0.1)``."""
    if text is None:
        return None
    from undrift.algorithms.text import split

    return ",".join(map(_with_name, split(text))) or text


def _with_name(text: str) -> str:
    reference, parenthesis, options = text.partition("(")
    if not check.names_code(reference):
        return text
    from undrift import Algorithm, algorithms

    found = _find("algorithm", reference)
    if not (inspect.isclass(found) and issubclass(found, Algorithm)):
        raise TypeError(f"{reference} must be a subclass of undrift.Algorithm, got {check.shown(found)}")
    algorithms.add(found)
    return f"{found.name()}{parenthesis}{options}"


def short(name: str) -> str:
    """A name for a folder: ``data/mine.py:load`` is ``mine``."""
    return Path(name.rpartition(":")[0]).stem if check.names_code(name) else name


def options_with_code(algorithm: str | None, data: str | None, model: str | None) -> str:
    """The options of a command that name code, which `undrift resume` needs as well."""
    texts = {"-a": (algorithm or "").partition("(")[0], "-d": data or "", "-m": model or ""}
    return " ".join(f"{option} {shlex.quote(text)}" for option, text in texts.items() if check.names_code(text))


@contextmanager
def resumed_with(code: str, home: Path) -> Iterator[None]:
    """A run that is interrupted meanwhile says the command that resumes it, which names the same code."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        what, hint, _ = str(interruption).partition("; resume with: ")
        if code and hint:
            interruption.args = (f"{what}{hint}undrift resume {shlex.quote(str(home))} {code}",)
        raise


# Files


def _find(what: str, text: str) -> Any:
    path, _, name = text.rpartition(":")
    module = _executed(Path(path).resolve(), path)
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if not key.startswith("_") and not inspect.ismodule(value)]
        raise ValueError(f"{path} has no {what} {name!r}{check.nearest(name, own)}")
    return getattr(module, name)


@cache
def _executed(path: Path, shown: str) -> ModuleType:
    """A file, run once, however many things of it are asked for; it may import from its folder, as a script may."""
    if not path.is_file():
        raise ValueError(f"there is no file {shown!r}")
    name = f"undrift_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    with _said_in_one_line(shown):
        spec.loader.exec_module(module)
    return module


def _called(text: str, function: Callable[..., T], offered: dict[str, Any]) -> T:
    """A function or class called with what it takes of what is offered: by name, or all in order."""
    parameters = inspect.signature(function).parameters.values()
    named = [p.name for p in parameters if p.name in offered and p.kind is not p.POSITIONAL_ONLY]
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    with _said_in_one_line(text.rpartition(":")[0], text):
        if set(needed) <= set(named):
            return function(**{name: offered[name] for name in named})
        if len(needed) == len(offered):
            return function(*offered.values())
        raise TypeError(f"it must take ({', '.join(offered)}) or nothing, but takes ({', '.join(needed)})")


@contextmanager
def _said_in_one_line(file: str, what: str = "") -> Iterator[None]:
    """Whatever goes wrong in a user's file becomes one line that says where."""
    try:
        yield
    except Exception as error:
        path = str(Path(file).resolve())
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        lines += [error.lineno] if isinstance(error, SyntaxError) and error.filename == path else []
        where = f" (line {lines[-1]} of {file})" if lines else ""
        raise ValueError(f"{what or file}: {type(error).__name__}: {check.first_line(error)}{where}") from error
