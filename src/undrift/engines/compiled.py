"""Pure functions on nests of CPU tensors, compiled for the shapes of their inputs.

For small clients, PyTorch spends more time calling kernels than running them. A round is traced once, which also
resolves `vmap` and derivatives into plain operations, and Inductor, the back end of `torch.compile`, fuses them into
C++. That takes seconds to minutes, but only once: the code is cached, and reused for other seeds and learning rates.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from undrift.core import check, torch_private, tree
from undrift.core.log import notice
from undrift.core.tree import Nest
from undrift.data import cache
from undrift.engines.cuda_graph import Function

_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_SECONDS_PER_OPERATION = 0.03  # measured on two cores


class _Code(NamedTuple):
    run: Callable[..., Any]
    constants: list[Tensor]  # tensors that the function refers to besides its inputs, such as the samples
    inputs: Nest  # structure, without tensors
    results: Nest
    fixed: Any

    def __call__(self, inputs: Nest) -> tuple[Nest, Any]:
        with torch.no_grad():
            leaves = self.run(*_leaves(tree.ordered_like(inputs, self.inputs)), *self.constants)
        return _nested(leaves, self.results), self.fixed


class Compiler:
    """Compiles a function at the first call for a key, and runs the code for this and all later calls.

    For the first call, too: compiled code rounds differently, and a resumed run must give the numbers of one that was
    not interrupted. Functions that cannot be compiled run as they are; `refusal` says why.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self._code: dict[Hashable, _Code] = {}

    def __call__(self, key: Hashable, function: Function, inputs: Nest) -> tuple[Nest, Any]:
        """``function(inputs)``; functions of the same key must be the same, and their inputs of the same structure."""
        if not self.refusal and key not in self._code:
            try:
                self._code[key] = _compiled(function, inputs)
            except Exception as error:  # a compiler can fail in many ways
                self.refusal = check.first_line(error)
                notice(f"rounds cannot be compiled and are run step by step: {self.refusal}")
        return function(inputs) if self.refusal else self._code[key](inputs)


def _compiled(function: Function, inputs: Nest) -> _Code:
    if (compiler := _missing_compiler()) is not None:
        raise RuntimeError(f"there is no C++ compiler {compiler!r}")
    start = time.perf_counter()
    names = _names(inputs)
    traced: list[tuple[Nest, Any]] = []  # names of the results, and what does not depend on tensors

    def flat(*leaves: Tensor) -> list[Tensor]:
        results, fixed = function(_nested(leaves, names))
        traced.append((_names(results), fixed))
        return tree.leaves(results)

    # Copies, as two inputs that are the same tensor in the first round would be traced as one.
    leaves = [leaf.clone() for leaf in _leaves(inputs)]
    graph = torch_private.trace(flat, leaves)
    graph.graph.eliminate_dead_code()
    constants = _lift_constants(graph)
    count = len(graph.graph.nodes)
    notice(
        f"compiling a round of {count} operations: about {_SECONDS_PER_OPERATION * count:.0f} s, "
        "or a few seconds if it is cached"
    )
    _set_cache_directory()
    run = torch_private.compile_graph(graph, [*leaves, *constants])
    notice(f"compiled in {time.perf_counter() - start:.1f} s")
    results, fixed = traced[0]
    return _Code(run, constants, inputs=names, results=results, fixed=fixed)


def _leaves(nest: Nest) -> list[Tensor]:
    """The tensors in the layout that code is compiled for."""
    return [leaf.contiguous() for leaf in tree.leaves(nest)]


def _nested(leaves: Iterable[Tensor], like: Nest) -> Nest:
    rest = iter(leaves)
    return tree.map_nest(lambda _: next(rest), like)


def _names(nest: Nest) -> Nest:
    """The structure of a nest, without its tensors."""
    return tree.map_nest(lambda _: None, nest)


def _lift_constants(graph: fx.GraphModule) -> list[Tensor]:
    """Turns the tensors that a graph holds into inputs, so that code does not depend on their values; returns them."""
    nodes = list(graph.graph.nodes)
    first = next(node for node in nodes if node.op != "placeholder")
    inputs: dict[str, fx.Node] = {}
    for node in (node for node in nodes if node.op == "get_attr"):
        name = str(node.target)
        if name not in inputs:
            with graph.graph.inserting_before(first):
                inputs[name] = graph.graph.placeholder(f"constant{name}")
            inputs[name].meta = dict(node.meta)
        node.replace_all_uses_with(inputs[name])
        graph.graph.erase_node(node)
    graph.recompile()
    return [getattr(graph, name) for name in inputs]


def _set_cache_directory() -> None:
    """Caches code in our cache, unless the user chose a directory: PyTorch's default may be gone after a restart."""
    chosen = Path(os.environ.get(_CACHE_VARIABLE, ""))
    # PyTorch sets the variable to its default, torchinductor_<user> among the temporary files.
    default = chosen.parent == Path(tempfile.gettempdir()) and chosen.name.startswith("torchinductor_")
    if default or _CACHE_VARIABLE not in os.environ:
        os.environ[_CACHE_VARIABLE] = str(cache.home() / "compiled")


def _missing_compiler() -> str | None:
    """The name of the C++ compiler, if it is not installed."""
    name = os.environ.get("CXX", "g++")
    return None if shutil.which(name) else name
