"""What runs in a process of a Ray cluster: a site with a share of the clients."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import ray
import torch

from undrift.client.evaluate import Samples
from undrift.core import sharing, tree
from undrift.core.version import __version__
from undrift.data.federated import FederatedData
from undrift.engines import allocation
from undrift.engines.determinism import arithmetic, threads
from undrift.protocol import Mail, State
from undrift.simulation.arguments import Objects
from undrift.simulation.clients import site
from undrift.simulation.on_ray.wire import Packed, pack, unpack
from undrift.simulation.options import Options
from undrift.simulation.prepare import find_model, prepare, with_engine
from undrift.simulation.setup import Experiment
from undrift.storage.arena import Ids
from undrift.transport import Order, Site


class Host(NamedTuple):
    """The machine of an actor, and what computes there."""

    node: str
    undrift: str
    torch: str


class Everything(NamedTuple):
    """What an actor makes its experiment of; samples are stored once a machine, whatever the number of its actors."""

    objects: Objects
    options: Options
    data: FederatedData  # without its tensors,
    samples: dict[str, Any]  # which are here
    threads: int

    @classmethod
    def of(cls, experiment: Experiment) -> Everything:
        """All by value: a name may be known to the driver only. Metrics are the driver's."""
        data, options = experiment.data, experiment.options
        device = experiment.learner.device
        return cls(
            objects=replace(
                experiment.objects,
                algorithm=experiment.algorithm,
                model=find_model(experiment.objects.model, data, options.seed),
                data=None,
                test=None,
                metrics=(),
            ),
            options=replace(
                options,
                place="local",
                actors=None,
                address=None,
                actor_threads=1,
                device=device.type,  # Ray says which of the GPUs
                engine=experiment.engine.setting,
                target=None,
            ),
            data=_without_tensors(data),
            samples=_samples(data, experiment.test),
            threads=options.actor_threads,
        )

    def experiment(self) -> Experiment:
        data, found = copy.copy(self.data), self.samples
        data.x, data.y = (found[name].tensor(shared=True) for name in ("x", "y"))
        if data.local_tests is not None:
            x, y = (found[name].tensor(shared=True) for name in ("local_x", "local_y"))
            data.local_tests = data.local_tests._replace(x=x, y=y)
        test = (found["test_x"].tensor(shared=True), found["test_y"].tensor(shared=True)) if "test_x" in found else None
        return with_engine(prepare(replace(self.objects, data=data, test=test), self.options))


def _without_tensors(data: FederatedData) -> FederatedData:
    bare, nothing = copy.copy(data), torch.empty(0)
    bare.x = bare.y = nothing
    bare.test = None
    if data.local_tests is not None:
        bare.local_tests = data.local_tests._replace(x=nothing, y=nothing)
    return bare


def _samples(data: FederatedData, test: Samples | None) -> dict[str, Packed]:
    named = {"x": data.x, "y": data.y}
    if test is not None:
        named |= {"test_x": test[0], "test_y": test[1]}
    if data.local_tests is not None:
        named |= {"local_x": data.local_tests.x, "local_y": data.local_tests.y}
    known: dict[int, Packed] = {}  # local tests may be rows of all samples
    return {name: known.setdefault(id(tensor), Packed.of(tensor)) for name, tensor in named.items()}


class Clients:
    """The actor. What it is sent and what it returns is packed."""

    _site: Site
    _precision: str
    _threads: int | None
    _device: torch.device

    def __init__(self) -> None:
        self._until_end = ExitStack()

    def host(self) -> Host:
        return Host(ray.get_runtime_context().get_node_id(), __version__, torch.__version__)

    def begin(self, given: Everything, here: int, on_this_gpu: int) -> None:
        """Build the clients; `here` actors share the machine, some of them a GPU."""
        self.end()
        torch.set_num_threads(given.threads)
        self._until_end.enter_context(sharing.shared_by(here, on_this_gpu))
        self._until_end.enter_context(allocation.keep_freed_memory())
        experiment = given.experiment()
        self._precision, self._threads = experiment.precision, experiment.engine.threads
        self._device, self._site = experiment.learner.device, site(experiment)

    def end(self) -> None:
        """Forget the clients, of a run that has ended."""
        self.__dict__.pop("_site", None)
        self._until_end.close()

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with arithmetic(self._precision), threads(self._threads):
            yield

    def answer(self, order: Order, shared: Any, each: Any) -> tuple[Any, Any]:
        """What travels, and what clients remember afterwards: a result of its own, which nobody fetches."""
        with self._computing():
            answers = self._site.answer(order, self._mail(shared, each))
            return (pack(answers.replies), pack(answers.reports)), pack(self._drafted())

    def personal(self, order: Order, shared: Any, each: Any, own: bool) -> Packed:
        with self._computing():
            return Packed.of(self._site.personal(order, self._mail(shared, each), own))

    def remembered(self, order: Order, part: str | None) -> Any:
        return pack(self._site.remembered(order, part))

    def keep(self, round: int, ids: Ids) -> None:
        self._site.keep(round, ids)

    def restore(self, heard: Ids, kept: Sequence[Ids], *blocks: Any) -> None:
        """Clients continue with these states, of every block those of the clients that are `kept`."""
        self._site.restore((_chosen(unpack(b, self._device), who) for who, b in zip(kept, blocks, strict=True)), heard)

    def all_states(self) -> tuple[None, Any]:
        """All that clients remember, as a result that nobody fetches; the first is there when it is."""
        blocks = list(self._site.states.blocks())
        ids, states = torch.cat([block["ids"] for block in blocks]), tree.concat([block["states"] for block in blocks])
        return None, pack({"ids": ids, "states": states})

    def _drafted(self) -> State:
        """What clients will remember if the server keeps the round; empty before its last phase."""
        draft = self._site.draft
        if draft is None or draft.phase < self._site.trainees.training_phases - 1:
            return {}
        return {"ids": torch.from_numpy(draft.ids), "states": draft.after.read(slice(None))}

    def _mail(self, shared: Any, each: Any) -> Mail:
        return Mail(unpack(shared, self._device), unpack(each, self._device))


def _chosen(block: State, kept: Ids) -> State:
    ids = block["ids"].cpu()
    rows = torch.from_numpy(np.flatnonzero(np.isin(ids.numpy(), kept)))
    return {"ids": ids[rows], "states": tree.row(block["states"], rows.to(block["ids"].device))}
