"""Pure functions on nests of CUDA tensors, captured as CUDA graphs and replayed.

Launching thousands of small kernels costs more than running them; a graph is launched once. It reads and writes the
memory it was captured with, so inputs are copied in before a replay and results are copied out after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from undrift.core import check, torch_private, tree
from undrift.core.log import notice
from undrift.core.tree import Nest

Function = Callable[[Nest], tuple[Nest, Any]]  # the second result does not depend on the values of tensors
_MAX_GRAPHS = 32  # kept; the least recently used is dropped first


@dataclass(frozen=True)
class Captured:
    replay: Callable[[], None]  # computes `results` from `inputs`, in place
    inputs: Nest
    results: Nest
    fixed: Any
    pool: Any  # the graph's memory, which the next one shares


class CudaGraphs:
    """Runs a function as it is for the first call of a key (which also warms up libraries), captures the second call,
    and replays it from then on.

    Functions that cannot be captured, because they wait for the device or copy to it, keep running as they are;
    `refusal` says why.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self._graphs: OrderedDict[Hashable, Captured | None] = OrderedDict()
        self._pool: Any = None

    def __call__(self, key: Hashable, function: Function, inputs: Nest) -> tuple[Nest, Any]:
        """``function(inputs)``; functions of the same key must be the same, and their inputs of the same structure."""
        if self.refusal:
            return function(inputs)
        if key not in self._graphs:
            self._graphs[key] = None
            if len(self._graphs) > _MAX_GRAPHS:
                self._graphs.popitem(last=False)
            return function(inputs)
        captured = self._graphs[key]
        if captured is None:
            try:
                captured = capture(function, inputs, self._pool)
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
                self.refusal = _first_cause(error)
                notice(f"rounds cannot be replayed and are run step by step: {self.refusal}")
                self._graphs.clear()
                torch.cuda.synchronize()
                return function(inputs)
            self._graphs[key], self._pool = captured, captured.pool
        self._graphs.move_to_end(key)
        copy_nest(captured.inputs, inputs)
        captured.replay()
        results = tree.map_nest(torch.empty_like, captured.results)
        copy_nest(results, captured.results)
        return results, captured.fixed


def capture(function: Function, inputs: Nest, pool: Any) -> Captured:
    """A graph of ``function(inputs)``, in the memory of earlier graphs if `pool` is given.

    They can share it, as only one of them runs at a time and results are copied out.
    """
    own = tree.map_nest(lambda v: v.clone(memory_format=torch.contiguous_format), inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        results, fixed = function(own)
    return Captured(graph.replay, own, results, fixed=fixed, pool=graph.pool())


def copy_nest(target: Nest, source: Nest) -> None:
    torch_private.copy_all(tree.leaves(target), tree.leaves(tree.ordered_like(source, target)))


def _first_cause(error: BaseException) -> str:
    """The message of the error that made the capture fail; ending the capture raises errors of its own."""
    while error.__context__ is not None:
        error = error.__context__
    return check.first_line(error)
