"""Random generators that are not ours: which of them a user's code draws from, and putting them back as they were.

Numbers from such a generator depend on what else has used it, on the engine and on the order of clients. So no code
that a run calls may draw from one: `Watch` runs a piece of it and refuses it by the name of what drew.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from undrift.core import torch_private
from undrift.core.log import notice

_SEARCHED = 20_000  # objects at most, in search of generators
_REMEDY = "use dropout, torch.rand, torch.randn or another function of PyTorch's that undrift makes reproducible"


class Generator(NamedTuple):
    name: str
    read: Callable[[], Any]  # its state
    write: Callable[[Any], Any]


def shared() -> list[Generator]:
    """The generators that all code uses unless it says otherwise."""
    default = torch.default_generator
    found = [Generator("torch's default generator", default.get_state, default.set_state)]
    if torch.cuda.is_initialized():
        for each in torch.cuda.default_generators:
            found.append(Generator(f"torch's generator of {each.device}", each.get_state, each.set_state))
    return [
        *found,
        Generator("NumPy's global generator (numpy.random)", partial(np.random.get_state, False), np.random.set_state),
        Generator("Python's global generator (random)", random.getstate, random.setstate),
    ]


def owned(owner: Any) -> list[Generator]:
    """The generators that a module or a function holds: attributes, closures and the global names it uses."""
    found: list[Generator] = []
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", owner)]
    while waiting and len(seen) < _SEARCHED:
        name, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if (generator := _as_generator(value, name)) is not None:
            found.append(generator)
        else:
            waiting += [(_path(name, part), held) for part, held in _parts(value)]
    return found


def _path(name: str, part: str) -> str:
    return ".".join(each for each in (name, part) if each not in ("", "_modules"))


def _as_generator(value: Any, name: str) -> Generator | None:
    what = f"{type(value).__module__.split('.')[0]}'s {type(value).__name__} {name!r}"
    if isinstance(value, torch.Generator):
        return Generator(what, value.get_state, value.set_state)
    if isinstance(value, random.Random):
        return Generator(what, value.getstate, value.setstate)
    if isinstance(value, np.random.RandomState):
        return Generator(what, partial(value.get_state, False), value.set_state)
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        return Generator(what, lambda: bits.state, lambda state: setattr(bits, "state", state))
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object of the user's refers to, with names."""
    if isinstance(value, Mapping):
        yield from ((str(key), held) for key, held in list(value.items()))
    elif isinstance(value, list | tuple | set):
        yield from ((str(number), held) for number, held in enumerate(value))
    elif isinstance(value, MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, partial):
        yield from (("", value.func), ("", value.args), ("", value.keywords))
    elif isinstance(value, FunctionType):
        if _foreign(value.__module__):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            yield from ((name, cell.cell_contents) for name, cell in cells if _filled(cell))
            yield from (
                (name, value.__globals__[name]) for name in value.__code__.co_names if name in value.__globals__
            )
            yield from (("", value.__defaults__), ("", value.__kwdefaults__), ("", vars(value)))
    elif isinstance(value, nn.Module) or _foreign(type(value).__module__):
        yield from getattr(value, "__dict__", {}).items()
        yield from (
            ("", held) for kind in type(value).__mro__ if _foreign(kind.__module__) for held in vars(kind).values()
        )


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _foreign(module: str | None) -> bool:
    """Whether code is the user's: neither PyTorch's, NumPy's, Python's nor our own."""
    top = (module or "").partition(".")[0]
    return top not in {"torch", "numpy", "undrift", *sys.stdlib_module_names} or top == "__main__"


@contextmanager
def kept(*owners: Any) -> Iterator[None]:
    """Afterwards, the shared generators and those that the owners hold are as they were before."""
    generators = [*shared(), *(generator for owner in owners for generator in owned(owner))]
    before = [generator.read() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.write(state)


def states(generators: Sequence[Generator]) -> list[Any]:
    """Their states, as values that can be compared."""
    return [_comparable(generator.read()) for generator in generators]


def _comparable(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.cpu().numpy().tobytes()
    if isinstance(state, np.ndarray):
        return state.tobytes()
    if isinstance(state, Mapping):
        return [(key, _comparable(value)) for key, value in state.items()]
    return state


@contextmanager
def noticed() -> Iterator[None]:
    """Tells the user if a shared generator is used meanwhile, by code that draws in some calls only."""
    generators = shared()
    before = states(generators)
    yield
    for each, old, new in _together(generators, before, states(generators)):
        if old != new:
            notice(
                f"{each.name} was used during the run, by a model, a loss, an augmentation or a metric that did not "
                "use it when it was tried before: another run may give other numbers"
            )


class Watch:
    """Runs pieces of a user's code, and refuses one that draws from a generator that is not ours.

    Shared generators must be left alone. A generator of the code's own may be used if it is seeded anew in every run:
    then it is in the same state after two of them.
    """

    def __init__(self, *owners: Any) -> None:
        self._names = {part: name for owner in owners if isinstance(owner, nn.Module) for name, part in _named(owner)}
        self._owned = [generator for owner in owners for generator in owned(owner)]
        self._after: dict[str, list[Any]] = {}  # states of the owned generators after the first run

    @contextmanager
    def __call__(self, what: str, remedy: str = _REMEDY) -> Iterator[None]:
        """Refuses `what`, such as "the model", if it draws meanwhile."""
        generators, drew = shared(), list[str]()
        before, owned_before = states(generators), states(self._owned)
        with torch_private.each_operation(partial(self._noting, drew)):
            yield
        changed = [each.name for each, old, new in _together(generators, before, states(generators)) if old != new]
        after = states(self._owned)
        first = self._after.setdefault(what, after)
        owned = _together(self._owned, owned_before, first, after)
        changed += [each.name for each, old, once, new in owned if old != new != once]
        if drew or changed:
            by = f"by {drew[0]}" if drew else f"from {changed[0]}"
            raise ValueError(f"{what} draws random numbers {by}, so that no two runs would give the same; {remedy}")

    def _noting(self, drew: list[str], name: str, operation: Callable[[], Any]) -> Any:
        generators = [each for each in shared() if each.name.startswith("torch")]
        before = states(generators)
        result = operation()
        if states(generators) != before:
            drew.append(f"{_public(name)}{self._place()}")
        return result

    def _place(self) -> str:
        """The submodule whose code is being run."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            part = frame.f_locals.get("self")
            if isinstance(part, nn.Module) and self._names.get(part):
                return f" in its submodule {self._names[part]!r}"
            frame = frame.f_back
        return ""


def _named(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(module.named_modules())


def _together(*columns: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return zip(*columns, strict=True)


def _public(operation: str) -> str:
    """The function that users call an operation by."""
    if hasattr(torch, operation):
        return f"torch.{operation}"
    return f"Tensor.{operation}" if hasattr(Tensor, operation) else operation
