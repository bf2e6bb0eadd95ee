"""The connection to clients that are elsewhere, for as long as a run trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from undrift.simulation.divergence import DivergenceError
from undrift.simulation.memory import Memory
from undrift.simulation.place import Opener
from undrift.simulation.remote import RemoteStates
from undrift.simulation.setup import Experiment


@contextmanager
def connected(experiment: Experiment, open_transport: Opener, memory: Memory) -> Iterator[None]:
    """During the block clients have what they remember; afterwards the run has it again."""
    transport = open_transport(experiment)
    try:
        transport.restore(memory.own.blocks(), memory.heard)
        memory.remote = RemoteStates(experiment, transport, memory.own.initial, memory.heard)
        try:
            yield
        except (KeyboardInterrupt, DivergenceError):  # the run goes to the caller
            _fetch_states(memory.remote, memory)
            raise
        _fetch_states(memory.remote, memory)
    finally:
        memory.remote = None
        transport.close()


def _fetch_states(remote: RemoteStates, memory: Memory) -> None:
    for block in remote.blocks():
        memory.own.scatter(block["ids"].numpy(), block["states"])
