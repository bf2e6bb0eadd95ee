"""From arguments to a setup: everything is found by its name, checked and put on its device. Nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from undrift import models
from undrift.algorithms.text import Written, parse, parse_plugin, split
from undrift.client import metrics
from undrift.client.evaluate import Samples, Weights, predict
from undrift.client.learner import Learner, Tried
from undrift.client.metrics import Metrics
from undrift.client.optim import optimizer
from undrift.client.task import MOST_STEPS
from undrift.core import check, tree
from undrift.core.tree import Tree
from undrift.data import available, load
from undrift.data.augment import Augment
from undrift.data.batches import Schedule, Table, shared_shape
from undrift.data.census import Census, census
from undrift.data.features import as_samples, with_features
from undrift.data.federated import FederatedData, held_out
from undrift.diagnostics import DIAGNOSTICS
from undrift.diagnostics.observer import Observer, check_several_models
from undrift.engines import LocalTraining, Sequential, Workload, choose
from undrift.engines.determinism import arithmetic, find_precision
from undrift.methods import attack, codecs, private
from undrift.methods.algorithm import Algorithm, build_method
from undrift.methods.attack import Attack, Attackers
from undrift.methods.codec import Codec
from undrift.methods.plugin import Plugin
from undrift.methods.setting import Plan, Setting
from undrift.protocol import Method
from undrift.reporting.record import RESERVED_NAMES
from undrift.simulation import cohort
from undrift.simulation.arguments import Objects
from undrift.simulation.describe import describe
from undrift.simulation.fit import check_fit, find_aggregate, find_augmentation
from undrift.simulation.options import Options
from undrift.simulation.place import place_of
from undrift.simulation.setup import Experiment, Setup
from undrift.simulation.sound import check_sound
from undrift.simulation.try_hooks import try_hooks
from undrift.storage.memory import host_left

_TORCH_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class _Problem(NamedTuple):
    """What does not depend on the algorithm, and is shared by runs that compare some."""

    data: FederatedData
    test: Samples | None
    learner: Learner
    table: Table
    augment: Augment | None


class Known(NamedTuple):
    """What an algorithm knows of the whole federation, where its samples are not on this machine."""

    population: int
    plan: Plan
    census: Callable[[], Census]
    tried: Tried | None = None  # what the server found of its own copy of the model


def prepare(objects: Objects, options: Options, like: Setup | None = None, known: Known | None = None) -> Setup:
    """Everything for a run but its engine.

    Model and samples are shared with `like`, another run's setup, where they are the same. With `known`, the samples
    are those of one client, or stand for samples that are elsewhere.
    """
    algorithm = find_algorithm(objects.algorithm).algorithm
    plugins, compress = find_plugins(objects.plugins), find_codec(objects.compress)
    privacy = None if objects.privacy is None else private.find(objects.privacy)
    malicious = None if objects.attack is None else attack.find(objects.attack)
    objects = replace(objects, plugins=plugins, compress=compress, privacy=privacy, attack=malicious)
    chosen = metrics.find(objects.metrics, reserved=RESERVED_NAMES)
    problem = _shared(objects, options, like) or _problem(objects, options, like, known)
    federation = problem.data
    if algorithm.pooled:
        problem = _pooled(problem)
    data, learner = problem.data, problem.learner
    if options.target is not None and problem.test is None:
        raise ValueError(f"target={options.target} needs a test set; give test=(x, y)")
    chosen = _fitting(chosen, problem)
    schedule = Schedule(options.batch_size, None if options.steps else options.epochs, options.steps)
    _check_steps(schedule, data)
    population = len(data) if known is None else known.population
    cohort.size(options, population)
    if options.min_answers > (fewest := cohort.smallest(options, population)):
        raise ValueError(f"min_answers must be at most the {fewest} clients of a round, got {options.min_answers}")
    here = known is None
    known = known or Known(len(data), cohort.plan(options, schedule, data), partial(census, data))
    setting = Setting(
        layout=learner.layout,
        optimizer=optimizer(options.optimizer, options.momentum),
        server_lr=options.server_lr,
        buffer_policy=options.buffers,
        population=known.population,
        seed=options.seed,
        aggregate=find_aggregate(objects.aggregate, learner, cohort.smallest(options, known.population)),
        plugins=plugins,
        codec=compress,
        privacy=privacy,
        attackers=None if malicious is None else find_attackers(malicious, options.seed, known.population, problem),
        plan=known.plan,
        initialiser=learner.initialiser,
        buffers=learner.buffers,
        census=known.census,
    )
    method = build_method(algorithm, setting)
    if here:  # tensors without memory let PyTorch import sympy, half a second of every message to a client elsewhere
        _check_memory(method, learner)
    observer = _observer(options, method, learner, algorithm)
    training = LocalTraining(
        learner=learner,
        table=problem.table,
        schedule=schedule,
        weight_decay=options.weight_decay,
        clip=options.clip,
        augment=problem.augment,
        observe=observer.observe,
    )
    weighting = options.weighting or algorithm.weighting  # None in runs of version 0.1
    return Setup(
        objects=objects,
        options=place_of(options).completed(replace(options, weighting=weighting), len(data)),
        algorithm=algorithm,
        method=method,
        training=training,
        data=data,
        test=problem.test,
        metrics=chosen,
        observer=observer,
        precision=find_precision(options.precision, learner.device, learner.dtype),
        weighting=weighting,
        description=describe(
            objects,
            algorithm,
            federation,
            None if objects.test is None else problem.test,
            None if like is None or like.data is not federation else like.description["data"],
        ),
    )


def _observer(options: Options, method: Method, learner: Learner, algorithm: Algorithm) -> Observer:
    chosen = tuple(DIAGNOSTICS[name] for name in options.diagnostics)
    if any(each.one_model for each in chosen):
        check_several_models(chosen, method, learner.parameters, type(algorithm).__name__)
    return Observer(chosen, method, learner.layout)


def _fitting(chosen: Metrics, problem: _Problem) -> Metrics:
    """The metrics, if model, samples and clients have what they need."""
    if not chosen.names:
        return chosen
    metric, data, learner = f"metric {chosen.names[0]!r}", problem.data, problem.learner
    if problem.test is None:
        raise ValueError(f"{metric} needs test samples; give test=(x, y)")
    x, y = problem.test
    weights = Weights(learner.parameters, learner.buffers or None)
    fitting = chosen.fitting(predict(learner, weights, x[:2]), y)
    if chosen.need_clients and data.local_tests is None and (data.classes is None or data.y.ndim != 1):
        raise ValueError(f"{metric} needs test samples of every client; hold some out: data.hold_out(0.2)")
    return fitting


def _check_steps(schedule: Schedule, data: FederatedData) -> None:
    most = int(schedule.step_counts(data.sizes).max())
    if most > MOST_STEPS:
        cause = f"epochs={schedule.epochs}" if schedule.steps is None else f"steps={schedule.steps}"
        raise ValueError(
            f"{cause} makes {most} local steps of a round, but random numbers are counted for {MOST_STEPS} at most"
        )


def _check_memory(method: Method, learner: Learner) -> None:
    """Refuses client states that no memory holds, from their shapes alone."""
    model, buffers = (_shapes(part) for part in (learner.parameters, learner.buffers))
    # An algorithm may need values, which these tensors have not; hooks that are wrong are named by `try_hooks`.
    with suppress(NotImplementedError, RuntimeError, TypeError, AttributeError):
        needed, left = tree.nbytes(method.client(model, buffers)), host_left()
        if needed > left:
            raise ValueError(
                f"this algorithm's state of one client takes {needed / 1e9:.3g} GB, but {left / 1e9:.3g} GB of memory "
                "are left"
            )


def _shapes(part: Tree) -> Tree:
    return {name: torch.empty_like(value, device="meta") for name, value in part.items()}


def with_engine(setup: Setup) -> Experiment:
    """The setup with its engine, which may try a step of two clients before it is chosen."""
    options, place = setup.options, place_of(setup.options)
    workload = Workload(
        method=setup.method,
        training=setup.training,
        data=setup.data,
        seed=options.seed,
        precision=setup.precision,
        rounds=1 if options.may_end_early or not place.fused else options.rounds,
        cohort=cohort.largest(options, len(setup.data)),
        uneven=_uneven(options, setup.schedule, setup.data),
    )
    with arithmetic(setup.precision):
        try_hooks(workload)
        check_sound(setup, workload)
        with place.budget(options):
            engine, reason = choose(options.engine, workload)
        if not place.fused and isinstance(engine, Sequential):  # evaluation, here, has more threads
            engine, _ = choose(engine.setting, workload)
    return Experiment(**vars(setup), engine=engine, engine_reason=reason)


def _uneven(options: Options, schedule: Schedule, data: FederatedData) -> str:
    """Why rounds differ in shape; empty if one shape covers all of them."""
    count, smallest, largest = cohort.size(options, len(data)), int(data.sizes.min()), int(data.sizes.max())
    if count is None and len(lengths := {len(members) for members in options.cohort}) > 1:  # type: ignore[union-attr]
        return f"they have between {min(lengths)} and {max(lengths)} clients"
    if count != len(data) and shared_shape(schedule, smallest, largest) is None:
        return f"those sampled have between {smallest} and {largest} samples"
    return ""


# What is shared between runs


def _shared(objects: Objects, options: Options, like: Setup | None) -> _Problem | None:
    """The problem of another run, if it is the same."""
    if like is None:
        return None
    same_objects = all(
        getattr(objects, part) is getattr(like.objects, part) for part in ("model", "data", "test", "loss", "augment")
    )
    keys = ("seed", "device", "dtype", "precision")
    if not same_objects or any(getattr(options, key) != getattr(like.options, key) for key in keys):
        return None
    return _Problem(like.data, like.test, learner=like.learner, table=like.table, augment=like.training.augment)


def _problem(objects: Objects, options: Options, like: Setup | None, known: Known | None) -> _Problem:
    data = find_features(find_data(objects.data, options.seed), objects.model)
    device = find_device(options.device)
    test = data.test if objects.test is None else held_out(objects.test)
    if test is not None:
        test = as_samples(data, test[0]), test[1]
    module = find_model(objects.model, data, options.seed)
    if device.type == "mps":
        _refuse_float64(module, options, data, test)
    learner = Learner(
        module,
        find_loss(objects.loss),
        device=device,
        dtype=_TORCH_DTYPES.get(options.dtype or ""),
        normalise=data.normalise,
        half=options.precision == "bf16",
    )
    with arithmetic(find_precision(options.precision, device, learner.dtype)):  # calls are compared with each other
        check_fit(learner, module, data, test, None if known is None else known.tried)
        augment = find_augmentation(objects.augment, learner, data)
    return _Problem(
        data,
        None if test is None else (test[0].to(device), test[1].to(device)),
        learner=learner,
        table=_table(data, device, like),
        augment=augment,
    )


def _pooled(problem: _Problem) -> _Problem:
    """The same samples as those of one client."""
    data, table = problem.data.pooled(), problem.table
    rows, offsets, sizes = (torch.from_numpy(part).to(table.x.device) for part in (data.rows, data.offsets, data.sizes))
    return problem._replace(data=data, table=table._replace(rows=rows, offsets=offsets, sizes=sizes))


def _refuse_float64(module: nn.Module, options: Options, data: FederatedData, test: Samples | None) -> None:
    """Apple's GPUs have no float64."""
    tensors = {f"the model's {name!r}": value for name, value in module.state_dict().items()}
    tensors |= {"x": data.x, "y": data.y} | ({} if test is None else {"test x": test[0], "test y": test[1]})
    wide = [name for name, value in tensors.items() if getattr(value, "dtype", None) is torch.float64]
    if options.dtype == "float64" or wide:
        what = "dtype='float64' was asked for" if options.dtype == "float64" else f"{wide[0]} is float64"
        raise ValueError(f"device='mps' has no float64, but {what}; use float32, or device='cpu'")


