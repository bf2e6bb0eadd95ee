"""Pure functions on nests of CPU tensors, compiled for the shapes of their inputs.

Small clients keep PyTorch busier with calling kernels than with running them. A round is traced once, which also
resolves `vmap` and derivatives into plain operations, and `torch.compile`'s back end fuses them into C++. That takes
seconds to minutes, but only once: the code is kept in the cache, and serves other seeds and learning rates as well.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from undrift.core import tree
from undrift.core.log import notice
from undrift.core.tree import Nest
from undrift.data import cache
from undrift.engines.cuda_graph import Function

_PLACE = "TORCHINDUCTOR_CACHE_DIR"
_SECONDS_PER_OPERATION = 0.03  # measured on two cores


class _Code(NamedTuple):
    run: Callable[..., Any]
    constants: list[Tensor]  # tensors that the function did not get but knows, such as the samples
    given: Nest  # how inputs and results are nested
    found: Nest
    fixed: Any

    def __call__(self, given: Nest) -> tuple[Nest, Any]:
        with torch.no_grad():
            found = self.run(*_leaves(tree.arranged(given, self.given)), *self.constants)
        return _nested(found, self.found), self.fixed


class Compiler:
    """Every call for a key runs the code that the first one compiled.

    The first one, too: compiled code rounds in its own way, and a run that is resumed must go on as it would have.
    What cannot be compiled runs as it is; `refusal` says why.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self._code: dict[Hashable, _Code] = {}

    def __call__(self, key: Hashable, function: Function, given: Nest) -> tuple[Nest, Any]:
        """``function(given)``; functions of the same key must be the same, and their inputs of the same structure."""
        if not self.refusal and key not in self._code:
            try:
                self._code[key] = _compiled(function, given)
            except Exception as error:  # a compiler can fail in many ways
                self.refusal = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                notice(f"rounds cannot be compiled and are run step by step: {self.refusal}")
        return function(given) if self.refusal else self._code[key](given)


def _compiled(function: Function, given: Nest) -> _Code:
    if (compiler := _missing_compiler()) is not None:
        raise RuntimeError(f"there is no C++ compiler {compiler!r}")
    from torch.fx.experimental.proxy_tensor import make_fx  # slow to import, rarely needed

    begun = time.perf_counter()
    nesting = _bare(given)
    results: list[Any] = []

    def flat(*leaves: Tensor) -> list[Tensor]:
        found, fixed = function(_nested(leaves, nesting))
        results.extend((_bare(found), fixed))
        return tree.leaves(found)

    # Two that are one tensor in the first round would be taken for one in all of them.
    leaves = [leaf.clone() for leaf in _leaves(given)]
    graph = make_fx(flat)(*leaves)
    graph.graph.eliminate_dead_code()
    constants = _lifted(graph)
    count = len(graph.graph.nodes)
    notice(
        f"compiling a round of {count} operations: about {_SECONDS_PER_OPERATION * count:.0f} s, "
        "or a few if the cache has it"
    )
    _keep_code()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the compiler's, on its own doings
        run = torch._inductor.standalone_compile(graph, [*leaves, *constants])
    notice(f"compiled in {time.perf_counter() - begun:.1f} s")
    return _Code(run, constants, nesting, *results)


def _leaves(nest: Nest) -> list[Tensor]:
    """Tensors in the layout that code is compiled for."""
    return [leaf.contiguous() for leaf in tree.leaves(nest)]


def _nested(leaves: Iterable[Tensor], like: Nest) -> Nest:
    rest = iter(leaves)
    return tree.map_nest(lambda _: next(rest), like)


def _bare(nest: Nest) -> Nest:
    """The names of a nest, without its tensors."""
    return tree.map_nest(lambda _: None, nest)


def _lifted(graph: fx.GraphModule) -> list[Tensor]:
    """Makes inputs of the tensors that a graph holds, so that code does not depend on their values; returns them."""
    nodes = list(graph.graph.nodes)
    start = next(node for node in nodes if node.op != "placeholder")
    inputs: dict[str, fx.Node] = {}
    for node in (node for node in nodes if node.op == "get_attr"):
        name = str(node.target)
        if name not in inputs:
            with graph.graph.inserting_before(start):
                inputs[name] = graph.graph.placeholder(f"held{name}")
            inputs[name].meta = dict(node.meta)
        node.replace_all_uses_with(inputs[name])
        graph.graph.erase_node(node)
    graph.recompile()
    return [getattr(graph, name) for name in inputs]


def _keep_code() -> None:
    """Keeps code in our cache, unless the user named a place; PyTorch's own choice may be gone after a restart."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if os.environ.get(_PLACE) in (None, default_cache_dir()):  # PyTorch writes its choice there
        os.environ[_PLACE] = str(cache.home() / "compiled")


def _missing_compiler() -> str | None:
    """The compiler that would be called, unless it is there."""
    name = os.environ.get("CXX", "g++")
    return None if shutil.which(name) else name
