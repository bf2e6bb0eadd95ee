"""The driver's side: client i lives with actor i mod n, which has what it remembers.

Where clients remember nothing, those of a round are spread so that all actors have as many samples to compute.

The driver holds a reference to what clients remember after every round, and never fetches it: an actor that dies is
replaced by one that starts from there, and what it was asked is asked again, with the same numbers.
"""

from __future__ import annotations

import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import ray
import torch
from ray import cloudpickle
from ray.exceptions import ActorUnschedulableError, ObjectLostError, RayActorError, RayTaskError
from torch import Tensor

from undrift.core import check, tree, version
from undrift.core.log import notice, warning
from undrift.protocol import Mail, State
from undrift.simulation.on_ray import cluster
from undrift.simulation.on_ray.actor import Clients, Everything, Host
from undrift.simulation.on_ray.wire import pack, unpack
from undrift.simulation.setup import Experiment
from undrift.storage.arena import Ids
from undrift.transport import Answers, ClientsLostError, LostStatesError, Order

_ATTEMPTS = 5  # actors in a row that die of the same call
_PATIENCE = 20  # seconds without room for an actor, after which the user is told
T = TypeVar("T")


class _Past(NamedTuple):
    """What clients of an actor remember after a round, where Ray keeps it."""

    stored: Any  # a reference to `ids` and `states`
    kept: Ids  # the clients whose answers the server has kept


