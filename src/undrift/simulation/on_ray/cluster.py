"""A Ray cluster: one that is there, or one on this machine that lasts as long as it is needed."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NamedTuple

from undrift.core import check
from undrift.core.extras import needs
from undrift.core.log import notice
from undrift.core.sharing import shared_by
from undrift.engines.determinism import threads
from undrift.simulation.options import Options

with needs("ray"):
    import ray

_NAMESPACE = "undrift"
_connected: ContextVar[str | None] = ContextVar("connected", default=None)  # to which address, as it was given
_PATIENCE = 10  # seconds, for the machine of an address to answer
_LONGEST = 20  # characters of the folder for temporary files: the names of sockets in it may have about 100


@contextmanager
def session(address: str | None) -> Iterator[None]:
    """Inside, this process uses a Ray cluster; what was started for it is ended, however the block ends.

    A Ray that this process uses already is used, and left as it is.
    """
    with _connection(address):
        if _idle.get() is not None:  # inside another session
            yield
            return
        idle: list[Idle] = []
        within = _idle.set(idle)
        try:
            yield
        finally:
            _idle.reset(within)
            for each in idle:
                ray.kill(each.actor)


@contextmanager
def _connection(address: str | None) -> Iterator[None]:
    if ray.is_initialized():
        used = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", used, _connected.get()):
            raise ValueError(f"address={address!r} was given, but this process uses the Ray at {used}")
        yield
        return
    with _quiet(), tempfile.TemporaryDirectory(prefix="undrift-", dir=_folder(), ignore_cleanup_errors=True) as home:
        try:
            if address is None:
                notice("starting Ray on this machine, for as long as it is needed")
                _init(address="local", include_dashboard=False, _temp_dir=home)
            else:
                _connect(address)
            within = _connected.set(address)
            try:
                yield
            finally:
                _connected.reset(within)
        finally:
            ray.shutdown()


def _init(**options: Any) -> None:
    """`ray.init` that prints nothing, and leaves the handler of SIGTERM and the format of log lines as they were."""
    handled = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(configure_logging=False, log_to_driver=False, namespace=_NAMESPACE, **options)
    finally:
        if handled:
            signal.signal(signal.SIGTERM, before)


def _connect(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        if address != "auto":  # Ray would try for minutes
            socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=_PATIENCE).close()
        _init(address=address)
    except (OSError, ValueError, RuntimeError) as error:
        wanted = "host:port, or auto for a Ray on this machine (ray start --head)"
        reason = check.first_line(error)
        raise ValueError(f"no Ray is reached at address={address!r}, which is {wanted}: {reason}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, Ray sends no usage statistics, and prints nothing: what matters of actors that die is said by us."""
    wanted = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it tells what its next version will change
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of calls to actors after another one has failed
    }
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    # On standard output, where results go; there is no option.
    printer, told = ray._private.worker, "print_to_stdstream"
    before = getattr(printer, told, None)
    if before is not None:
        setattr(printer, told, lambda *_, **__: None)
    try:
        yield
    finally:
        if before is not None:
            setattr(printer, told, before)
        for name in added:
            os.environ.pop(name, None)


def _folder() -> str | None:
    """Where Ray may put its sockets; None: the usual folder for temporary files."""
    return "/tmp" if os.name == "posix" and len(tempfile.gettempdir()) > _LONGEST else None


# Actors


class Share(NamedTuple):
    """What Ray sets aside for an actor."""

    num_cpus: float
    num_gpus: float


class Idle(NamedTuple):
    """An actor of a run that has ended, for the next one of the session: to start one takes seconds."""

    actor: Any
    share: Share


_idle: ContextVar[list[Idle] | None] = ContextVar("idle", default=None)


def take(kind: type, share: Share, count: int) -> list[Any]:
    """So many actors: idle ones, which may have died since, and new ones."""
    idle = _idle.get() or []
    for each in [each for each in idle if each.share != share]:  # Ray may have no room for others beside them
        idle.remove(each)
        ray.kill(each.actor)
    found = [idle.pop().actor for _ in range(min(count, len(idle)))]
    new: Any = ray.remote(max_restarts=0, max_task_retries=0, **share._asdict())(kind)
    return [*found, *(new.remote() for _ in range(count - len(found)))]


def give_back(actor: Any, share: Share) -> None:
    idle = _idle.get()
    if idle is None:
        ray.kill(actor)
    else:
        idle.append(Idle(actor, share))


def with_actors(options: Options, clients: int, cohort: int) -> Options:
    """The options with a number of actors: by default as many as there are cores for and a round has clients."""
    cores = int(_there("CPU", 1))
    most = min(clients, options.actors or min(cohort, max(1, cores // options.actor_threads)))
    if options.actors is not None and options.actors > most:
        notice(f"actors={options.actors} was asked for; there are {most}, as there are no more clients")
    return replace(options, actors=most)


@contextmanager
def budget(options: Options) -> Iterator[None]:
    """Inside, threads are those of an actor, and memory is its share, if actors are spread evenly."""
    actors = options.actors or 1
    machines = sum(node["Alive"] for node in ray.nodes())
    gpus = _there("GPU", 0)
    crowd = math.ceil(actors / gpus) if gpus >= 1 else 1
    with threads(options.actor_threads), shared_by(math.ceil(actors / max(1, machines)), crowd):
        yield


def share(actors: int, threads: int, on_gpu: bool) -> Share:
    """An equal part for each of the actors, so that all of them find room.

    Of a CPU or a GPU, one, a half, a third and so on: several of them would fit into what is left of several machines
    only by chance.
    """
    cores = _there("CPU", 1)
    crowd = math.ceil(actors * threads / cores)
    if crowd > 1:
        notice(f"{actors} actors of {threads} threads share {cores:g} cores")
    return Share(_fraction(threads, crowd), _fraction(1, gpu_crowd(actors)) if on_gpu else 0)


def gpu_crowd(actors: int) -> int:
    """How many actors share a GPU."""
    gpus = _there("GPU", 0)
    if gpus < 1:
        raise ValueError(
            "device='cuda' was asked for, but Ray has no GPU; connect to a cluster that has, with address="
        )
    return math.ceil(actors / gpus)


def _there(resource: str, otherwise: float) -> float:
    """How much of it the cluster has."""
    return float(ray.cluster_resources().get(resource, otherwise))


def _fraction(whole: int, parts: int) -> float:
    """Rounded down to what Ray counts in."""
    return whole if parts == 1 else math.floor(1e4 * whole / parts) / 1e4
