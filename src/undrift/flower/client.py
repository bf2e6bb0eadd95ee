"""The clients' side of a Flower app: a `Site` with one client, whose memory is on this machine's disk.

Flower starts a process for every message, so that nothing is remembered but on disk.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from undrift.core import check, tree
from undrift.core.extras import needs
from undrift.core.log import notice, warning
from undrift.core.tree import Nest
from undrift.data.federated import FederatedData
from undrift.engines import Sequential, Stacked
from undrift.engines.determinism import arithmetic, threads
from undrift.flower.expected import Expected, expected_messages, personal_mail, phases, served_mail
from undrift.flower.facts import difference, digest, facts
from undrift.flower.log import to_flower
from undrift.flower.messages import CENSUS, EXCHANGE, MAIL, ORDER, PERSONAL, REFUSAL, REMEMBERED, REPLY, REPORT
from undrift.flower.order import BUFFERS, CENSUS_QUESTION, OWN, PRIVATE, Told, read_options
from undrift.flower.samples import Samples
from undrift.flower.settings import ALGORITHM, MODEL, no_census, read_arguments, read_federation
from undrift.flower.wire import WireError, from_record, numbers_from, to_record
from undrift.methods.private import deployed
from undrift.methods.setting import Plan
from undrift.protocol import Mail
from undrift.reporting.wording import count_text, unit_of_traffic
from undrift.simulation.arguments import Arguments
from undrift.simulation.defaults import resolve_defaults
from undrift.simulation.options import Options
from undrift.simulation.prepare import Known, prepare
from undrift.simulation.setup import Setup
from undrift.storage.arena import Space
from undrift.storage.client_disk import ClientDisk, Kept, Version, earlier_runs
from undrift.storage.states import ClientStates
from undrift.transport import LostStatesError, Site, Trainees
from undrift.transport.site import Draft

with needs("flower"):
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

GiveSamples = Callable[[Context], Samples]


def client_app(
    training_samples: GiveSamples, *, algorithm: Any = None, model: Any = None, loss: Any = None
) -> ClientApp:
    """A ClientApp that answers for the client whose number is ``partition-id`` in the node's configuration.

    `training_samples` gives its samples. Algorithm and model are named in the app's configuration, or given as objects
    here and to `server_app` alike, as a loss of one's own is.
    """
    app = ClientApp()
    client = _Client(training_samples, algorithm, model, loss)
    answers = {
        CENSUS: client.census,
        EXCHANGE: client.exchange,
        PERSONAL: client.personal,
        REMEMBERED: client.remembered,
    }
    for kind, answer in answers.items():
        category, _, name = kind.partition(".")
        getattr(app, category)(name)(_guarded(answer))
    return app


def _guarded(answer: Callable[[Message, Context], RecordDict]) -> Callable[[Message, Context], Message]:
    """What is wrong here is said here in one line, and told to the server, which goes on without this client."""

    def reply(message: Message, context: Context) -> Message:
        with to_flower():
            try:
                content = answer(message, context)
            except (ValueError, TypeError, OSError, LostStatesError) as error:
                reason = " ".join(str(error).split()).removeprefix(f"{_who(context)}: ")
                warning(f"{_who(context)}: {reason}")
                content = RecordDict({REFUSAL: ConfigRecord({"reason": reason})})
        return Message(content, reply_to=message)

    return reply


def _who(context: Context) -> str:
    return f"client {context.node_config.get('partition-id', '(without partition-id)')}"


@dataclass(frozen=True)
class _Client:
    samples: GiveSamples
    algorithm: Any
    model: Any
    loss: Any

    # answers

    def census(self, message: Message, context: Context) -> RecordDict:
        """Who this is, how many samples it has, and what it believes the experiment to be."""
        number, samples = _number(context), self._samples(context)
        given = numbers_from(message.content.get(CENSUS), CENSUS_QUESTION, "the server's census")
        known = Known(given["clients"], Plan(1.0, 1), no_census)
        setup = self._setup(context, samples, read_options(given["options"]), known)
        mine, theirs = facts(setup, samples), dict(json.loads(given["facts"]))
        if misfit := difference(mine, theirs, "here", "at the server"):
            warning(f"{_who(context)} does not fit the server and is left out: {misfit}")
        own = {"client": number, "samples": len(samples.x), "tests": samples.tests}
        told = ConfigRecord({**own, "facts": json.dumps(mine)})
        return RecordDict({CENSUS: told})

    def exchange(self, message: Message, context: Context) -> RecordDict:
        """Answer a phase of a round."""
        with self._asked(message, context) as asked:
            if not 0 <= asked.order.phase < len(asked.expected):
                raise WireError(f"the server's order: there is no phase {asked.order.phase}")
            mail = from_record(
                message.content.get(MAIL), asked.expected[asked.order.phase].mail, "the server's message"
            )
            training = asked.site.trainees.training_phases  # those after them are for diagnostics: nothing is kept
            kept = asked.disk.read().settled(int(asked.order.heard[0]), training - 1, asked.order.round)
            before = [draft for draft in kept.drafts if draft.phase < asked.order.phase < training]
            asked.load(kept.own, before[-1] if before else None)
            answers = asked.site.answer(asked.order, Mail(mail))
            if asked.order.phase < training:
                assert asked.site.draft is not None
                after = Version(asked.order.round, asked.order.phase, asked.site.draft.after.read(0))
                asked.disk.write(Kept(kept.own, (*before, after)))
            reply, report = tree.row(answers.replies, 0), tree.row(answers.reports, 0)
        return RecordDict({REPLY: to_record(reply), REPORT: to_record(report)})

    def personal(self, message: Message, context: Context) -> RecordDict:
        """How many of its own test samples the model that this client would use answers rightly."""
        with self._asked(message, context) as asked:
            mail = from_record(message.content.get(MAIL), asked.personal_mail(), "the server's message")
            asked.load_newest()
            counts = asked.site.personal(asked.order, Mail(mail), own=asked.told.part == OWN)
        return RecordDict({REPLY: to_record({"counts": counts[0]})})

    def remembered(self, message: Message, context: Context) -> RecordDict:
        """A part of the model that this client keeps for itself, for the mean that the server evaluates."""
        with self._asked(message, context) as asked:
            part = asked.told.part
            if part not in (PRIVATE, BUFFERS):
                raise WireError(f"the server's order: {check.shown(part)} is not sent")
            asked.load_newest()
            states = asked.site.remembered(asked.order, part)
        return RecordDict({REPLY: to_record(tree.row(states, 0))})

    # what they need

    @contextmanager
    def _asked(self, message: Message, context: Context) -> Iterator[_Asked]:
        """This client as the server's order wants it; during the block no other process answers for it."""
        told = Told.read(message.content.get(ORDER))
        number = _number(context)
        if told.client != number:
            raise ValueError(f"the server asks client {told.client}, but this node's partition-id is {number}")
        samples, terms = self._samples(context), told.terms
        known = Known(terms.population, terms.plan, no_census, terms.tried)
        setup = self._setup(context, samples, terms.options, known)
        if digest(facts(setup, samples)) != terms.facts:
            raise ValueError("version, algorithm, model or kind of samples are not those that the server counts on")
        disk = ClientDisk(_home(context) / terms.run / str(number), {"run": terms.run, "client": number})
        if not disk.path.exists():
            _tell_of_earlier_runs(_home(context), terms.run)
        with disk.locked(), arithmetic(setup.precision), threads(1):
            yield _Asked(told, setup, samples, disk)

    def _samples(self, context: Context) -> Samples:
        samples = self.samples(context)
        if not isinstance(samples, Samples):
            raise TypeError(
                f"the function of the client's samples must return Samples(x, y), got {check.shown(samples)}"
            )
        if not len(samples.x):
            raise ValueError("this client has no samples")
        return samples

    def _setup(self, context: Context, samples: Samples, options: Options, known: Known) -> Setup:
        """Model, algorithm and samples of this machine; the settings are the server's."""
        config = context.run_config
        read_federation(config)
        algorithm: Any = self.algorithm or config.get(ALGORITHM)
        model: Any = self.model or config.get(MODEL)
        arguments = Arguments(algorithm, model, loss=self.loss, **read_arguments(config))
        data = FederatedData.from_rows(
            samples.x,
            samples.y,
            np.arange(len(samples.x)),
            [len(samples.x)],
            classes=samples.classes,
            name=samples.name,
            normalise=samples.normalise,
        )
        device = context.node_config.get("device")
        options = replace(options, device=None if device is None else str(device), target=None, patience=None)
        # Model and augmentation may be the data set's own; the server has decided all else, and it evaluates.
        resolved = resolve_defaults(arguments.objects, replace(options, cohort=None), data)
        setup = prepare(replace(resolved.objects, metrics=()), options, known=known)
        return replace(setup, method=deployed(setup.method))


