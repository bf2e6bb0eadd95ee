"""Kinds of messages, their entries, and how they are sent through Flower's grid."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from undrift.core.extras import needs

with needs("flower"):
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

# Kinds: a category of Flower's and the name of a function of the ClientApp.
CENSUS, EXCHANGE, PERSONAL, REMEMBERED = "query.census", "train.exchange", "evaluate.personal", "query.remembered"
# Entries.
ORDER, MAIL, REPLY, REPORT, REFUSAL = "order", "mail", "reply", "report", "refusal"
_LOST = (3, 4, 5)  # Flower's codes of a message, a reply or a node that is not there
POLL = 0.2  # seconds between looks for replies; Flower's own `send_and_receive` sleeps for three


class Problem(NamedTuple):
    """Why a message has no answer."""

    text: str
    column: str = "unanswered"  # of the history, where it is counted
    lost: bool = False  # whether message or answer were lost, as when a node is killed: it may answer if asked again


class Answered(NamedTuple):
    """What came back of some messages, by their positions."""

    contents: dict[int, RecordDict]
    problems: dict[int, Problem]
    repeated: list[int]  # a second reply came, and was ignored


def send(grid: Grid, messages: Sequence[Message], deadline: float) -> Answered:
    """Send messages and wait for their replies, in any order, until all are there or the time is over.

    Replies are recognised by the message that they reply to: an error may come from the SuperLink, in whose name.
    """
    names: list[str | None] = [*grid.push_messages(messages)] if messages else []
    if len(names) != len(messages):
        names = [None] * len(messages)  # Flower does not say which of them it took
    positions = {name: position for position, name in enumerate(names) if name}
    refused = Problem("Flower did not take the message")
    answered = Answered({}, {position: refused for position, name in enumerate(names) if not name}, [])
    waiting, until = set(positions), time.monotonic() + deadline
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            name = reply.metadata.reply_to_message_id
            if name in waiting:
                waiting.remove(name)
                _read(reply, positions[name], answered)
            elif name in positions:
                answered.repeated.append(positions[name])
        if not waiting or time.monotonic() >= until:
            break
        time.sleep(POLL)
    late = Problem(f"no answer within {deadline:g} s", "late", lost=True)
    answered.problems.update({positions[name]: late for name in waiting})
    return answered


def _read(reply: Message, position: int, answered: Answered) -> None:
    if reply.has_error():
        text = f"{reply.error.reason or 'an error'} (Flower's code {reply.error.code})"
        answered.problems[position] = Problem(" ".join(text.split()), lost=reply.error.code in _LOST)
    elif REFUSAL in reply.content:
        answered.problems[position] = Problem(str(reply.content.config_records[REFUSAL].get("reason")))
    else:
        answered.contents[position] = reply.content
