"""The settings of a run, each declared once: default, meaning, allowed values, and its key in a configuration file.

The signature and the docstring of `simulate`, the keys of a TOML file, the help of ``--set``, the page of settings in
the documentation and the checks all follow from the fields below.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from undrift.core import check

if TYPE_CHECKING:
    from undrift.transport.faults import Faults

Cohorts = int | float | Sequence[Sequence[int]] | None
SEEDS = 2**32  # the random generator's

AUTO = "auto"  # the default of settings that data set or algorithm may have a value of their own for (`defaults.py`)
Auto = Any  # the type of that word, which the options of a run no longer hold once its data set is known


class Kind(NamedTuple):
    """What values an option takes. Declarations import nothing slow, so that the command line's help is instant."""

    words: str  # for messages
    types: tuple[type, ...]  # of the values that a configuration file may hold
    check: Callable[[str, Any], None]  # raises what is wrong with a value
    values: Callable[[], str]  # for documentation: the same with ranges and names

    def fits(self, value: Any) -> bool:
        """Whether a value of a configuration file has the right type; in TOML, true is no number."""
        return type(value) in self.types


def whole(low: int, high: int = check.MOST) -> Kind:
    def check_value(name: str, value: Any) -> None:
        check.integer(name, value, low, high)

    limits = f"from {low} on" if high == check.MOST else f"from {low} to {high}"
    return Kind("a whole number", (int,), check_value, lambda: f"a whole number {limits}")


def number(low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False) -> Kind:
    def check_value(name: str, value: Any) -> None:
        check.number(name, value, low, high, open_low=open_low, open_high=open_high)

    limits = check.interval(low, high, open_low=open_low, open_high=open_high)
    return Kind("a number", (int, float), check_value, lambda: f"a number {limits}")


def choice(names: Callable[[], Sequence[str]]) -> Kind:
    """One of some names, which are asked for when they are needed."""

    def check_value(name: str, value: Any) -> None:
        check.choice(name, value, names())

    return Kind("a text", (str,), check_value, lambda: ", ".join(names()))


def text(values: str = "a text", names: Callable[[], Sequence[str]] | None = None) -> Kind:
    """A text that is checked where it is used; `names` are those it may be, among others."""

    def check_value(name: str, value: Any) -> None:
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a text, got {check.shown(value)}")

    return Kind("a text", (str,), check_value, lambda: values if names is None else ", ".join(names()))


def listed(names: Callable[[], Sequence[str]]) -> Kind:
    """Names out of a registry, or objects; which of them is checked where they are used."""

    def check_value(name: str, value: Any) -> None:
        if not isinstance(value, str | Sequence | Mapping):
            raise TypeError(f"{name} must be names or objects, got {check.shown(value)}")

    return Kind("a name or a list of names", (str, list), check_value, lambda: ", ".join(names()))


def clients() -> Kind:
    """How many clients take part is checked once their number is known (`cohort.size`)."""
    words = "a number, a fraction, or a list of clients for every round"

    def check_value(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float | list):
            raise TypeError(
                f"{name} must be 'auto', 'all', a number, a fraction or a list of lists, got {check.shown(value)}"
            )

    return Kind(words, (int, float, list), check_value, lambda: words)


def engine() -> Kind:
    """A name, which is checked where engines are known, and for some a number of clients at a time."""
    names = "auto, batched, compiled, sequential"

    def check_value(name: str, value: Any) -> None:
        text(names).check(name, value)
        _, colon, count = value.partition(":")
        if colon and not re.fullmatch("[0-9]{1,9}", count):
            raise ValueError(
                f"{name}: a number of clients at a time, below {10**9}, is given as in 'batched:16', "
                f"got {check.shown(value)}"
            )

    return text(names)._replace(check=check_value)


def fault() -> Kind:
    """Faults are checked where they are known."""
    words = 'probabilities, as in "dropout=0.2, lost=0.1"'
    return Kind("a text", (str,), lambda name, value: None, lambda: words)


COSINE = "cosine"


def decay() -> Kind:
    """A factor, or the name of a curve."""
    factor = number(0, 1, open_low=True)

    def check_value(name: str, value: Any) -> None:
        if isinstance(value, str) and value != COSINE:
            raise ValueError(f'{name} must be a number or "{COSINE}", got {check.shown(value)}')
        if not isinstance(value, str):
            factor.check(name, value)

    words = f'{factor.values()}, or "{COSINE}"'
    return Kind(f'a number or "{COSINE}"', (int, float, str), check_value, lambda: words)


def registry(module: str, attribute: str) -> Callable[[], Sequence[str]]:
    """The names in a registry of undrift, which is imported when they are asked for."""

    def names() -> Sequence[str]:
        found = getattr(import_module(f"undrift.{module}"), attribute)
        return tuple(found() if callable(found) else found)

    return names


