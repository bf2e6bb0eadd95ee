"""Arguments of `simulate`, checked before anything is computed and made ready to run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from undrift import algorithms, models
from undrift.client.evaluate import scores_classes
from undrift.client.learner import IGNORED, Learner, SampleLoss
from undrift.client.optim import optimizer
from undrift.client.task import Augment
from undrift.core import check
from undrift.core.random import SEED_LIMIT, Key
from undrift.data import augment as augmentation
from undrift.data import load
from undrift.data.batches import Schedule, Shape, Table, shared_shape
from undrift.data.federated import FederatedData, held_out
from undrift.engines import Engine, Rehearsal, Work, choose
from undrift.engines.determinism import PRECISIONS, arithmetic, find_precision
from undrift.methods.algorithm import Algorithm, Setting
from undrift.methods.averaging import BUFFER_POLICIES
from undrift.plugins.pgvc import PGVC
from undrift.protocol import Method

Cohorts = int | float | Sequence[Sequence[int]] | None
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Options:
    """The plain arguments of `simulate`: all that is not an algorithm, a model or data."""

    rounds: int = 100
    cohort: Cohorts = None
    epochs: int = 1
    steps: int | None = None
    batch_size: int | None = 32
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "sgd"
    server_lr: float = 1.0
    weighting: str | None = None
    eval_every: int = 1
    target: float | None = None
    seed: int = 0
    device: str | None = None
    dtype: str | None = None
    engine: str = "auto"
    clip: float | None = None
    lr_decay: float = 1.0
    buffers: str = "averaged"
    precision: str | None = None

    def __post_init__(self) -> None:
        for option in fields(self):
            object.__setattr__(self, option.name, _plain(getattr(self, option.name)))
        check.integer("rounds", self.rounds, 1)
        check.integer("epochs", self.epochs, 1)
        if self.steps is not None:
            check.integer("steps", self.steps, 1)
            if self.epochs != 1:
                raise ValueError(f"give epochs or steps, not both; got epochs={self.epochs} and steps={self.steps}")
        if self.batch_size is not None:
            check.integer("batch_size", self.batch_size, 1)
        check.number("lr", self.lr, 0, open_low=True)
        check.number("weight_decay", self.weight_decay, 0)
        check.number("server_lr", self.server_lr, 0, open_low=True)
        if self.weighting is not None:
            check.choice("weighting", self.weighting, ("samples", "uniform"))
        check.integer("eval_every", self.eval_every, 1)
        if self.target is not None:
            check.number("target", self.target, 0, 1)
        check.integer("seed", self.seed, 0)
        if self.seed >= SEED_LIMIT:
            raise ValueError(f"seed must be less than {SEED_LIMIT}, got {self.seed}")
        if self.clip is not None:
            check.number("clip", self.clip, 0, open_low=True)
        check.number("lr_decay", self.lr_decay, 0, 1, open_low=True)
        check.choice("buffers", self.buffers, BUFFER_POLICIES)
        if self.precision is not None:
            check.choice("precision", self.precision, PRECISIONS)
        if self.dtype is not None:
            check.choice("dtype", self.dtype, _DTYPES)
        optimizer(self.optimizer, self.momentum)


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's, which JSON can store."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Experiment:
    """Everything a run needs, on its device."""

    options: Options
    algorithm: Algorithm
    method: Method
    learner: Learner
    data: FederatedData
    table: Table
    test: tuple[Tensor, Tensor] | None
    schedule: Schedule
    augment: Augment | None
    engine: Engine
    engine_reason: str
    precision: str
    weighting: str
    description: dict[str, Any]  # plain values from which `resume` makes it again, or fingerprints it is checked with

    def rate(self, round: int) -> float:
        """The local learning rate of a round."""
        return self.options.lr * self.options.lr_decay ** (round - 1)

    def work(self, ids: np.ndarray[Any, np.dtype[np.int64]], round: int, shares: Tensor) -> Work:
        """The work of these clients in a round, as the engine arranges it."""
        sizes, device = self.data.sizes, self.learner.device
        shapes, order = self.engine.arrange(self.schedule, sizes[ids], (int(sizes.min()), int(sizes.max())))
        places = torch.from_numpy(ids).to(device)
        return make_work(
            self,
            self.table,
            shapes,
            places,
            places,
            shares,
            None if order is None else torch.from_numpy(order).to(device),
            participation=len(ids) / len(self.data),
            seed=self.options.seed,
            round=round,
            lr=self.rate(round),
        )


def make_work(
    experiment: Experiment,
    table: Table,
    shapes: tuple[Shape, ...],
    places: Tensor,
    ids: Tensor,
    shares: Tensor,
    order: Tensor | None,
    *,
    participation: float,
    seed: int | Tensor,
    round: int | Tensor,
    lr: float | Tensor,
) -> Work:
    """Work for an engine: what the experiment fixes, and what a round decides."""
    options = experiment.options
    return Work(
        learner=experiment.learner,
        table=table,
        shapes=shapes,
        order=order,
        places=places,
        ids=ids,
        shares=shares,
        schedule=experiment.schedule,
        seed=seed,
        round=round,
        lr=lr,
        participation=participation,
        weight_decay=options.weight_decay,
        clip=options.clip,
        augment=experiment.augment,
    )


def prepare(
    algorithm: str | Algorithm,
    model: str | nn.Module,
    data: str | FederatedData | Sequence[tuple[Any, Any]],
    test: tuple[Any, Any] | None,
    loss: SampleLoss | None,
    augment: str | Augment | None,
    options: Options,
    beside: Experiment | None = None,
) -> Experiment:
    """Everything for a run. `beside` is another one, with which samples are shared where they are the same."""
    chosen = find_algorithm(algorithm)
    federation = find_data(data, options.seed)
    device = find_device(options.device)
    held = federation.test if test is None else held_out(test)
    if options.target is not None and held is None:
        raise ValueError(f"target={options.target} needs a test set; give test=(x, y)")
    module = find_model(model, federation, options.seed)
    learner = Learner(
        module,
        _checked_loss(loss),
        device,
        _DTYPES.get(options.dtype or ""),
        federation.normalise,
        half=options.precision == "bf16",
    )
    precision = find_precision(options.precision, device, learner.dtype)
    cohort_size(options, len(federation))
    _fit(learner, federation, held)
    setting = Setting(
        learner.layout,
        optimizer(options.optimizer, options.momentum),
        options.server_lr,
        options.buffers,
        len(federation),
        options.seed,
    )
    method = chosen.method(setting)
    schedule = Schedule(options.batch_size, None if options.steps else options.epochs, options.steps)
    table = Table.of(federation, device)
    if beside is not None and _same(table, beside.table):
        table = beside.table if federation is beside.data else table._replace(x=beside.table.x, y=beside.table.y)
    enlarge = _find_augmentation(augment, learner, federation)
    with arithmetic(precision):
        rehearsal = Rehearsal(
            federation,
            table,
            learner,
            schedule,
            enlarge,
            options.seed,
            precision,
            rounds=options.rounds if options.target is None else 1,  # it may end at any time
            uneven=_uneven(options, schedule, federation),
        )
        engine, reason = choose(options.engine, method, rehearsal)
    return Experiment(
        options,
        chosen,
        method,
        learner,
        federation,
        table,
        None if held is None else (held[0].to(device), held[1].to(device)),
        schedule,
        enlarge,
        engine,
        reason,
        precision,
        options.weighting or chosen.weighting,
        {
            "algorithm": describe_algorithm(chosen),
            "model": model if isinstance(model, str) else {"fingerprint": _module_fingerprint(module)},
            "data": federation.recipe or {"fingerprint": federation.fingerprint()},
            "test": None if test is None else {"fingerprint": _pair_fingerprint(held)},
            "loss": None if loss is None else {"fingerprint": _callable_name(loss)},
            "augment": augment
            if augment is None or isinstance(augment, str)
            else {"fingerprint": _callable_name(augment)},
        },
    )


def _same(a: Table, b: Table) -> bool:
    """Whether two federations are made of the same samples, in the same order."""
    return all(p.dtype == q.dtype and p.shape == q.shape and torch.equal(p, q) for p, q in ((a.x, b.x), (a.y, b.y)))


def find_algorithm(algorithm: str | Algorithm) -> Algorithm:
    if isinstance(algorithm, str):
        return algorithms.find(algorithm)()
    if isinstance(algorithm, Algorithm):
        return algorithm
    raise TypeError(f"algorithm must be a name or an instance such as ud.algorithms.FedHBM(), got {algorithm!r}")


def describe_algorithm(algorithm: Algorithm) -> dict[str, Any]:
    """Name and options; an option that is no plain value (a state dict) is fingerprinted."""
    return {"name": algorithm.name(), "options": {k: _described(v) for k, v in algorithm.options().items()}}


def _described(value: Any) -> Any:
    if isinstance(value, PGVC):
        return {k: _described(v) for k, v in vars(value).items()}
    if isinstance(value, Mapping):
        return {"fingerprint": _tree_fingerprint(value)}
    return list(value) if isinstance(value, tuple) else value


def find_data(data: Any, seed: int) -> FederatedData:
    if isinstance(data, FederatedData):
        return data
    if isinstance(data, str):
        return load(data, seed=seed)
    if isinstance(data, Sequence):
        return FederatedData.from_clients(data)
    raise TypeError(f"data must be a list of pairs (x, y), a FederatedData or a name, got {type(data).__name__}")


def find_model(model: Any, data: FederatedData, seed: int) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, str):
        return models.build(model, tuple(data.x.shape[1:]), data.classes, seed)
    raise TypeError(f"model must be a torch.nn.Module or a name, got {type(model).__name__}")


def find_device(device: str | None) -> torch.device:
    """The device asked for; without a wish, a GPU if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device must be 'cpu' or 'cuda', got {device!r}") from None
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'cpu' or 'cuda', got {device!r}")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r} was asked for, but no CUDA device is available")
    return found


