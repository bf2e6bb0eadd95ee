"""Messages to a site in the same process: what every other transport must agree with."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from undrift.protocol import Mail, State
from undrift.storage.arena import Ids
from undrift.transport.order import Answers, Order
from undrift.transport.site import Site


class InProcess:
    durable = False

    def __init__(self, site: Site) -> None:
        self._site = site

    def exchange(self, order: Order, mail: Mail) -> Answers:
        return self._site.answer(order, mail)

    def personal(self, order: Order, mail: Mail, own: bool = True) -> tuple[Ids, Tensor]:
        return order.ids, self._site.personal(order, mail, own)

    def remembered(self, order: Order, part: str | None) -> tuple[Ids, State]:
        return order.ids, self._site.remembered(order, part)

    def keep(self, round: int, ids: Ids) -> None:
        self._site.keep(round, ids)

    def restore(self, blocks: Iterator[State], heard: Ids) -> None:
        self._site.restore(blocks, heard)

    def close(self) -> None: ...
