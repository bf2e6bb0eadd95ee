"""The channel: how messages reach clients, and how replies come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import undrift as ud
from undrift.core import tree
from undrift.protocol import Cohort, Mail
from undrift.simulation.channel import CHANNELS, Answers, LocalChannel

SETTINGS: dict[str, Any] = {"rounds": 2, "cohort": 4, "lr": 0.1}


SEEN: list[tuple[int, int, int]] = []


class Counting(LocalChannel):
    """Sees all that travels: the phase, bytes down and bytes up."""

    replayable = False

    def exchange(self, phase: int, mails: Sequence[Mail], cohorts: Sequence[Cohort]) -> list[Answers]:
        answers = super().exchange(phase, mails, cohorts)
        for mail, cohort, answer in zip(mails, cohorts, answers, strict=True):
            clients = len(cohort.ids)
            shared, each = (tree.drop(part, mail.known) for part in (mail.shared, mail.each))
            down = clients * tree.nbytes(shared) + tree.nbytes(each)
            SEEN.append((phase, down, tree.nbytes(answer.replies)))
            assert all(len(leaf) == clients for leaf in tree.leaves(answer.replies))
        return answers


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHANNELS, "counting", Counting)
    SEEN.clear()


@pytest.mark.parametrize(("name", "phases"), [("fedavg", 1), ("scaffold", 1), ("mime", 2), ("gafsvrg", 3)])
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_all_that_travels_goes_through_it(name: str, phases: int, engine: str) -> None:
    plain = ud.simulate(name, "softmax", "digits", engine=engine, **SETTINGS)
    run = ud.simulate(name, "softmax", "digits", engine=engine, place="counting", **SETTINGS)
    assert [phase for phase, *_ in SEEN] == [*range(phases)] * 2
    for number, row in enumerate(run.rows):
        mine = SEEN[number * phases : (number + 1) * phases]
        assert row["bytes_down"] == sum(down for _, down, _ in mine)
        assert row["bytes_up"] == sum(up for *_, up in mine)
    assert all(torch.equal(v, run.parameters[k]) for k, v in plain.parameters.items())


def test_runs_that_train_together_have_a_server_each() -> None:
    ud.compare(["fedavg"], "softmax", "digits", seeds=3, engine="batched", place="counting", **SETTINGS)
    assert len(SEEN) == 3 * 2


def test_a_channel_that_cannot_be_replayed_is_asked_in_every_round() -> None:
    ud.simulate("fedavg", "softmax", "digits", engine="compiled", place="counting", **SETTINGS | {"rounds": 3})
    assert len(SEEN) == 3


def test_an_unknown_place() -> None:
    with pytest.raises(ValueError, match="place must be one of 'local'"):
        ud.simulate("fedavg", "softmax", "digits", place="moon", **SETTINGS)
