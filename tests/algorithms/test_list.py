"""The list of algorithms, whose files are imported when they are used: it names all that the files define."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import pytest

from undrift import algorithms
from undrift.methods.algorithm import Algorithm


def defined() -> dict[str, type[Algorithm]]:
    """Every algorithm of every file, by the name of its class."""
    files = [import_module(f"undrift.algorithms.{each.name}") for each in pkgutil.iter_modules(algorithms.__path__)]
    return {
        name: kind
        for file in files
        for name, kind in inspect.getmembers(file, inspect.isclass)
        if issubclass(kind, Algorithm) and kind.__module__ == file.__name__ and not name.startswith("_")
    }


def test_all_algorithms_are_listed_under_their_files_and_names() -> None:
    listed, found = algorithms._BUILT_IN | algorithms._REFERENCES, defined()
    assert {name: f"undrift.algorithms.{file}" for name, file in listed.items()} == {
        name: kind.__module__ for name, kind in found.items()
    }
    assert set(algorithms.__all__) == {*found, "add", "available", "find", "known"} == set(dir(algorithms))
    for name, kind in found.items():
        assert getattr(algorithms, name) is algorithms.find(kind.name()) is algorithms.known()[kind.name()] is kind


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'FedNone'"):
        _ = algorithms.FedNone