class Option(NamedTuple):
    """The declaration of one setting."""

    name: str  # the argument of `simulate`
    default: Any
    meaning: str
    kind: Kind
    section: str  # of a configuration file
    key: str  # in that section
    none: str | None = None  # a word for None, where that is not the default
    left_open: bool = False  # whether data set or algorithm may have a value of their own, for which "auto" stands
    general: Any = None  # what "auto" stands for with all others

    @property
    def path(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def words(self) -> tuple[str, ...]:
        """What may be written instead of a value."""
        return (*([] if self.none is None else [self.none]), *([AUTO] if self.left_open else []))


_DECLARED = "option"  # the entry of a field's metadata


def option(
    default: Any,
    meaning: str,
    kind: Kind,
    *,
    section: str,
    key: str | None = None,
    none: str | None = None,
) -> Any:
    """A field of a dataclass that is an option. None is allowed where it is the default, or where `none` names it."""
    declared = {"default": default, "meaning": meaning, "kind": kind, "section": section, "key": key, "none": none}
    return field(default=default, kw_only=True, metadata={_DECLARED: declared})


def by_data(general: Any, meaning: str, kind: Kind, *, section: str, none: str | None = None) -> Any:
    """An option whose default is the data set's own setting, or else `general`."""
    return _left_open(general, meaning=meaning, kind=kind, section=section, key=None, none=none)


def by_algorithm(general: Any, meaning: str, kind: Kind, *, section: str, key: str) -> Any:
    """An option whose default is the algorithm's own setting, which is `general` for most."""
    return _left_open(general, meaning=meaning, kind=kind, section=section, key=key, none=None)


def _left_open(general: Any, **declared: Any) -> Any:
    whole = declared | {"default": AUTO, "left_open": True, "general": general}
    return field(default=AUTO, kw_only=True, metadata={_DECLARED: whole})


def given(meaning: str, default: Any = None) -> Any:
    """A field of a dataclass for an object that no configuration file can hold."""
    return field(default=default, kw_only=True, metadata={"meaning": meaning})


def declared(kind: Any) -> Iterator[Option]:
    """The options among the fields of a dataclass."""
    for each in fields(kind):
        if found := _declaration(each):
            yield found


def _declaration(each: Field[Any]) -> Option | None:
    found = each.metadata.get(_DECLARED)
    return None if found is None else Option(each.name, **found | {"key": found["key"] or each.name})


_OF_RAY = ("actors", "actor_threads", "address")  # options that have a meaning there only


@dataclass(frozen=True)
class Options:
    """The settings that are plain values, which a run directory stores as they are."""

    rounds: int | Auto = by_data(100, "rounds of training, in total", whole(1), section="run")
    cohort: Cohorts | Auto = by_data(
        0.2,
        "clients of a round: a number (1 is one client), a fraction (1.0 is everyone), or a list of clients for every "
        "round; auto: everyone where there are up to ten clients, else the data set's own, else a fifth",
        clients(),
        section="run",
        none="all",
    )
    epochs: int = option(1, "local passes over a client's samples", whole(1), section="local")
    steps: int | None = option(None, "local steps, instead of epochs", whole(1), section="local")
    batch_size: int | Auto | None = by_data(
        32, "samples of a local step; None for all", whole(1), section="local", none="full"
    )
    lr: float | Auto = by_data(0.01, "local learning rate", number(0, open_low=True), section="local")
    momentum: float = option(0.0, "momentum of the local optimiser", number(0, 1, open_high=True), section="local")
    weight_decay: float | Auto = by_data(0.0, "weight decay of the local objective", number(0), section="local")
    optimizer: str = option("sgd", "local optimiser", choice(registry("client.optim", "OPTIMIZERS")), section="local")
    server_lr: float | Auto = by_algorithm(
        1.0,
        "the server's learning rate; auto: the algorithm's own, which is not 1 for FedAdagrad, FedAdam and FedYogi",
        number(0, open_low=True),
        section="server",
        key="lr",
    )
    weighting: str | None = option(
        AUTO,
        "client weights: by samples, uniform, or None for what the algorithm's paper uses; auto: the paper's in a "
        "single run, by samples for all algorithms of a comparison, uniform with privacy",
        choice(lambda: (AUTO, "samples", "uniform")),
        section="server",
        none="paper",
    )
    eval_every: int | Auto = by_data(
        1, "rounds between evaluations; the last is always evaluated", whole(1), section="run"
    )
    target: float | None = option(None, "stop as soon as this accuracy is reached", number(0, 1), section="run")
    patience: int | None = option(
        None,
        "stop when accuracy (without one, the test loss) has not improved for this many evaluations",
        whole(1),
        section="run",
    )
    seed: int = option(0, "seed of everything random", whole(0, SEEDS - 1), section="run")
    device: str | None = option(
        None,
        "None for a CUDA GPU if there is one, else the CPU; mps, an Apple GPU, is used when asked for",
        text("cpu, cuda, cuda:1 or mps"),
        section="run",
    )
    dtype: str | None = option(
        None,
        "precision of the parameters; None for the model's",
        choice(lambda: ("float32", "float64")),
        section="run",
    )
    place: str = option(
        "local", "where clients are computed", choice(registry("simulation.place", "PLACES")), section="run"
    )
    faults: Faults | str | None = option(
        None,
        "simulated faults of clients, each with its probability: ud.Faults(dropout=0.2, lost=0.1, slow=0, twice=0, "
        "corrupt=0)",
        fault(),
        section="run",
    )
    min_answers: int = option(
        1, "answers that a round needs; with fewer it is repeated with other clients", whole(1), section="run"
    )
    attempts: int = option(
        3, "at a round that too few clients answer, before the run stops with a checkpoint", whole(1), section="run"
    )
    actors: int | None = option(
        None,
        "on Ray, the number of actors, each with its share of the clients; None for as many as there are cores for and "
        "a round has clients",
        whole(1),
        section="run",
    )
    actor_threads: int = option(1, "on Ray, the threads of every actor", whole(1, 1024), section="run")
    address: str | None = option(
        None,
        "on Ray, the address of a cluster, auto for the one on this machine; None starts one, and ends it",
        text("host:port or auto"),
        section="run",
    )
    engine: str = option(
        "auto",
        "how clients are computed: batched (batched:16 for sixteen at a time), compiled (batched, and compiled to C++, "
        "which takes a while) or sequential (a core for a client, sequential:4: four); auto chooses by model and "
        "device",
        engine(),
        section="run",
    )
    clip: float | None = option(
        None,
        "largest norm of a minibatch gradient, clipped before any correction",
        number(0, open_low=True),
        section="local",
    )
    lr_decay: float | str = option(
        1.0,
        'factor on the local learning rate after every round, or "cosine": from the rate down to 0 over all rounds',
        decay(),
        section="local",
    )
    buffers: str = option(
        "averaged",
        "what becomes of BatchNorm statistics and other buffers",
        choice(registry("methods.averaging", "BUFFER_POLICIES")),
        section="run",
    )
    precision: str | None = option(
        None,
        "fp32; tf32, the default on a GPU, which rounds the factors of products to ten bits; or bf16, which computes "
        "in bfloat16 and keeps parameters in single precision",
        choice(registry("engines.determinism", "PRECISIONS")),
        section="run",
    )
    diagnostics: str | Sequence[str] = option(
        (),
        "figures of client drift in every round, by name: of the whole model as columns of the history, and by layer",
        listed(registry("diagnostics", "DIAGNOSTICS")),
        section="run",
    )

    def __post_init__(self) -> None:
        for each in declared(Options):
            value = plain(getattr(self, each.name))
            if isinstance(value, str) and value == each.none:
                value = None
            object.__setattr__(self, each.name, value)
            if isinstance(value, str) and value in each.words:
                continue
            if value is not None or (each.default is not None and each.none is None):
                each.kind.check(each.name, value)
        if self.steps is not None and self.epochs != 1:
            raise ValueError(f"give epochs or steps, not both; got epochs={self.epochs} and steps={self.steps}")
        self._check_place()
        from undrift import diagnostics  # imports torch
        from undrift.client.optim import optimizer
        from undrift.transport.faults import Faults

        object.__setattr__(self, "faults", Faults.of(self.faults))
        optimizer(self.optimizer, self.momentum)  # refuses a momentum that it has no use for
        object.__setattr__(self, "diagnostics", diagnostics.listed(self.diagnostics))

    def _check_place(self) -> None:
        for each in declared(Options):
            value = getattr(self, each.name)
            if self.place != "ray" and each.name in _OF_RAY and value != each.default:
                raise ValueError(f"{each.name}={check.shown(value)} is for place='ray', got place={self.place!r}")
        if self.place != "local" and self.engine.startswith("compiled"):
            raise ValueError(f"engine={self.engine!r} compiles whole rounds, for place='local'; use 'batched'")

    @property
    def may_end_early(self) -> bool:
        """Whether the number of rounds is only a limit."""
        return self.target is not None or self.patience is not None

    def rate(self, round: int) -> float:
        """The local learning rate of a round; it decays no further than to what single precision can hold."""
        if isinstance(self.lr_decay, str):
            factor = (1 + math.cos(math.pi * (round - 1) / self.rounds)) / 2
        else:
            factor = self.lr_decay ** (round - 1)
        return max(self.lr * factor, check.SMALLEST)


_LONGEST = 1 << 20  # a sequence that is computed, such as a range, may have any length


def plain(value: Any, depth: int = 2) -> Any:
    """Numbers, arrays and lists of numbers and torch's names as values that JSON can store."""
    value = check.plain(value)
    if type(value).__module__ == "torch" and not hasattr(value, "tolist"):  # a device or a dtype
        return str(value).removeprefix("torch.")
    if not depth or not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
        return value
    if not isinstance(value, list | tuple) and len(value) > _LONGEST:
        return value
    return [plain(v, depth - 1) for v in value]
