"""A new Flower app: a folder with settings, two sides of a line each, and the data functions to fill in."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from undrift.core import check

_TEMPLATES = Path(__file__).parent / "templates" / "app"
_LONGEST = 32  # of an app's name, Flower's own limit
_INSIDE = ("server_app.py", "client_app.py", "data.py")  # files of the package
_BESIDE = ("pyproject.toml", "README.md", ".gitignore")
_TAKEN = {"undrift", "flwr", "torch", "numpy", "data", "test", "tests"}  # names that an import would find instead


class App(NamedTuple):
    """What an app is about. `settings` are those of its configuration, by section and key."""

    label: str
    settings: Mapping[str, Mapping[str, Any]]
    algorithm: str
    clients: int
    simulation: str  # the command that simulates the same


def write(folder: str | Path, app: App, *, overwrite: bool = False) -> Path:
    """Write an app; returns its folder. With `overwrite` the files of an earlier one are replaced, and no others."""
    path = check.path("DIR", folder)
    package = _package(path)
    path = path.absolute()
    files = _files(path, package, app)
    if path.exists():
        _check_replaceable(path, files, overwrite)
    try:
        if path.exists():
            for name, content in files.items():
                _replace(path / name, content)
            return path
        draft = path.with_name(f".{path.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        try:
            for name, content in files.items():
                _replace(draft / name, content)
            os.replace(draft, path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise OSError(f"{str(folder)!r} cannot be written: {error.strerror or error}") from error
    return path


def _package(path: Path) -> str:
    """The name of the app's package: the folder's name."""
    name = path.absolute().name
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) or len(name) > _LONGEST:
        raise ValueError(
            f"an app is called like its folder: up to {_LONGEST} letters, digits and hyphens, a letter first, "
            f"got {check.shown(name)}"
        )
    package = name.replace("-", "_").lower()
    if package in _TAKEN:
        raise ValueError(
            f"an app cannot be called {name!r}, as Python has a package of that name; choose another folder"
        )
    return package


def _files(path: Path, package: str, app: App) -> dict[str, str]:
    """All files by their names in the folder."""
    out = path / "runs" / package
    federation = {"federation": {"clients": app.clients, "out": str(out)}}
    words = {
        "project": package.replace("_", "-"),
        "package": package,
        "label": app.label,
        "clients": str(app.clients),
        "out": str(out),
        "simulation": app.simulation,
        "config": _toml(app.algorithm, {**app.settings, **federation}),
    }
    found = {name: _template(name.lstrip("."), words) for name in _BESIDE}
    found |= {f"{package}/{name}": _template(name, words) for name in _INSIDE}
    return found | {f"{package}/__init__.py": f'"""{app.label} on Flower."""\n'}


def _template(name: str, words: Mapping[str, str]) -> str:
    return Template((_TEMPLATES / f"{name}.txt").read_text(encoding="utf-8")).substitute(words)


def _toml(algorithm: str, sections: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["[tool.flwr.app.config]", f"algorithm = {_value('algorithm', algorithm)}"]
    for section, keys in sections.items():
        if keys:
            lines += ["", f"[tool.flwr.app.config.{section}]"]
            lines += [f"{key} = {_value(f'{section}.{key}', value)}" for key, value in keys.items()]
    return "\n".join(lines)


def _value(key: str, value: Any) -> str:
    """As in TOML; Flower's configuration has plain values only."""
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        value = ",".join(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a basic string of TOML
    raise ValueError(f"{key}={check.shown(value)} cannot stand in the configuration of a Flower app: plain values only")


def _check_replaceable(path: Path, files: Mapping[str, str], overwrite: bool) -> None:
    if not path.is_dir():
        raise ValueError(f"{str(path)!r} is a file; choose another folder")
    if not any(path.iterdir()):
        return
    if not overwrite:
        raise ValueError(f"{str(path)!r} is not empty: --overwrite replaces the files of an app there, and no others")
    if not (path / "pyproject.toml").is_file() or "[tool.flwr.app" not in (path / "pyproject.toml").read_text("utf-8"):
        raise ValueError(f"{str(path)!r} holds no Flower app, and only one is replaced; choose another folder")
    for name in files:
        if (path / name).is_dir():
            raise ValueError(f"{str(path / name)!r} is a folder, where the app has a file")


def _replace(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(content, encoding="utf-8")
    os.replace(draft, path)
