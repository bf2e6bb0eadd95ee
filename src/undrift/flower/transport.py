"""Messages to clients through Flower's grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from undrift.core import tree
from undrift.core.extras import needs
from undrift.core.log import warning
from undrift.core.tree import Nest
from undrift.flower.expected import Expected, inbox
from undrift.flower.messages import EXCHANGE, MAIL, ORDER, PERSONAL, REMEMBERED, REPLY, REPORT, send
from undrift.flower.nodes import Nodes
from undrift.flower.order import BUFFERS, OWN, Terms, Told
from undrift.flower.settings import Federation
from undrift.flower.wire import WireError, from_record, to_record
from undrift.protocol import Mail, State
from undrift.storage.arena import Ids
from undrift.transport import Answers, Order

with needs("flower"):
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid


class FlowerTransport:
    """Reaches the clients of a run; what they remember stays on their own disks."""

    durable: ClassVar[bool] = True

    def __init__(
        self,
        grid: Grid,
        nodes: Nodes,
        terms: Terms,
        expect: Callable[[int], list[Expected]],  # what messages of a round must look like
        initial: State,
        federation: Federation,
    ) -> None:
        self._grid, self._nodes, self._terms, self._expect = grid, nodes, terms, expect
        self._initial, self._wait, self._deadline = initial, federation.wait, federation.deadline
        self._expected: tuple[int, list[Expected]] = 0, []  # in which round
        self._means: dict[str, tuple[bytes, tuple[Ids, State]]] = {}  # what `remembered` found last, and when

    def exchange(self, order: Order, mail: Mail) -> Answers:
        enough = min(self._terms.options.min_answers, len(order.ids))
        self._nodes.wait_for(order.ids.tolist(), enough, self._wait)
        if self._expected[0] != order.round:
            self._expected = order.round, self._expect(order.round)
        like = self._expected[1][order.phase]
        found, failures = self._ask(EXCHANGE, order, mail)
        replies, reports, present = [], [], []
        for position, content in found.items():
            who = self._nodes.name(int(order.ids[position]))
            try:
                reply = from_record(content.get(REPLY), like.reply, f"{who}: its reply")
                report = from_record(content.get(REPORT), like.report, f"{who}: its report")
            except WireError as error:
                failures["malformed"] += 1
                _left_out(order, error)
                continue
            replies.append(reply)
            reports.append(report)
            present.append(position)
        if not present:
            return Answers({}, {}, np.zeros(0, dtype=np.int64), failures)
        there = None if len(present) == len(order.ids) else np.array(present, dtype=np.int64)
        return Answers(tree.stack(replies), tree.stack(reports), there, failures)

    def personal(self, order: Order, mail: Mail, own: bool = True) -> tuple[Ids, Tensor]:
        like = {"counts": torch.zeros(2, dtype=torch.float64)}
        served = BUFFERS if mail.shared.get("buffers") else ""
        ids, found = self._gather(PERSONAL, order, mail, like, OWN if own else served)
        return ids, torch.stack([each["counts"] for each in found]) if found else torch.zeros(0, 2)

    def remembered(self, order: Order, part: str | None) -> tuple[Ids, State]:
        """Asked for once a round, although a checkpoint needs it as well."""
        assert part is not None, "what clients remember stays with them"
        when = order.ids.tobytes() + order.heard.tobytes()
        if part not in self._means or self._means[part][0] != when:
            like = {part: tree.map_nest(lambda v: v.to("meta"), self._initial[part])}
            ids, found = self._gather(REMEMBERED, order, None, like, part)
            self._means[part] = when, (ids, tree.stack(found) if found else {})
        return self._means[part][1]

    def keep(self, round: int, ids: Ids) -> None:
        """The next order says so, after the checkpoint."""

    def restore(self, blocks: Iterator[State], heard: Ids) -> None:
        """Clients have what they remember themselves."""

    def close(self) -> None: ...

    def _gather(self, kind: str, order: Order, mail: Mail | None, like: Nest, part: str = "") -> tuple[Ids, list[Nest]]:
        """Who answered, and what, if it is as expected."""
        found, fitting = [], []
        for position, content in self._ask(kind, order, mail, part)[0].items():
            who = self._nodes.name(int(order.ids[position]))
            try:
                found.append(from_record(content.get(REPLY), like, f"{who}: its reply"))
                fitting.append(position)
            except WireError as error:
                _left_out(order, error)
        return order.ids[np.array(fitting, dtype=np.int64)], found

    def _ask(
        self, kind: str, order: Order, mail: Mail | None, part: str = ""
    ) -> tuple[dict[int, RecordDict], Counter[str]]:
        """What clients answered, by their positions in the cohort and in its order; how many failed in which way."""
        shared = to_record(mail.shared) if mail is not None and not mail.each else None
        messages, asked, failures = [], [], Counter[str]()
        for position, client in enumerate(order.ids.tolist()):
            node = self._nodes.of(client)
            if node is None:
                failures["unanswered"] += 1
                _left_out(order, f"{self._nodes.name(client)} is not connected")
                continue
            alone = order.of(np.array([position]))
            content: dict[str, Any] = {ORDER: Told(self._terms, alone, self._nodes.number(client), part).record()}
            if mail is not None:
                content[MAIL] = shared if shared is not None else to_record(inbox(mail, position))
            group = f"{order.round}.{order.phase}"
            messages.append(Message(RecordDict(content), node, kind, ttl=self._deadline, group_id=group))
            asked.append(position)
        answered = send(self._grid, messages, self._deadline)
        for number, problem in sorted(answered.problems.items()):
            failures[problem.column] += 1
            _left_out(order, f"{self._nodes.name(int(order.ids[asked[number]]))}: {problem.text}")
        failures["repeated"] += len(answered.repeated)
        return {asked[number]: answered.contents[number] for number in sorted(answered.contents)}, failures


def _left_out(order: Order, problem: object) -> None:
    warning(f"round {order.round}, left out: {problem}")
