"""Settings that were left open: the data set's own where it has some, general ones elsewhere; the algorithm's weights
and server rate.

They are decided before a run starts, from data and algorithm alone, for Python and for the command line; a run
directory stores what was decided. Data sets carry their settings in `data/catalogue.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from undrift.algorithms import Centralised
from undrift.data import FederatedData, default_settings
from undrift.data import available as data_sets
from undrift.models import FEATURES
from undrift.models import available as models
from undrift.reporting.wording import count_text
from undrift.simulation import cohort
from undrift.simulation.arguments import Objects
from undrift.simulation.options import AUTO, Options, declared
from undrift.simulation.pooled import pooled_objects, pooled_options
from undrift.simulation.prepare import find_algorithm

EVERYONE = 10  # clients up to which, by default, all take part in every round


class Resolved(NamedTuple):
    """Arguments in which nothing is left open."""

    objects: Objects
    options: Options
    label: str | None  # None: the algorithm's own
    notice: str  # what was decided, for the user


def resolve_defaults(objects: Objects, options: Options, data: FederatedData) -> Resolved:
    """Decide all that is "auto", and the model where none is given; settings written with the algorithm come first."""
    written = find_algorithm(objects.algorithm)
    options = replace(options, **written.settings)
    if options.weighting in (None, AUTO):
        private = objects.privacy is not None and options.weighting == AUTO
        options = replace(options, weighting="uniform" if private else written.algorithm.weighting)
    own = default_settings(data.name) if data.name in data_sets() else {}
    if data.features is not None or (isinstance(objects.model, str) and objects.model in FEATURES):
        own.pop("augment", None)  # which is of images
    found = {each.name: own.get(each.name, each.general) for each in _open(options)}
    taken = {name: value for name, value in found.items() if name in own}
    stepped = ""
    if "server_lr" in found:
        rate = found["server_lr"] = written.algorithm.default_server_lr
        stepped = "" if rate == 1 else f"; server_lr={rate:g}, {type(written.algorithm).__name__}'s own"
    if options.cohort == AUTO and len(data) <= EVERYONE:
        found["cohort"] = None
        taken.pop("cohort", None)
    elif isinstance(found.get("cohort"), int):
        found["cohort"] = min(found["cohort"], len(data))
    parts = {each.name: own.get(each.name, each.general) for each in _open(objects)}
    if objects.model is None:
        parts["model"] = _model(data, own)
    taken |= {name: value for name, value in parts.items() if name in own}
    divided = ""
    if "lr" in found and written.algorithm.divides_rate:
        rate, name = found["lr"], type(written.algorithm).__name__
        found["lr"] = float(f"{rate * data.sizes.mean():.3g}")
        taken.pop("lr", None)
        divided = (
            f"; lr={found['lr']:g}: {rate:g} times the mean number of a client's samples, by which {name} divides it"
        )
    resolved = replace(options, **found)
    label = written.label if written.settings else None
    if isinstance(written.algorithm, Centralised):
        pooled = pooled_options(resolved, data, written.algorithm.epochs)
        text = f"the samples of all {len(data)} clients in one place, {count_text(pooled.rounds, 'epoch')}"
        given = pooled_objects(replace(objects, algorithm=written.algorithm, data=data, **parts))
        return Resolved(given, pooled, label, text)
    text = cohort.participation(resolved, len(data))
    if "cohort" in found and found["cohort"] is not None:
        text += " (cohort=1.0 for all)"
    if taken:
        text = f"{data.name}: {_listed(taken)}, the data set's own settings; {text}"
    text += divided + stepped
    return Resolved(replace(objects, algorithm=written.algorithm, data=data, **parts), resolved, label, text)


def common_weighting(objects: Mapping[str, Any]) -> str:
    """How all algorithms of a comparison weight clients where that is left open: privacy needs equal weights."""
    return "samples" if objects.get("privacy") is None else "uniform"


def _open(given: Objects | Options) -> list[Any]:
    """The options that were left to the data set or the algorithm."""
    left_open = (each for each in declared(type(given)) if each.left_open)
    return [each for each in left_open if isinstance(value := getattr(given, each.name), str) and value == AUTO]


def _model(data: FederatedData, own: Mapping[str, Any]) -> str:
    if "model" not in own:
        known = ", ".join(map(repr, models()))
        raise TypeError(f"model is missing; give a torch.nn.Module or a name: {known}")
    return str(own["model"])


def _listed(taken: Mapping[str, Any]) -> str:
    first = {name: taken[name] for name in ("model", "lr") if name in taken}
    return ", ".join(f"{name}={value}" for name, value in (first | dict(taken)).items())
