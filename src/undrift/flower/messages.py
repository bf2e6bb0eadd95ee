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
POLL = 0.2  # seconds between looks for replies; Flower's own `send_and_receive` sleeps for three


class Answered(NamedTuple):
    """What came back of some messages."""

    contents: dict[int, RecordDict]  # by the positions of the messages
    problems: dict[int, str]  # why there is none


def send(grid: Grid, messages: Sequence[Message], deadline: float) -> Answered:
    """Send messages and wait for their replies, in any order, until all are there or the time is over.

    Replies are recognised by the message that they reply to: an error may come from the SuperLink, in whose name.
    """
    names = list(grid.push_messages(messages)) if messages else []
    if len(names) != len(messages):
        return Answered({}, dict.fromkeys(range(len(messages)), "Flower did not take the message"))
    waiting = {name: position for position, name in enumerate(names) if name}
    answered = Answered({}, {n: "Flower did not take the message" for n, name in enumerate(names) if not name})
    until = time.monotonic() + deadline
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            position = waiting.pop(reply.metadata.reply_to_message_id, None)
            if position is None:  # a second reply to the same message
                continue
            if reply.has_error():
                answered.problems[position] = f"{reply.error.reason or 'an error'} (Flower's code {reply.error.code})"
            elif REFUSAL in reply.content:
                answered.problems[position] = str(reply.content[REFUSAL]["reason"])
            else:
                answered.contents[position] = reply.content
        if not waiting or time.monotonic() >= until:
            break
        time.sleep(POLL)
    answered.problems.update(dict.fromkeys(waiting.values(), f"no answer within {deadline:g} s"))
    return answered