class _Asked:
    """A client that is about to answer."""

    def __init__(self, told: Told, setup: Setup, samples: Samples, disk: ClientDisk) -> None:
        self.told, self.disk, self._setup = told, disk, setup
        learner, method = setup.learner, setup.method
        self.order = told.order._replace(shares=told.order.shares.to(learner.dtype))
        own = None if samples.test is None else (samples.test[0].to(learner.device), samples.test[1].to(learner.device))
        trainees = Trainees(
            phases=phases(setup),
            training_phases=len(method.phases),
            personal=method.personal,
            training=setup.training,
            engine=Sequential(),
            sizes=setup.data.sizes,
            extremes=(len(samples.x), len(samples.x)),
            tests=lambda client: own,
            positions=np.zeros_like,
        )
        initial = method.client(learner.parameters, learner.buffers)
        self.site = Site(trainees, ClientStates(initial, told.terms.population, Space(learner.device)))

    @cached_property
    def expected(self) -> list[Expected]:
        return expected_messages(self._setup, self.told.terms.population, self.order.round)

    def load(self, own: Version | None, draft: Version | None) -> None:
        """Let the client remember what was on its disk."""
        heard = np.zeros(self.told.terms.population, dtype=np.int64)
        blocks = []
        if own is not None:
            heard[self.order.ids] = own.round
            initial = self.site.states.initial
            blocks.append(
                {"ids": torch.from_numpy(self.order.ids), "states": tree.ordered_like(self._here(own), initial)}
            )
        self.site.restore(iter(blocks), heard)
        if draft is not None:
            states = Stacked(self._here(draft))
            self.site.draft = Draft(draft.round, draft.phase, self.order.ids, states, states)

    def load_newest(self) -> None:
        """What the client remembers after the rounds that the server has kept, between rounds."""
        kept = self.disk.read()
        self.load(kept.own, kept.drafts[-1] if kept.drafts else None)

    def personal_mail(self) -> Nest:
        if self.told.part != OWN:
            return served_mail(self._setup, buffers=self.told.part == BUFFERS)
        if self._setup.method.personal is None:
            raise WireError("the server's order: clients of this algorithm have no model of their own")
        return personal_mail(self._setup, self.told.terms.population, self.order.round)

    def _here(self, version: Version) -> Nest:
        return tree.map_nest(lambda v: v[None].to(self._setup.learner.device), version.state)


def _number(context: Context) -> int:
    number = context.node_config.get("partition-id")
    if type(number) is not int or number < 0:
        given = "no partition-id" if number is None else f"partition-id={check.shown(number)}"
        raise ValueError(
            f"a client's number is its node's partition-id, as in --node-config 'partition-id=0', got {given}"
        )
    return number


def _tell_of_earlier_runs(home: Path, run: str) -> None:
    """Only the server's side knows which of them will be continued, so that nothing is deleted here."""
    with suppress(OSError):
        if earlier := earlier_runs(home, run):
            oldest, count = earlier[0], count_text(len(earlier), "earlier run")
            total = sum(each.size for each in earlier)
            size, unit = unit_of_traffic([total])
            day = time.strftime("%d %B %Y", time.localtime(oldest.used))
            notice(
                f"{home} holds {total / size:.3g} {unit} of {count}, the oldest ({oldest.name}) last used on {day}; "
                "delete folders of runs that will not be continued"
            )


def _home(context: Context) -> Path:
    """Where clients of this machine keep what they remember."""
    given = context.node_config.get("state")
    return Path.home() / ".local" / "state" / "undrift" if given is None else check.path("state", given).expanduser()
