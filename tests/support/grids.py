"""A federation in one process: a small grid of Flower's that delivers messages to the functions of a ClientApp.

Messages are serialised on their way, as between machines. Replies come late, one at a time and in another order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from undrift.flower.messages import EXCHANGE


class InProcessGrid(Grid):
    """Nodes 1000, 1001, ... with the clients 0, 1, ...; `fate` decides what becomes of a message.

    It is given the kind of the message, the client and how many messages that client has got, and returns None (all is
    well), "lost" (the answer is lost), "error" (Flower answers with an error) or a function of the reply.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        config: Mapping[str, Any],
        home: Path,
        fate: Callable[[str, int, int], Any] = lambda kind, client, count: None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app, self.fate = app, fate
        self.apps: dict[int, ClientApp] = {}  # of nodes that have another one
        self.twice = False  # whether every reply comes twice
        self.contexts = {
            1000 + number: Context(
                run_id=1,
                node_id=1000 + number,
                node_config={"partition-id": number, "num-partitions": clients, "state": str(home)},
                state=RecordDict(),
                run_config=dict(config),
            )
            for number in range(clients)
        }
        self.online = set(self.contexts)
        self.exchanges = 0
        self.tensors: Counter[str] = Counter()  # bytes of tensors in exchanges, by the entry of a message
        self.messages: list[tuple[str, int]] = []
        self._replies: dict[str, Message] = {}
        self._random = random.Random(0)

    def get_node_ids(self) -> list[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for number, message in enumerate(messages, len(self.messages)):
            name = f"message {number}"
            message.metadata.__dict__["_message_id"] = name
            names.append(name)
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            client = int(self.contexts[node].node_config["partition-id"])
            count = sum(entry == (kind, client) for entry in self.messages)
            self.messages.append((kind, client))
            self.exchanges += kind.startswith("train.")
            fate = self.fate(kind, client, count)
            reply = self._answer(message, node)
            if fate == "lost":
                continue
            if fate == "error":
                reply = Message(Error(code=3, reason="the node is gone"), reply_to=message)
            elif fate is not None:
                reply = fate(reply)
            self._replies[name] = reply
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        there = [name for name in message_ids if name in self._replies]
        if not there:
            return []
        reply = self._replies.pop(self._random.choice(there))
        return [reply, reply] if self.twice else [reply]

    def rename(self, node: int, other: int) -> None:
        """A node has gone, and come back with another id."""
        self.contexts[other] = self.contexts[node]
        self.online = (self.online - {node}) | {other}

    def _answer(self, message: Message, node: int) -> Message:
        message = self._travelled(message)
        with torch.enable_grad():  # as in a process of its own
            return self._travelled(self.apps.get(node, self.app)(message=message, context=self.contexts[node]))

    def _travelled(self, message: Message) -> Message:
        """What is left of a message after it was written and read."""
        if message.metadata.message_type == EXCHANGE and message.has_content():
            for name, record in message.content.array_records.items():
                self.tensors[name] += sum(len(array.data) for array in record.values())
        objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        arrived = inflate_object_from_contents(message.object_id, objects)
        assert isinstance(arrived, Message)
        arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
        return arrived

    # not used
    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **options: Any) -> Any: ...

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any: ...
