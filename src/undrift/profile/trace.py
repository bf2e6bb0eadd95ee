"""Figures from a trace of several rounds, in the Chrome trace format that PyTorch's profiler writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from undrift.core.parts import Part
from undrift.profile.kinds import OTHER, kind, readable

Event = dict[str, Any]  # name, cat(egory), ts: start and dur: duration in µs, tid: thread, args

_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True)
class Spent:
    """Time of a round, on average."""

    name: str
    ms: float
    share: float  # of the sum of its list
    calls: float = 0.0  # a round
    device_ms: float | None = None  # of the kernels it launched on a GPU


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    ms: float  # of a round
    parts: list[Spent]  # of the round; they add up to it
    kinds: list[Spent]  # of kernels, or of operators where there is no GPU
    kernels: list[Spent]  # one by one, the longest first
    busy_ms: float  # of the GPU, or of operators on all threads
    on_gpu: bool


def break_down(events: Iterable[Event], rounds: int) -> Breakdown:
    """Figures of the first `rounds` rounds of a trace, which are its `ProfilerStep`s."""
    timed = sorted((e for e in events if e.get("ph") == "X"), key=lambda e: (e["ts"], -e["dur"]))
    by_category: dict[str, list[Event]] = defaultdict(list)
    for event in timed:
        by_category[event["cat"]].append(event)
    marks = by_category["user_annotation"]
    steps = [e for e in marks if e["name"].startswith("ProfilerStep#")][:rounds]
    begin, end, host = steps[0]["ts"], _end(steps[-1]), steps[0]["tid"]

    def during(*categories: str) -> list[Event]:
        return [e for category in categories for e in by_category[category] if begin <= e["ts"] < end]

    names = {str(part) for part in Part}
    spans = [e for e in during("user_annotation") if e["name"] in names and e["tid"] == host]
    kernels = during(*_ON_DEVICE)
    wall = sum(e["dur"] for e in steps)
    if kernels:
        timings = [(e["name"], e["dur"]) for e in kernels]
        busy = _covered(kernels)
    else:
        operators = during("cpu_op")
        timings = [(readable(e["name"]), own) for e, own in zip(operators, _nested(operators).own, strict=True)]
        busy = sum(own for _, own in timings)
    scale = 1e-3 / len(steps)
    return Breakdown(
        ms=wall * scale,
        parts=_parts(spans, kernels, during(*_LAUNCHES), wall=wall, scale=scale),
        kinds=_listed(((kind(name), time) for name, time in timings), scale),
        kernels=_listed(timings, scale),
        busy_ms=busy * scale,
        on_gpu=bool(kernels),
    )


def _parts(
    spans: list[Event], kernels: list[Event], launches: list[Event], *, wall: float, scale: float
) -> list[Spent]:
    """Time of the host by part, and of the kernels launched in it; the last entry is the rest."""
    host: dict[str, float] = defaultdict(float)
    device: dict[str, float] = defaultdict(float)
    for span, own in zip(spans, _nested(spans).own, strict=True):
        host[span["name"]] += own
    if not kernels:  # there is nothing to wait for, only a sum to take
        host[Part.AGGREGATION] += host.pop(Part.WAITING, 0.0)
    origins = _origins(spans, launches)
    for kernel in kernels:
        device[origins.get(kernel["args"].get("correlation"), OTHER)] += kernel["dur"]
    host[OTHER] = wall - sum(host.values())
    shown = [*(p for p in Part if p in host), OTHER]
    return [
        Spent(
            p.label if isinstance(p, Part) else p,
            host[p] * scale,
            host[p] / wall,
            device_ms=device[p] * scale if kernels else None,
        )
        for p in shown
    ]


def _origins(spans: list[Event], launches: list[Event]) -> dict[int, str]:
    """The part in which a kernel was launched, by its correlation id; the thread may be autograd's."""
    host = spans[0]["tid"] if spans else 0
    points = [e | {"dur": 0.0, "tid": host} for e in launches if "correlation" in e.get("args", {})]
    events = sorted([*spans, *points], key=lambda e: (e["ts"], -e["dur"]))
    parents = _nested(events).parents
    return {
        e["args"]["correlation"]: events[parent]["name"]
        for e, parent in zip(events, parents, strict=True)
        if parent is not None and "correlation" in e.get("args", {})
    }


class _Nesting(NamedTuple):
    own: list[float]  # duration of every event without those inside it
    parents: list[int | None]  # the innermost event around it


def _nested(events: Sequence[Event]) -> _Nesting:
    """How events of the same thread are nested; they are given in the order of their starts."""
    own, parents = [e["dur"] for e in events], []
    stacks: dict[int, list[int]] = defaultdict(list)
    for number, event in enumerate(events):
        stack = stacks[event["tid"]]
        while stack and _end(events[stack[-1]]) <= event["ts"]:
            stack.pop()
        parents.append(stack[-1] if stack else None)
        if stack:
            own[stack[-1]] -= event["dur"]
        stack.append(number)
    return _Nesting(own, parents)


def _listed(timings: Iterable[tuple[str, float]], scale: float) -> list[Spent]:
    """Times by name, the longest first."""
    times: dict[str, list[float]] = defaultdict(list)
    for name, time in timings:
        times[name].append(time)
    total = sum(map(sum, times.values())) or 1.0
    per_round = 1e3 * scale  # calls are counted, not timed
    found = [Spent(n, sum(t) * scale, sum(t) / total, len(t) * per_round) for n, t in times.items()]
    return sorted(found, key=lambda spent: -spent.ms)


def _covered(events: list[Event]) -> float:
    """How long at least one of them was active."""
    covered, until = 0.0, float("-inf")
    for event in sorted(events, key=lambda e: e["ts"]):
        covered += max(0.0, _end(event) - max(until, event["ts"]))
        until = max(until, _end(event))
    return covered


def _end(event: Event) -> float:
    end: float = event["ts"] + event["dur"]
    return end