def _table(data: FederatedData, device: torch.device, like: Setup | None) -> Table:
    table = Table.of(data, device)
    if like is None or not _same_samples(table, like.table):
        return table
    return like.table if data is like.data else table._replace(x=like.table.x, y=like.table.y)


def _same_samples(a: Table, b: Table) -> bool:
    """Whether two federations are made of the same samples, in the same order."""
    return all(p.dtype == q.dtype and p.shape == q.shape and torch.equal(p, q) for p, q in ((a.x, b.x), (a.y, b.y)))


# Objects by name


def find_algorithm(algorithm: Any) -> Written:
    """An algorithm, with the settings that its text has besides its options."""
    if isinstance(algorithm, str):
        return parse(algorithm)
    if isinstance(algorithm, Algorithm):
        return Written(algorithm, {})
    if isinstance(algorithm, Written):
        return algorithm
    given = check.shown(algorithm)
    raise TypeError(f"algorithm must be a name or an instance such as ud.algorithms.FedHBM(), got {given}")


def find_data(data: Any, seed: int) -> FederatedData:
    if data is None:
        raise TypeError("data is missing; give samples of clients, [(x0, y0), ...], or a name such as 'digits'")
    if isinstance(data, FederatedData):
        return data
    if isinstance(data, str):
        return load(data, seed=seed)
    if isinstance(data, Sequence | Mapping):
        return FederatedData.from_clients(data)
    is_table = hasattr(data, "columns") or hasattr(data, "column_names")
    hint = "; ud.FederatedData.from_hub(table, x=..., y=..., user=...) makes clients of a table" if is_table else ""
    raise TypeError(
        "data must be a list of pairs (x, y) or torch Datasets, one for every client, a dict of them, "
        f"a FederatedData or a name, got {type(data).__name__}{hint}"
    )


