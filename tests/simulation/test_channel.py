"""The channel: how messages reach clients, and how replies come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import undrift as ud
from undrift.core import tree
from undrift.protocol import Cohort, Mail
from undrift.simulation import round as rounds
from undrift.simulation.channel import Answers, Channel, LocalChannel

SETTINGS: dict[str, Any] = {"rounds": 2, "cohort": 4, "lr": 0.1}


class Counting:
    """A channel around another one, which sees all that travels and nothing else."""

    seen: list[tuple[int, int, int]]

    def __init__(self, inner: Channel) -> None:
        self.inner = inner

    @property
    def states(self) -> Any:
        return self.inner.states  # type: ignore[attr-defined]

    def exchange(self, phase: int, mails: Sequence[Mail], cohorts: Sequence[Cohort]) -> list[Answers]:
        answers = self.inner.exchange(phase, mails, cohorts)
        for mail, cohort, answer in zip(mails, cohorts, answers, strict=True):
            clients = len(cohort.ids)
            down = clients * tree.nbytes(mail.shared) + tree.nbytes(mail.each)
            self.seen.append((phase, down, tree.nbytes(answer.replies)))
            assert all(len(leaf) == clients for leaf in tree.leaves(answer.replies))
        return answers


@pytest.mark.parametrize(("name", "phases"), [("fedavg", 1), ("scaffold", 1), ("mime", 2), ("gafsvrg", 3)])
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_all_that_travels_goes_through_it(name: str, phases: int, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ud.simulate(name, "softmax", "digits", engine=engine, **SETTINGS)
    seen: list[tuple[int, int, int]] = []

    def counted(*given: Any) -> Counting:
        channel = Counting(LocalChannel(*given))
        channel.seen = seen
        return channel

    monkeypatch.setattr(rounds, "LocalChannel", counted)
    run = ud.simulate(name, "softmax", "digits", engine=engine, **SETTINGS)
    assert [phase for phase, *_ in seen] == [*range(phases)] * 2
    for number, row in enumerate(run.rows):
        mine = seen[number * phases : (number + 1) * phases]
        assert row["bytes_down"] == sum(down for _, down, _ in mine)
        assert row["bytes_up"] == sum(up for *_, up in mine)
    assert all(torch.equal(v, run.parameters[k]) for k, v in plain.parameters.items())


def test_runs_that_train_together_have_a_server_each(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []

    def counted(*given: Any) -> Counting:
        channel = Counting(LocalChannel(*given))
        channel.seen = seen
        return channel

    monkeypatch.setattr(rounds, "LocalChannel", counted)
    ud.compare(["fedavg"], "softmax", "digits", seeds=3, engine="batched", **SETTINGS)
    assert len(seen) == 3 * 2