def cohort_size(options: Options, population: int) -> int | None:
    """How many clients a round has; None when cohorts are listed one by one. Refuses what cannot be."""
    cohort: Any = options.cohort
    if cohort is None:
        return population
    if isinstance(cohort, bool) or not isinstance(cohort, (int, float, Sequence)) or isinstance(cohort, str):
        raise TypeError(f"cohort must be None, a number, a fraction or a list of lists, got {cohort!r}")
    if isinstance(cohort, int):
        if not 1 <= cohort <= population:
            raise ValueError(f"cohort must lie between 1 and the federation's {population} clients, got {cohort}")
        return cohort
    if isinstance(cohort, float):
        check.number("cohort (a fraction)", cohort, 0, 1, open_low=True)
        return max(1, round(cohort * population))
    if len(cohort) != options.rounds:
        raise ValueError(
            f"cohort as a list must have one entry per round, got {len(cohort)} for {options.rounds} rounds"
        )
    for number, members in enumerate(cohort, 1):
        if isinstance(members, str) or not isinstance(members, Sequence):
            raise TypeError(f"cohort of round {number} must be a list of clients, got {members!r}")
        if not len(members) or len(set(members)) < len(members):
            raise ValueError(f"cohort of round {number} must name different clients, at least one, got {list(members)}")
        wrong = [m for m in members if isinstance(m, bool) or not isinstance(m, int) or not 0 <= m < population]
        if wrong:
            raise ValueError(f"cohort of round {number}: clients are 0..{population - 1}, got {wrong[0]!r}")
    return None


