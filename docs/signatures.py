"""An extension of mkdocstrings: functions that take the fields of a dataclass have their signature."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from griffe import Extension, Function, Parameter, ParameterKind, Parameters

KINDS = {kind.name: ParameterKind[kind.name.lower()] for kind in inspect._ParameterKind}


class Signatures(Extension):
    """Reads signature and docstring of what `takes` (undrift.simulation.arguments) has decorated."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        if any(str(decorator.value).startswith("takes(") for decorator in func.decorators):
            function = getattr(import_module(func.module.path), func.name)
            func.parameters = Parameters(*map(_parameter, inspect.signature(function).parameters.values()))
            if func.docstring:
                func.docstring.value = inspect.getdoc(function) or ""


def _parameter(given: inspect.Parameter) -> Parameter:
    default = None if given.default is given.empty else repr(given.default)
    return Parameter(given.name, annotation=given.annotation, kind=KINDS[given.kind.name], default=default)
