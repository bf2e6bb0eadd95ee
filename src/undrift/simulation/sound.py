"""Whether what changes clients' updates on their way fits the algorithm; what does not is refused before round 1.

That is no list of algorithms: a trial round of two clients shows what is sent besides an update, and what the server
does with updates before they are aggregated. So algorithms of users are judged like ours.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from undrift.core import tree
from undrift.core.tree import Nest, Tree
from undrift.engines import Sequential, Workload
from undrift.engines.dry_run import dry_round
from undrift.methods.aggregate import is_robust, mean
from undrift.methods.averaging import Averaging, Train
from undrift.methods.codecs import WithFeedback, written
from undrift.methods.wrapped import innermost
from undrift.protocol import Method
from undrift.simulation import cohort
from undrift.simulation.setup import Setup


class Flow(NamedTuple):
    """What a server takes from clients, as far as it matters here; parts that are named are empty where there are none.

    `remembers`: it keeps something of the updates besides their aggregate. `changes`: it changes updates before they
    are aggregated; `mixes`: so that one depends on the others.
    """

    averages: bool  # else the algorithm has a way of its own
    surveys: str = ""  # what travels in an exchange before training
    sends: str = ""  # what travels besides the update
    ledger: str = ""  # what the server remembers of each client
    keeps: str = ""  # what clients remember
    remembers: bool = False
    changes: bool = False
    mixes: bool = False


def check_sound(setup: Setup, workload: Workload) -> None:
    """Raises a `ValueError` if an option that acts on updates does not fit the algorithm."""
    method = innermost(setup.method)
    robust = isinstance(method, Averaging) and is_robust(method.aggregate)
    codec, privacy = setup.objects.compress, setup.objects.privacy
    if privacy is not None:
        _check_private(setup, method)
    if not robust and not isinstance(codec, WithFeedback) and privacy is None:
        return
    name, found = type(setup.algorithm).__name__, flow(method, workload)
    if robust and (reason := _past_the_rule(found)):
        raise ValueError(f"aggregate={str(setup.objects.aggregate)!r} does not protect {name}: {reason}")
    if isinstance(codec, WithFeedback) and (reason := _not_made_up_for(found)):
        raise ValueError(f"compress={written(codec)!r} does not suit {name}: {reason}")
    if privacy is not None and (reason := _not_private(found, everyone=_everyone(setup))):
        raise ValueError(f"privacy={str(privacy)!r} does not cover {name}: {reason}")


def _check_private(setup: Setup, method: Method) -> None:
    """Refuses settings that let more or less of an update through than the noise is made for."""
    if setup.weighting != "uniform":
        raise ValueError(
            f"privacy needs equal weights, got weighting={setup.weighting!r}: a client of many samples would need more "
            "noise; give weighting='uniform'"
        )
    if isinstance(method, Averaging) and method.aggregate is not mean:
        raise ValueError("privacy adds noise that is made for the mean of updates; give aggregate='mean'")
    if setup.objects.compress is not None:
        raise ValueError("privacy needs updates that arrive as they were clipped; give compress=None")


def _everyone(setup: Setup) -> bool:
    return cohort.size(setup.options, len(setup.data)) in (None, len(setup.data))


def _not_private(found: Flow, everyone: bool) -> str:
    """What of a client reaches the model past clipped updates and noise; empty if nothing does."""
    if not found.averages:
        return "its clients send no updates of one model"
    if reason := _past_the_rule(found):
        return reason
    if found.changes:
        return "the server changes updates after they were clipped"
    if found.keeps and not everyone:
        return (
            f"clients keep {found.keeps} from round to round, for which nothing is proved where some are sampled; "
            "give cohort=1.0"
        )
    return ""


def _not_made_up_for(found: Flow) -> str:
    """Why what an update lost is not made up for by sending it later; empty if it is."""
    if not found.averages:
        return "its clients send no updates of one model"
    if found.ledger:
        return f"the server remembers {found.ledger} of every client and uses it more than once"
    if found.changes:
        return "the server changes updates before it averages them"
    if found.remembers and found.keeps:
        return "client and server both remember the update, and would no longer remember the same"
    return ""


def _past_the_rule(found: Flow) -> str:
    """How clients could change the model past a robust rule; empty if they cannot."""
    if found.surveys:
        return f"clients send {found.surveys} before they train, which the server averages as it is"
    if found.sends == "buffers":
        return "clients also send buffers, which the server averages; give buffers='local' or 'dropped'"
    if found.sends:
        return f"clients also send {found.sends}, which the server uses as it is"
    if found.ledger:
        return f"the server remembers {found.ledger} of every client and uses it as it is"
    if found.remembers:
        return "the server keeps a mean of the updates besides what the rule makes of them"
    return "the server scales every update by the norms of all" if found.mixes else ""


def flow(method: Method, workload: Workload) -> Flow:
    """What the server of a method takes from clients, found by a trial round of two of them."""
    if not isinstance(method, Averaging):
        return Flow(averages=False)
    learner = workload.training.learner
    with torch.no_grad():
        *before, (server, replies, cohort) = dry_round(Sequential(), workload._replace(method=method))
        train = Train(method)
        updates, after = train.collect(server, replies, cohort)
        others = [train.collect(server, replies | {"update": other}, cohort) for other in _others(replies["update"])]
    return Flow(
        averages=True,
        surveys=", ".join(_named(exchange.replies) for exchange in before),
        sends=_named(tree.drop(replies, ["update"])),
        ledger=_named(method.ledger(learner.parameters)),
        keeps=_named(method.client(learner.parameters, learner.buffers)),
        remembers=any(not _equal(after, then) for _, then in others),
        changes=updates is not replies["update"],
        mixes=any(not _equal(tree.row(updates, 0), tree.row(then, 0)) for then, _ in others),
    )


def _others(updates: Tree) -> list[Tree]:
    """What the second of two clients might have sent instead: a longer update, or one against the first's."""
    first, second = tree.row(updates, 0), tree.row(updates, 1)
    others = tree.scale(second, 3.0), tree.scale(first, -0.9), tree.scale(first, -1000.0)
    return [tree.stack([first, other]) for other in others]


def _named(nest: Nest) -> str:
    """The parts of a message or a state: the names that corrections give them, and the method's own."""
    own = ("buffers", "private")
    return ", ".join(part for key, nested in nest.items() for part in ([key] if key in own else nested))


def _equal(a: Nest, b: Nest) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))