def find_features(data: FederatedData, model: Any) -> FederatedData:
    """The data with the features that a named model needs, from the cache where they are a named data set's."""
    needed = models.FEATURES.get(model) if isinstance(model, str) else None
    if needed is None or data.features is not None or data.x.ndim == 2:
        return data
    known = data.recipe if data.recipe.get("name") in available() else {}
    return load(**known | {"features": needed}) if known else with_features(data, needed)


def find_model(model: Any, data: FederatedData, seed: int) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, str):
        return models.build(model, tuple(data.x.shape[1:]), data.classes, seed)
    raise TypeError(f"model must be a torch.nn.Module or a name, got {type(model).__name__}")


def find_plugins(plugins: Any) -> tuple[Plugin, ...]:
    """Plug-ins, each an instance or written as in ``pgvc(layers=1)``."""
    given = split(plugins) if isinstance(plugins, str) else plugins if isinstance(plugins, Sequence) else (plugins,)
    return tuple(parse_plugin(each) if isinstance(each, str) else _plugin(each) for each in given)


def _plugin(each: Any) -> Plugin:
    if not isinstance(each, Plugin):
        raise TypeError(f"plugins must be a list of plug-ins such as ud.PGVC(layers=2), got {check.shown(each)}")
    return each


def find_codec(compress: Any) -> Codec | None:
    return None if compress is None else codecs.find(compress)


def find_attackers(chosen: Attack, seed: int, population: int, problem: _Problem) -> Attackers:
    data = problem.data
    if chosen.kind == "label-flip" and (data.classes is None or data.y.is_floating_point()):
        raise ValueError(f"attack={str(chosen)!r} needs samples with class labels; choose another attack")
    return Attackers(chosen, chosen.attackers(seed, population).to(problem.learner.device), data.classes or 0)


def find_loss(loss: Any) -> Any:
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function of (output, target), got {check.shown(loss)}")
    return loss


def find_device(device: str | None) -> torch.device:
    """The device asked for; by default a CUDA GPU if there is one, else the CPU.

    An Apple GPU must be asked for: it computes neither in float64 nor with the kernels that our tests cover.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device must be 'cpu', 'cuda' or 'mps', got {check.shown(device)}") from None
    if found.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"device must be 'cpu', 'cuda' or 'mps', got {check.shown(device)}")
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device={check.shown(device)} was asked for, but no Apple GPU is available")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={check.shown(device)} was asked for, but no CUDA device is available")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(f"device={check.shown(device)} was asked for, but the CUDA devices are 0..{count - 1}")
    return found