def _uneven(options: Options, schedule: Schedule, data: FederatedData) -> str:
    """Why one shape does not do for the rounds of a run; empty if it does."""
    count, smallest, largest = cohort_size(options, len(data)), int(data.sizes.min()), int(data.sizes.max())
    if count is None and len(lengths := {len(members) for members in options.cohort}) > 1:  # type: ignore[union-attr]
        return f"they have between {min(lengths)} and {max(lengths)} clients"
    if count != len(data) and shared_shape(schedule, smallest, largest) is None:
        return f"those sampled have between {smallest} and {largest} samples"
    return ""


def _fit(learner: Learner, data: FederatedData, test: tuple[Tensor, Tensor] | None) -> None:
    """Refuse a model, a loss and data that do not go together, before anything is computed."""
    bad = [k for k, v in learner.parameters.items() if not bool(torch.isfinite(v).all())]
    if bad:
        raise ValueError(f"the model's parameter {bad[0]!r} is not finite")
    x, y = data.x[:2].to(learner.device), data.y[:2].to(learner.device)
    if test is not None and (test[0].shape[1:] != data.x.shape[1:] or test[1].shape[1:] != data.y.shape[1:]):
        raise ValueError(
            f"test samples have shapes {tuple(test[0].shape[1:])} and {tuple(test[1].shape[1:])}, "
            f"those of clients {tuple(data.x.shape[1:])} and {tuple(data.y.shape[1:])}"
        )
    try:
        output = learner.outputs(learner.parameters, learner.buffers, x)
        learner.listen(torch.cat([x, x]))
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"the model does not accept samples of shape {tuple(data.x.shape[1:])}: {first}") from error
    if learner.refusal:
        raise ValueError(learner.refusal)
    if not isinstance(output, Tensor) or output.ndim == 0 or len(output) != len(x):
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"the model must return a tensor with one row per sample, got {got} for {len(x)} samples")
    if learner.classifies:
        _fit_classes(output, data, test)
    try:
        values = learner.sample_loss(output, y)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"the loss does not fit outputs of shape {tuple(output.shape)} and targets of {tuple(y.shape)}: {first}"
        ) from error
    if not isinstance(values, Tensor) or values.shape != (len(x),):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"loss must return one value per sample, a tensor of shape ({len(x)},), got {got}; use reduction='none'"
        )


