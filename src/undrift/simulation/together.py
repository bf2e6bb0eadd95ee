"""Several runs: all are prepared before the first one trains, and those that differ in rate and seed train together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

from torch import nn

from undrift.core.log import notice, warning
from undrift.methods.algorithm import Algorithm
from undrift.reporting.record import Record
from undrift.simulation.arguments import Objects
from undrift.simulation.callbacks import Callback
from undrift.simulation.cohort import choices, instabilities
from undrift.simulation.defaults import Resolved
from undrift.simulation.describe import as_begun, same_options
from undrift.simulation.loop import train
from undrift.simulation.options import Options
from undrift.simulation.place import place_of
from undrift.simulation.prepare import find_algorithm, prepare, with_engine
from undrift.simulation.round import can_train_together, capacity
from undrift.simulation.run import Run
from undrift.simulation.setup import Experiment, Setup
from undrift.simulation.simulate import reopen, start
from undrift.storage.directory import RunDirectory


class Entry(NamedTuple):
    """A run that is to be made, or continued if its directory holds it already."""

    label: str
    run: Resolved
    home: Path | None


class _Key(NamedTuple):
    """What tells the runs of one algorithm apart."""

    lr: float
    seed: int


class _Slot(NamedTuple):
    """A run before it is prepared."""

    number: int  # among all entries
    entry: Entry
    options: Options
    stored: RunDirectory | None  # of a run that is there already
    group: tuple[_Key, ...]  # with which runs it trains; empty if that is not decided yet

    @property
    def label(self) -> str:
        return self.entry.label

    @property
    def home(self) -> Path | None:
        return self.entry.home

    @property
    def key(self) -> _Key:
        return _Key(self.options.lr, self.options.seed)


class _Planned(NamedTuple):
    """A run, ready to start or to be resumed."""

    slot: _Slot
    experiment: Experiment


def train_all(
    entries: Sequence[Entry],
    callbacks: Sequence[Callback] = (),
    begin: Callable[[], None] = lambda: None,
    *,
    trial: bool = False,
) -> list[Record]:
    """Train runs, and return their records in the order of the entries.

    What one of them cannot do is said before the first has trained, or anything is written; `begin` is called when the
    first is about to. Runs of a tuning are a `trial`: some that were begun together may be continued without the
    others, and what they say of the test samples is not kept.
    """
    with ExitStack() as sessions:
        for entry in entries:
            sessions.enter_context(place_of(entry.run.options).session(entry.run.options))
        return _train_all(entries, callbacks, begin, trial)


def _train_all(
    entries: Sequence[Entry],
    callbacks: Sequence[Callback],
    begin: Callable[[], None],
    trial: bool,
) -> list[Record]:
    families = [_slots(family) for family in _families(entries)]
    begun = _modules_begun_with([slot for family in families for slot in family])
    planned: list[list[_Planned]] = []
    shared: dict[tuple[int, int], Setup] = {}
    for family in families:
        planned.append([])
        for slot in family:
            objects = slot.entry.run.objects
            data = id(objects.data), slot.options.seed
            like = shared.get(data) or next(iter(shared.values()), None)
            with named(slot.label):
                experiment = with_engine(prepare(_begun(objects, begun, slot.home), slot.options, like))
            if slot.group and slot.stored is None:
                experiment = replace(experiment, engine_reason="as the runs it was to train with")
            if not experiment.algorithm.pooled:
                shared.setdefault(data, experiment)
            planned[-1].append(_Planned(slot, experiment))
    _announce(sorted((plan for runs in planned for plan in runs), key=lambda plan: plan.slot.number))
    records: dict[int, Record] = {}
    for runs in planned:
        for group in _groups(runs):
            records |= _finished(group, callbacks, None if records else begin, trial)
    return [records[number] for number in range(len(entries))]


@contextmanager
def named(label: str) -> Iterator[None]:
    """What is wrong with a run is said with its label."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from error


def _announce(planned: Sequence[_Planned]) -> None:
    new = [plan for plan in planned if plan.slot.stored is None]
    for text in dict.fromkeys(f"{p.slot.label}: {text}" for p in new for text in choices(p.experiment)):
        notice(text)
    for text in dict.fromkeys(f"{p.slot.label}: {text}" for p in new for text in instabilities(p.experiment)):
        warning(text)


class _Family(NamedTuple):
    """Runs of one algorithm that differ in rate and seed only, whatever their labels: they may train together."""

    like: Resolved
    members: list[tuple[int, Entry]]
    keys: set[_Key]

    def takes(self, run: Resolved) -> bool:
        mine = replace(self.like.options, lr=run.options.lr, seed=run.options.seed)
        return (
            mine == run.options
            and _key(run) not in self.keys
            and _same(find_algorithm(self.like.objects.algorithm).algorithm, find_algorithm(run.objects.algorithm)[0])
        )


def _families(entries: Sequence[Entry]) -> list[list[tuple[int, Entry]]]:
    """The entries with their numbers, those of a family together, families in the order of their first entries."""
    families: list[_Family] = []
    for number, entry in enumerate(entries):
        found = next((family for family in families if family.takes(entry.run)), None)
        if found is None:
            families.append(found := _Family(entry.run, [], set()))
        found.members.append((number, entry))
        found.keys.add(_key(entry.run))
    return [family.members for family in families]


def _key(run: Resolved) -> _Key:
    return _Key(run.options.lr, run.options.seed)


