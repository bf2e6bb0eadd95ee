"""The arguments of `simulate`: objects that may also be given by name, and the options."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from undrift.core import check
from undrift.simulation.options import Auto, Option, Options, by_data, declared, given, listed, option, registry, text

if TYPE_CHECKING:  # declarations import nothing slow
    from torch import nn
    from torch.utils.data import Dataset

    from undrift.algorithms.text import Written
    from undrift.client.learner import SampleLoss
    from undrift.client.metrics import Metric
    from undrift.data import FederatedData
    from undrift.data.augment import Augment
    from undrift.data.federated import Clients
    from undrift.methods.aggregate import Aggregate
    from undrift.methods.algorithm import Algorithm
    from undrift.methods.attack import Attack
    from undrift.methods.codec import Codec
    from undrift.methods.plugin import Plugin
    from undrift.methods.private import Privacy
    from undrift.simulation.callbacks import CallbackLike

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class Objects:
    """What is trained on what: objects, most of which may be given by name."""

    algorithm: str | Algorithm | Written = field(
        metadata={
            "meaning": 'a name such as "fedhbm" or "fedprox(mu=0.1)", or an instance: ud.algorithms.FedHBM(); settings '
            'of the run may stand with the options, "fedadam(server_lr=0.01, lr=0.03)", and win over the arguments'
        }
    )
    model: str | nn.Module | None = field(
        default=None,
        metadata={
            "meaning": "a module, whose parameters are the starting point and which is never changed, or a name; None "
            "for the data set's own"
        },
    )
    data: str | FederatedData | Clients | None = field(
        default=None,
        metadata={
            "meaning": "a pair of arrays (x, y) or a torch Dataset for every client, in a list or {name: ...}; "
            "a FederatedData, or a name; never left out"
        },
    )
    test: tuple[Any, Any] | Dataset[Any] | None = field(
        default=None,
        metadata={
            "meaning": "held-out samples, (x, y) or a torch Dataset; a named or federated data set brings its own"
        },
    )
    loss: SampleLoss | None = given("None for cross-entropy, or f(output, target) with one value per sample")
    augment: str | Augment | Auto | None = by_data(
        None,
        "augmentation: a name, or f(x, key, step) on a batch; None for none",
        text(names=registry("data.augment", "AUGMENTATIONS")),
        section="run",
        none="none",
    )
    metrics: Mapping[str, Metric] | Sequence[str] | str = option(
        (),
        "further figures of every evaluation: names, or {name: f(outputs, targets)}",
        listed(registry("client.metrics", "METRICS")),
        section="run",
    )
    plugins: Sequence[Plugin | str] = option(
        (),
        "corrections that are added to the algorithm's own: pgvc(layers=1), ud.PGVC(layers=1)",
        listed(registry("plugins", "available")),
        section="run",
    )
    aggregate: str | Aggregate = option(
        "mean",
        'how client updates become one: a name, with options as in "krum(share=0.2)", or f(updates, weights)',
        text(names=registry("methods.aggregate", "AGGREGATES")),
        section="server",
    )
    compress: str | Codec | None = option(
        None,
        'how replies are encoded for transmission: a name, with options as in "top-k(share=0.01)", or a codec such as '
        "ud.Half()",
        text(names=registry("methods.codecs", "CODECS")),
        section="run",
    )

    privacy: str | Privacy | None = option(
        None,
        "client-level differential privacy: ud.Privacy(clip=1.0, noise=1.0, delta=1e-5), in text "
        '"gaussian(clip=1.0, noise=1.0)": clients cut their updates, the server adds noise, the history has ε',
        text("gaussian(clip=1.0, noise=1.0, delta=1e-5)"),
        section="server",
    )

    attack: str | Attack | None = option(
        None,
        'clients that harm the model, to test defences: ud.Attack("sign-flip", share=0.3), in text '
        '"sign-flip(share=0.3)"; which clients, is drawn by the seed',
        text(names=registry("methods.attack", "KINDS")),
        section="run",
    )

    def __post_init__(self) -> None:
        if isinstance(self.augment, str) and self.augment == "none":
            object.__setattr__(self, "augment", None)
        if isinstance(self.metrics, str):
            object.__setattr__(self, "metrics", tuple(name.strip() for name in self.metrics.split(",")))


@dataclass(frozen=True)
class Arguments(Options, Objects):
    """All arguments of `simulate`."""

    callbacks: Iterable[CallbackLike] = given(
        "functions f(row, run), or ud.Callback objects with begin, round, end; a true result of a round ends the run",
        (),
    )
    out: str | Path | None = given("a directory for everything needed to inspect, resume and report")
    overwrite: bool = given("whether a run in `out` is replaced", False)
    resume: bool = given("whether a run in `out` is continued, if there is one with the same settings", False)
    on_divergence: str = given('"raise" a DivergenceError, or "stop" and return the rounds so far', "raise")

    def __post_init__(self) -> None:
        Objects.__post_init__(self)
        Options.__post_init__(self)
        if self.out is not None:
            check.path("out", self.out)
        for name in ("overwrite", "resume"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {check.shown(getattr(self, name))}")
            if getattr(self, name) and self.out is None:
                raise ValueError(f"{name}=True needs a directory; give out=")
        if self.overwrite and self.resume:
            raise ValueError("give overwrite=True or resume=True, not both")
        check.choice("on_divergence", self.on_divergence, ("raise", "stop"))

    @property
    def objects(self) -> Objects:
        return _part(self, Objects)

    @property
    def options(self) -> Options:
        return _part(self, Options)


def settings() -> list[Option]:
    """All that a configuration file can hold, besides data, model and algorithm."""
    return list(declared(Arguments))


def read_settings(given: Mapping[str, Any], besides: Iterable[str] = ()) -> dict[str, Any]:
    """Arguments of `simulate` from ``{"section.key": value}``; `besides` are keys that the caller knows."""
    known = {option.path: option for option in settings()}
    found = {}
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"unknown key {check.shown(key)}{check.nearest(key, [*besides, *known])}")
        found[known[key].name] = _checked(known[key], value)
    return found


def _checked(option: Option, value: Any) -> Any:
    if isinstance(value, str) and value in option.words:
        return None if value == option.none else value
    if not option.kind.fits(value):
        allowed = " or ".join([option.kind.words, *(f'"{word}"' for word in option.words)])
        raise ValueError(f"{option.path} must be {allowed}, got {check.shown(value)}")
    return value


def _part(whole: Arguments, kind: type[T]) -> T:
    return kind(**{each.name: getattr(whole, each.name) for each in fields(kind)})  # type: ignore[arg-type]


def takes(arguments: Callable[P, T]) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Lets a function of one dataclass be called with the dataclass's arguments, and explains them in its docstring."""

    def decorate(function: Callable[[T], R]) -> Callable[P, R]:
        signature = inspect.signature(arguments)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in signature.parameters:
                    near = check.nearest(name, signature.parameters)
                    raise TypeError(f"{function.__name__} has no argument {name!r}{near}")
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}: {error}") from None
            return function(arguments(*args, **kwargs))

        result = inspect.signature(function, eval_str=False).return_annotation
        call.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
        call.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n{_explained(arguments)}"
        return call

    return decorate


def _explained(arguments: Any) -> str:
    options = {each.name: each.meaning for each in declared(arguments)}
    lines = []
    for each in fields(arguments):
        meaning = options.get(each.name) or each.metadata["meaning"]
        entry = f"{each.name}: {meaning}."
        lines.append(textwrap.fill(entry, 116, initial_indent="    ", subsequent_indent="        "))
    return "\n".join(lines)