def _fit_classes(output: Tensor, data: FederatedData, test: tuple[Tensor, Tensor] | None) -> None:
    for what, y in (("", data.y), ("test ", test[1] if test is not None else data.y[:0])):
        if y.is_floating_point():
            raise ValueError(
                f"cross-entropy needs {what}targets that are class numbers, got {y.dtype}; give loss=f(output, target)"
            )
        if not len(y):
            continue
        if not scores_classes(output, y[: len(output)]) and y.ndim <= 2:
            raise ValueError(
                f"cross-entropy needs one output per class: for {what}targets of shape {tuple(y.shape[1:])} the model "
                f"must return [samples, {'positions, ' if y.ndim == 2 else ''}classes], got {tuple(output.shape)}"
            )
        predicted = y if y.ndim == 1 else y[y != IGNORED]
        if not len(predicted):
            raise ValueError(f"all {what}targets are {IGNORED}, which means that nothing is to be predicted")
        low, high, classes = int(predicted.min()), int(predicted.max()), output.shape[-1]
        if low < 0 or high >= classes:
            raise ValueError(
                f"{what}labels must lie in 0..{classes - 1} for a model with {classes} outputs, got {low}..{high}"
            )


def _find_augmentation(augment: Any, learner: Learner, data: FederatedData) -> Augment | None:
    """The augmentation asked for, if it fits the samples."""
    if augment is None:
        return None
    if not isinstance(augment, str) and not callable(augment):
        raise TypeError(f"augment must be a name or a function of (x, key, step), got {augment!r}")
    found: Augment = augmentation.find(augment) if isinstance(augment, str) else augment
    x = learner.prepare(data.x[:2].to(learner.device))
    try:
        after = found(x, Key(0, 1, torch.tensor(0, device=learner.device)), 0)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"augment does not fit samples of shape {tuple(data.x.shape[1:])}: {first}") from error
    if not isinstance(after, Tensor) or after.shape != x.shape:
        got = tuple(after.shape) if isinstance(after, Tensor) else type(after).__name__
        raise ValueError(f"augment must keep the shape of samples, {tuple(x.shape)}, got {got}")
    return found


def _checked_loss(loss: Any) -> SampleLoss | None:
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function of (output, target), got {loss!r}")
    return loss  # type: ignore[no-any-return]


# Fingerprints


def _tree_fingerprint(tree: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for key, value in tree.items():
        digest.update(repr((key, tuple(value.shape), str(value.dtype))).encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _module_fingerprint(module: nn.Module) -> str:
    """A digest of the weights and of the kinds of layers, some of which have none."""
    kinds = [(name, type(part).__qualname__) for name, part in module.named_modules()]
    return hashlib.sha256((repr(kinds) + _tree_fingerprint(module.state_dict())).encode()).hexdigest()


def _pair_fingerprint(pair: tuple[Tensor, Tensor] | None) -> str:
    assert pair is not None
    return _tree_fingerprint({"x": pair[0], "y": pair[1]})


def _callable_name(f: Callable[..., Any]) -> str:
    return f"{getattr(f, '__module__', '')}.{getattr(f, '__qualname__', type(f).__qualname__)}"
