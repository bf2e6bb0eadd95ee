"""Pure functions on nests of CUDA tensors, captured as graphs and replayed.

Launching thousands of small kernels costs more than running them. A graph is launched once; its inputs and outputs lie
where they lay when it was captured, so that inputs are copied in and outputs copied out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from undrift.core import tree
from undrift.core.log import notice
from undrift.core.tree import Nest

Function = Callable[[Nest], tuple[Nest, Any]]  # the second result does not depend on the tensors' values
_MOST = 32  # graphs kept; the one that has not been used for the longest time goes first


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    given: Nest
    found: Nest
    fixed: Any


class Replayer:
    """The first call for a key runs as it is, which also warms up libraries; the second is captured, others replay.

    What cannot be captured, because it waits for the device or copies to it, goes on running as it is; `refusal` says
    why.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self._graphs: OrderedDict[Hashable, _Captured | None] = OrderedDict()
        self._pool: Any = None

    def __call__(self, key: Hashable, function: Function, given: Nest) -> tuple[Nest, Any]:
        """``function(given)``; functions of the same key must be the same, and their inputs of the same structure."""
        if self.refusal:
            return function(given)
        if key not in self._graphs:
            self._graphs[key] = None
            if len(self._graphs) > _MOST:
                self._graphs.popitem(last=False)
            return function(given)
        captured = self._graphs[key]
        if captured is None:
            try:
                captured = self._capture(function, given)
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
                self.refusal = _first_cause(error)
                notice(f"rounds cannot be replayed and are run step by step: {self.refusal}")
                self._graphs.clear()
                torch.cuda.synchronize()
                return function(given)
            self._graphs[key] = captured
        self._graphs.move_to_end(key)
        _copy(captured.given, given)
        captured.graph.replay()
        found = tree.map_nest(torch.empty_like, captured.found)
        _copy(found, captured.found)
        return found, captured.fixed

    def _capture(self, function: Function, given: Nest) -> _Captured:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        inputs = tree.map_nest(lambda v: v.clone(memory_format=torch.contiguous_format), given)
        graph = torch.cuda.CUDAGraph()
        # Graphs share memory, as none of them runs while another does and results are copied out.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            found, fixed = function(inputs)
        return _Captured(graph, inputs, found, fixed)


def _copy(target: Nest, source: Nest) -> None:
    targets, sources = tree.leaves(target), tree.leaves(tree.arranged(source, target))
    if targets:
        torch._foreach_copy_(targets, sources)


def _first_cause(error: BaseException) -> str:
    """What went wrong before the capture, too, went wrong."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error).strip().splitlines()[0]