def _same(a: Algorithm, b: Algorithm) -> bool:
    """Whether all options are the same; of tensors, the same object."""
    if type(a) is not type(b):
        return False
    pairs = [(getattr(a, option.name), getattr(b, option.name)) for option in fields(a)]
    return all(p is q or (not isinstance(p, Mapping) and p == q) for p, q in pairs)


def _slots(family: Sequence[tuple[int, Entry]]) -> list[_Slot]:
    """The runs of a family, with the options that those in their directories were begun with."""
    slots = []
    for number, entry in family:
        options, home = entry.run.options, entry.home
        stored = None
        group: tuple[_Key, ...] = ()
        if home is not None and (home / "config.json").exists():
            stored = RunDirectory.open(home)
            if (label := stored.config["label"]) != entry.label:
                raise ValueError(
                    f"{home} holds the run {label!r}, not {entry.label!r}; choose another directory or label"
                )
            options = same_options(stored, options)
            key = _Key(options.lr, options.seed)
            group = found if key in (found := _stored_group(stored)) else (key,)
        slots.append(_Slot(number, entry, options, stored, group))
    return [slot if slot.group else _joined(slot, slots) for slot in slots]


def _joined(slot: _Slot, others: Sequence[_Slot]) -> _Slot:
    """A run that is not there yet, as a member of the group that others were begun in, and computed as they are."""
    for other in others:
        if slot.key in other.group:
            options = replace(slot.options, engine=other.options.engine, device=other.options.device)
            return slot._replace(group=other.group, options=options)
    return slot


def _modules_begun_with(slots: Iterable[_Slot]) -> dict[Path | None, nn.Module]:
    """For runs that are there already, the given module with their initial weights: one object where these are equal.

    The module of a repeated comparison may be initialised otherwise, as `resume` allows.
    """
    found: dict[Path | None, nn.Module] = {}
    known: dict[str, nn.Module] = {}
    changed = False
    for slot in slots:
        model = slot.entry.run.objects.model
        if not isinstance(model, nn.Module) or slot.stored is None:
            continue
        key = str(slot.stored.config.get("model"))
        if key not in known:
            with named(slot.label):
                known[key] = as_begun(slot.stored, model)
        found[slot.home] = known[key]
        changed = changed or known[key] is not model
    if changed:
        notice("the initial weights are those that the comparison in this directory was begun with")
    return found


def _begun(objects: Objects, begun: Mapping[Path | None, nn.Module], home: Path | None) -> Objects:
    """With the module of the run in `home`; a new one begins where the others of its comparison did."""
    return replace(objects, model=begun.get(home, next(iter(begun.values())))) if begun else objects


def _groups(planned: Sequence[_Planned]) -> list[list[_Planned]]:
    """What trains together: those begun together, in their order; of the others as many as the engine has room for."""
    begun: dict[tuple[_Key, ...], list[_Planned]] = {}
    new: list[list[_Planned]] = []
    for plan in planned:
        if plan.slot.group:
            begun.setdefault(plan.slot.group, []).append(plan)
        elif (
            new
            and len(new[-1]) < capacity(plan.experiment)
            and can_train_together(new[-1][0].experiment, plan.experiment)
        ):
            new[-1].append(plan)
        else:
            new.append([plan])
    for keys, members in begun.items():
        members.sort(key=lambda plan, keys=keys: keys.index(plan.slot.key))  # type: ignore[misc]
    return [*(part for group in begun.values() for part in _compatible(group)), *new]


def _compatible(group: list[_Planned]) -> list[list[_Planned]]:
    """The group, or each of its runs alone if their samples are no longer shared."""
    if all(can_train_together(group[0].experiment, plan.experiment) for plan in group):
        return [group]
    return [[plan] for plan in group]


def _finished(
    group: Sequence[_Planned], callbacks: Sequence[Callback], begin: Callable[[], None] | None, trial: bool
) -> dict[int, Record]:
    """Train runs together; all of them are opened and checked before the first one changes its directory."""
    begun = group[0].slot.group
    keys = begun or tuple(plan.slot.key for plan in group)
    runs: dict[_Key, Run] = {}
    with ExitStack() as stack:
        for slot, experiment in sorted(group, key=lambda plan: plan.slot.stored is None):
            if slot.stored is None:
                members = [key._asdict() for key in keys]
                runs[slot.key] = stack.enter_context(start(experiment, slot.home, slot.label, members, trial=trial))
            else:
                stack.enter_context(slot.stored.writing())
                runs[slot.key] = reopen(experiment, slot.stored)
        ordered = [runs[plan.slot.key] for plan in group]
        unfinished = any(run.rounds < run.options.rounds and not run.ended for run in ordered)
        if len(group) < len(begun) and unfinished and not trial:
            warning(
                f"{ordered[0].label}: {len(begun)} runs were begun together and {len(group)} are continued; "
                "their results are the same to rounding"
            )
        if begin is not None:
            begin()
        train(ordered, callbacks, "stop")
    return {plan.slot.number: run.record for plan, run in zip(group, ordered, strict=True)}


def _stored_group(directory: RunDirectory) -> tuple[_Key, ...]:
    """The runs that a stored one was begun with; none if it was begun alone."""
    try:
        return tuple(_Key(float(member["lr"]), int(member["seed"])) for member in directory.config.get("group", ()))
    except (TypeError, KeyError, ValueError):
        raise ValueError(f"{directory.path} has a configuration whose group cannot be read") from None