class _Place:
    """An actor, and what one in its stead would need."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.node = ""  # the machine it is on
        self.past: list[_Past] = []  # since the beginning, without what is superseded
        self.draft: tuple[int, _Past] | None = None  # of a round that the server has not kept yet
        self.told: list[Any] = []  # calls whose result nobody waits for, but whose failure must not pass unseen
        self.collected: tuple[Any, _Past, int] | None = None  # all states at once, soon in place of so many entries


class RayTransport:
    durable: ClassVar[bool] = False

    def __init__(self, experiment: Experiment) -> None:
        options, self._device = experiment.options, experiment.learner.device
        assert options.actors is not None
        self._last_phase = len(experiment.method.phases) - 1
        learner = experiment.learner
        self._remember = bool(tree.nbytes(experiment.method.client(learner.parameters, learner.buffers)))
        self._heard = np.zeros(len(experiment.data), dtype=np.int64)
        self._sizes = experiment.data.sizes
        self._spread: tuple[tuple[int, int], dict[int, int]] = (0, 0), {}  # of a round and attempt: who is where
        self._everything = _sent(Everything.of(experiment))
        on_gpu = self._device.type == "cuda"
        self._on_a_gpu = cluster.gpu_crowd(options.actors) if on_gpu else 1
        self._share = cluster.share(options.actors, options.actor_threads, on_gpu)
        self._places = [_Place(actor) for actor in cluster.take(Clients, self._share, options.actors)]
        try:
            self._begin_all()
        except BaseException:
            self.close()
            raise

    # the contract

    def exchange(self, order: Order, mail: Mail) -> Answers:
        shared = ray.put(pack(mail.shared))

        def ask(place: _Place, part: Ids) -> tuple[Any, Any]:
            each = pack(tree.row(mail.each, torch.from_numpy(part).to(self._device)))
            answer, states = place.actor.answer.options(num_returns=2).remote(order.of(part), shared, each)
            return answer, states

        parts = self._parts(order.ids, (order.round, order.attempt))
        found: list[Any] = []
        for number, (answer, states) in self._asked(parts, ask, restart=0 < order.phase <= self._last_phase):
            found.append(answer)
            if self._remember and order.phase == self._last_phase:
                place = self._places[number]
                place.draft = order.round, _Past(states, order.ids[parts[number]])
        replies, reports = (self._in_order(parts, [each[which] for each in found]) for which in (0, 1))
        return Answers(replies, reports)

    def personal(self, order: Order, mail: Mail, own: bool = True) -> tuple[Ids, Tensor]:
        shared = ray.put(pack(mail.shared))

        def ask(place: _Place, part: Ids) -> tuple[Any, None]:
            each = pack(tree.row(mail.each, torch.from_numpy(part).to(self._device)))
            return place.actor.personal.remote(order.of(part), shared, each, own), None

        parts = self._parts(order.ids)
        found = [{"counts": counts} for _, (counts, _) in self._asked(parts, ask)]
        return order.ids, self._in_order(parts, found)["counts"].cpu()

    def remembered(self, order: Order, part: str | None) -> tuple[Ids, State]:
        def ask(place: _Place, mine: Ids) -> tuple[Any, None]:
            return place.actor.remembered.remote(order.of(mine), part), None

        parts = self._parts(order.ids)
        return order.ids, self._in_order(parts, [states for _, (states, _) in self._asked(parts, ask)])

    def keep(self, round: int, ids: Ids) -> None:
        if not self._remember:
            return
        self._heard[ids] = round
        for number, part in self._parts(ids).items():
            place, mine = self._places[number], ids[part]
            if place.draft is not None and place.draft[0] == round:
                place.past.append(place.draft[1]._replace(kept=mine))
                _forget_superseded(place)
            place.draft = None
            place.told.append(place.actor.keep.remote(round, mine))
            if sum(len(past.kept) for past in place.past) > 2 * np.count_nonzero(
                self._heard[number :: len(self._places)]
            ):
                self._collect(place)

    def restore(self, blocks: Iterator[State], heard: Ids) -> None:
        self._heard = heard.copy()
        for place in self._places:
            place.past.clear()
        for block in blocks:
            ids = block["ids"].numpy()
            for number, part in self._parts(ids).items():
                mine = {"ids": block["ids"][part], "states": tree.row(block["states"], torch.from_numpy(part))}
                self._places[number].past.append(_Past(ray.put(pack(mine)), ids[part]))
        for place in self._places:
            place.told.append(self._restored(place))

    def close(self) -> None:
        for place in self._places:
            place.actor.end.remote()
            cluster.give_back(place.actor, self._share)
        self._places = []

    # actors

    def _parts(self, ids: Ids, attempt: tuple[int, int] | None = None) -> dict[int, Ids]:
        """The actors that have some of these clients, and the positions of those; the same in all phases of a round."""
        if self._remember:
            owner = ids % len(self._places)
        elif attempt is None:
            owner = self._even(ids)
        else:
            if self._spread[0] != attempt:
                self._spread = attempt, dict(zip(ids.tolist(), self._even(ids).tolist(), strict=True))
            owner = np.array([self._spread[1][client] for client in ids.tolist()])
        return {int(number): np.flatnonzero(owner == number) for number in np.unique(owner)}

    def _even(self, ids: Ids) -> Ids:
        """An actor for each of these clients: the largest first, each to the actor with the fewest samples so far."""
        loads, owner = np.zeros(len(self._places), dtype=np.int64), np.zeros_like(ids)
        for position in np.argsort(-self._sizes[ids], kind="stable").tolist():
            owner[position] = loads.argmin()
            loads[owner[position]] += self._sizes[ids[position]]
        return owner

    def _asked(
        self, parts: dict[int, Ids], ask: Callable[[_Place, Ids], tuple[Any, Any]], restart: bool = False
    ) -> Iterator[tuple[int, tuple[Any, Any]]]:
        """What actors answer, and what `ask` gave besides; one that dies is replaced and asked again.

        `restart`: its answer depends on what it remembered of the round so far, which has to start again.
        """
        calls = {number: ask(self._places[number], part) for number, part in parts.items()}
        for number, part in parts.items():
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    self._check_told(self._places[number])
                    found = self._result(calls[number][0])
                except RayActorError as error:
                    if attempt == _ATTEMPTS:
                        raise self._gone(number, f"died {_ATTEMPTS} times of the same call", error) from error
                    self._replace(number, error)
                    if restart:
                        raise LostStatesError(f"actor {number} died between two phases of a round") from None
                    calls[number] = ask(self._places[number], part)
                else:
                    yield number, (found, calls[number][1])
                    break

    def _begin_all(self) -> None:
        try:
            self._begin(self._places)
        except RayActorError:  # an idle one that has died
            for place in self._places:
                ray.kill(place.actor)
                (place.actor,) = cluster.take(Clients, self._share, 1)
            self._begin(self._places)

    def _begin(self, places: list[_Place]) -> None:
        """Wait until actors are there, and let them build their clients."""
        waiting = [place.actor.host.remote() for place in places]
        if len(ray.wait(waiting, num_returns=len(waiting), timeout=_PATIENCE)[0]) < len(waiting):
            notice(f"waiting for Ray to start {len(waiting)} actors; it may have no room for them")
        try:
            hosts: list[Host] = ray.get(waiting)
            for place, host in zip(places, hosts, strict=True):
                _check_versions(host)
                place.node = host.node
            here = Counter(place.node for place in self._places)
            calls = [place.actor.begin.remote(self._everything, here[place.node], self._on_a_gpu) for place in places]
            for call in calls:
                self._result(call)
        except ActorUnschedulableError as error:
            raise ValueError(f"Ray cannot place an actor: {check.first_line(error)}") from None

    def _replace(self, number: int, error: RayActorError) -> None:
        place = self._places[number]
        for _ in range(_ATTEMPTS):
            reason = check.first_line(error).rstrip(".")
            warning(
                f"actor {number} died ({reason}); another one takes its place, and what it was asked is asked again"
            )
            with suppress(Exception):  # it may only have been out of reach
                ray.kill(place.actor)
            place.told.clear()
            place.draft = place.collected = None
            (place.actor,) = cluster.take(Clients, self._share, 1)
            try:
                self._begin([place])
                self._result(self._restored(place))
            except ObjectLostError as lost:
                raise self._gone(number, "died, and what its clients remember is lost", lost) from lost
            except RayActorError as again:
                error = again
            else:
                return
        raise self._gone(number, f"died {_ATTEMPTS} times while it started", error) from error

    def _restored(self, place: _Place) -> Any:
        return place.actor.restore.remote(self._heard, [p.kept for p in place.past], *(p.stored for p in place.past))

    def _collect(self, place: _Place) -> None:
        """Let an actor store all states at once: fewer than those of many rounds."""
        if place.collected is None:
            done, stored = place.actor.all_states.options(num_returns=2).remote()
            everyone = np.unique(np.concatenate([past.kept for past in place.past]))
            place.collected = done, _Past(stored, everyone), len(place.past)

    def _check_told(self, place: _Place) -> None:
        told, place.told = place.told, []
        for call in told:
            self._result(call)
        if place.collected is not None:
            done, past, count = place.collected
            place.collected = None
            self._result(done)
            place.past[:count] = [past]

    def _result(self, call: Any) -> Any:
        """What a call returned; raises what was raised there."""
        try:
            return ray.get(call)
        except RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, Exception) else error) from error

    def _gone(self, number: int, what: str, error: Exception) -> ClientsLostError:
        return ClientsLostError(f"actor {number} {what}: {check.first_line(error)}")

    def _in_order(self, parts: dict[int, Ids], found: list[Any]) -> State:
        """What actors sent, in the order of the clients that were asked."""
        positions = np.concatenate(list(parts.values()))
        joint = tree.concat([unpack(each, self._device) for each in found])
        if len(parts) == 1:
            return joint
        return tree.row(joint, torch.from_numpy(np.argsort(positions)).to(self._device))


def _forget_superseded(place: _Place) -> None:
    """Drop entries of which every client has a later one."""
    later: Ids = np.zeros(0, dtype=np.int64)
    needed = []
    for past in reversed(place.past):
        if not np.isin(past.kept, later).all():
            needed.append(past)
            later = np.union1d(later, past.kept)
    place.past = needed[::-1]


def _check_versions(host: Host) -> None:
    here = {"undrift": version.__version__, "torch": torch.__version__}
    for name, mine in here.items():
        if (there := getattr(host, name)) != mine:
            raise ValueError(f"a machine of the Ray cluster has {name} {there}, this one {mine}; install the same")


# What is sent


def _sent(everything: Everything) -> Any:
    """A reference to it; raises what of it cannot be sent."""
    try:
        with _own_code_by_value():
            return ray.put(everything)
    except Exception as error:
        for name, part in {f.name: getattr(everything.objects, f.name) for f in fields(everything.objects)}.items():
            try:
                cloudpickle.dumps(part)
            except Exception as trouble:
                raise ValueError(
                    f"{name} cannot be sent to Ray's actors: {check.first_line(trouble)}; give one that can be pickled"
                ) from error
        raise


@contextmanager
def _own_code_by_value() -> Iterator[None]:
    """Inside, functions and classes of modules that are not installed are sent as they are: nobody else has them."""
    own = [module for name, module in list(sys.modules.items()) if name != "__main__" and _is_own(module)]
    registered = []
    for module in own:
        with suppress(ValueError):  # not a module that can be imported again
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    if not file:
        return False
    installed = {*sysconfig.get_paths().values(), str(Path(version.__file__).parents[1])}
    return not any(Path(file).is_relative_to(folder) for folder in installed)
