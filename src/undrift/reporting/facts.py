"""How a task was set up, in a few lines: data, partition, model, local training, rate and weighting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from undrift.data import default_partition, load
from undrift.data.catalogue import CATALOGUE
from undrift.data.split import Split
from undrift.reporting.figures import by_label
from undrift.reporting.record import Record
from undrift.reporting.task import recipe_of
from undrift.reporting.wording import count_text

# What changes updates on their way, by its part of a configuration.
_ON_UPDATES = {"Aggregation": "aggregate", "Compression": "compress", "Privacy": "privacy", "Attack": "attack"}
_FEW = 3  # different values, and methods that have one, up to which the methods are named


class Fact(NamedTuple):
    name: str
    value: str


def facts_of(records: Sequence[Record], split: Split | None) -> list[Fact]:
    """What is known of the set-up of runs of one task; a value that differs between methods names them."""
    first = records[0].config
    options = _options(records[0])
    found = [
        Fact("Data", data_name(first)),
        Fact("Partition", _partition(first, split)),
        Fact("Model", _model(first)),
    ]
    if options:
        found += [
            Fact("Local training", _by_method(records, _local_training)),
            Fact("Learning rate", _by_method(records, lambda options: _number(options.get("lr")))),
        ]
        if any(_options(record).get("server_lr", 1) != 1 for record in records):
            found.append(Fact("Server rate", _by_method(records, lambda options: _number(options.get("server_lr")))))
        weighting = _by_method(records, lambda options: options.get("weighting") or "as in each paper")
        found.append(Fact("Weighting", weighting))
    for name, part in _ON_UPDATES.items():
        if any(record.config.get(part) not in (None, "mean") for record in records):
            found.append(Fact(name, _by_label(records, [_written(record.config.get(part)) for record in records])))
    return [fact for fact in found if fact.value]


def names_of(tasks: Sequence[Sequence[Record]], *, brief: bool = False) -> list[str]:
    """A name for each of several tasks: data, partition, model, and what else it takes to tell them apart.

    A `brief` one, as in legends, has nothing that all of them share.
    """
    parts = [_name_parts(task[0]) for task in tasks]
    always = () if brief else ("data", "partition", "model")
    keys = [
        key
        for key in ("data", "partition", "model", "rounds", "cohort", "local", "attack")
        if key in always or len({each[key] for each in parts}) > 1
    ]
    names = [[each[key] for key in keys if each[key]] for each in parts]
    if len(set(map(tuple, names))) < len(names):  # objects that only their fingerprints tell apart
        names = [[*name, f"task {number}"] for number, name in enumerate(names, 1)]
    return [" · ".join(name) for name in names]


def split_of(record: Record) -> Split | None:
    """How a run's data are split: loaded again by name, or as far as it was stored; None if neither can be had here."""
    if not recipe_of(record.config):
        return Split.from_plain(record.config.get("split"))
    try:
        return Split.of(load(**record.config["data"]))
    except (ValueError, TypeError, OSError):  # not fetched on this machine, or a recipe of another version
        return None


def class_names(record: Record) -> tuple[str, ...]:
    """The names of the classes of a run's data, without loading them; empty where they are numbers."""
    recipe = recipe_of(record.config)
    if recipe:
        description = CATALOGUE.get(str(recipe.get("name")))
        return description.names or () if description is not None else ()
    split = Split.from_plain(record.config.get("split"))
    return () if split is None else split.class_names


def _name_parts(record: Record) -> dict[str, str]:
    options, config = _options(record), record.config
    cohort = options.get("cohort")
    return {
        "data": data_name(config),
        "partition": _partition(config, None),
        "model": _model(config),
        "rounds": count_text(options["rounds"], "round") if isinstance(options.get("rounds"), int) else "",
        "cohort": "everyone takes part" if cohort is None else f"cohort {cohort}",
        "local": _local_training(options),
        "attack": f"attack {attack}" if (attack := config.get("attack")) else "no attack",
    }


def _options(record: Record) -> Mapping[str, Any]:
    options = record.config.get("options")
    return options if isinstance(options, Mapping) else {}


def data_name(config: Mapping[str, Any]) -> str:
    """The name of the data, "own data", or nothing where the configuration does not say."""
    recipe = recipe_of(config)
    # Results on held-out training data must not be taken for those of the test set.
    held = f", {share:.0%} of training data held out" if (share := recipe.get("validation_share")) else ""
    return f"{recipe.get('name') or ('own data' if config.get('data') else '')}{held}"


def _partition(config: Mapping[str, Any], split: Split | None) -> str:
    recipe, stored = recipe_of(config), config.get("split")
    if not recipe:
        clients = stored.get("clients") if isinstance(stored, Mapping) else None
        return count_text(clients, "client") if isinstance(clients, int) else ""
    scheme = recipe.get("partition")
    if scheme is None:
        try:
            scheme = default_partition(recipe["name"])
        except ValueError:  # a data set that this version does not know
            return ""
    clients = recipe.get("clients") if split is None else split.clients
    return f"{scheme}, {count_text(clients, 'client')}" if isinstance(clients, int) else str(scheme)


def _model(config: Mapping[str, Any]) -> str:
    model = config.get("model")
    return model if isinstance(model, str) else "own model" if model else ""


def _local_training(options: Mapping[str, Any]) -> str:
    steps, epochs, batch = options.get("steps"), options.get("epochs"), options.get("batch_size")
    work = count_text(epochs, "epoch") if steps is None and isinstance(epochs, int) else f"{steps or epochs} steps"
    optimizer = {"sgd": "SGD"}.get(str(options.get("optimizer")), str(options.get("optimizer")))
    momentum = f", momentum {_number(options['momentum'])}" if options.get("momentum") else ""
    return f"{work}, {'full batch' if batch is None else f'batches of {batch}'}, {optimizer}{momentum}"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _written(value: Any) -> str:
    """A part of a configuration as users write it."""
    if value is None:
        return "none"
    if not isinstance(value, Mapping):
        return str(value)
    options = ", ".join(f"{key}={option}" for key, option in value.items() if key != "name")
    return f"{value['name']}({options})".removesuffix("()") if "name" in value else "own"


def _by_method(records: Sequence[Record], read: Callable[[Mapping[str, Any]], str]) -> str:
    return _by_label(records, [read(_options(record)) for record in records])


def _by_label(records: Sequence[Record], values: Sequence[str]) -> str:
    """The value that all runs share; or a few, with their methods; or all of them, and tables say whose they are."""
    first = dict(reversed([(record.label, value) for record, value in zip(records, values, strict=True)]))
    methods: dict[str, list[str]] = {}
    for label in by_label(records):
        methods.setdefault(first[label], []).append(label)
    if len(methods) == 1 or len(methods) > _FEW or max(map(len, methods.values())) > _FEW:
        return ", ".join(methods)
    return "; ".join(f"{value} ({', '.join(labels)})" for value, labels in methods.items())
