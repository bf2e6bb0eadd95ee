"""Clients reached by messages: all that travels, what is kept, and what happens when answers are lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from undrift.core import tree
from undrift.protocol import Cohort, Mail
from undrift.reporting.record import TIMES
from undrift.simulation.clients import site
from undrift.simulation.place import PLACES, Place
from undrift.storage.arena import Ids
from undrift.transport import Answers, InProcess, LostStatesError, Order, Site, TooFewAnswersError

SETTINGS: dict[str, Any] = {"rounds": 3, "cohort": 4, "lr": 0.1}


class Watched(InProcess):
    """Sees all that travels; `answers` decides who answers a phase."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.orders: list[Order] = []
        self.bytes: list[tuple[int, int]] = []
        self.kept: list[tuple[int, list[int]]] = []
        self.closed = False
        self.answers: Callable[[Order], list[bool]] = lambda order: [True] * len(order.ids)

    def exchange(self, order: Order, mail: Mail) -> Answers:
        answers = super().exchange(order, mail)
        self.orders.append(order)
        shared, each = (tree.drop(part, mail.known) for part in (mail.shared, mail.each))
        self.bytes.append((len(order.ids) * tree.nbytes(shared) + tree.nbytes(each), tree.nbytes(answers.replies)))
        present = np.flatnonzero(self.answers(order))
        rows = torch.from_numpy(present)
        return Answers(tree.row(answers.replies, rows), tree.row(answers.reports, rows), present)

    def keep(self, round: int, ids: Ids) -> None:
        self.kept.append((round, ids.tolist()))
        super().keep(round, ids)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ud.Run, Watched]]:
    def simulate(*given: Any, answers: Callable[[Order], list[bool]] | None = None, **options: Any) -> Any:
        found: list[Watched] = []

        class OfWatched(Place):
            def open(self, experiment: Any) -> Watched:
                found.append(Watched(site(experiment)))
                if answers is not None:
                    found[0].answers = answers
                return found[0]

        monkeypatch.setitem(PLACES, "watched", OfWatched)
        return ud.simulate(*given, **options | {"place": "watched"}), found[0]

    return simulate


@pytest.mark.parametrize(("name", "phases"), [("fedavg", 1), ("scaffold", 1), ("mime", 2), ("gafsvrg", 3)])
def test_all_that_travels_goes_through_it(name: str, phases: int, watched: Any) -> None:
    run, transport = watched(name, "softmax", "digits", **SETTINGS)
    assert [order.phase for order in transport.orders] == [*range(phases)] * 3
    for number, row in enumerate(run.rows):
        mine = transport.bytes[number * phases : (number + 1) * phases]
        assert row["bytes_down"] == sum(down for down, _ in mine)
        assert row["bytes_up"] == sum(up for _, up in mine)
    assert [round for round, _ in transport.kept] == [1, 2, 3]
    assert transport.closed


def test_what_clients_keep_is_evaluated_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLACES, "in-process", Place)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    settings = SETTINGS | {
        "metrics": ["personal_accuracy", "fairness"],
        "diagnostics": ["client_distance", "gradient_dissimilarity"],
    }
    here, there = (ud.simulate("fedbn", model, "digits", place=place, **settings) for place in ("local", "in-process"))
    assert there.history.drop(columns=TIMES).equals(here.history.drop(columns=TIMES))
    assert there.clients.equals(here.clients)
    assert all(torch.equal(v, there.model.state_dict()[k]) for k, v in here.model.state_dict().items())


def test_names_with_a_slash_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"a/b": nn.Linear(64, 10)})

        def forward(self, x: Tensor) -> Tensor:
            return self.parts["a/b"](x.flatten(1))

    monkeypatch.setitem(PLACES, "in-process", Place)
    torch.manual_seed(0)
    model = Model()
    settings = SETTINGS | {"place": "in-process"}
    whole = ud.simulate("scaffold", model, "digits", **settings)
    ud.simulate("scaffold", model, "digits", out=tmp_path / "run", **settings | {"rounds": 2})
    again = ud.resume(tmp_path / "run", 3, model=model)
    assert all(torch.equal(v, again.parameters[k]) for k, v in whole.parameters.items())


class TestLostAnswers:
    def test_weights_are_those_of_the_clients_that_answered(self, watched: Any) -> None:
        """A client that never answers is as if it were not in the cohorts."""
        cohorts = [[0, 1, 2], [1, 2, 3], [0, 2, 3]]
        settings = SETTINGS | {"cohort": cohorts, "engine": "sequential"}
        lossy, _ = watched("scaffold", "softmax", "digits", answers=lambda o: (o.ids != 1).tolist(), **settings)
        without = [[i for i in cohort if i != 1] for cohort in cohorts]
        plain = ud.simulate("scaffold", "softmax", "digits", **settings | {"cohort": without})
        assert all(torch.equal(v, plain.parameters[k]) for k, v in lossy.parameters.items())
        assert [row["participants"] for row in lossy.rows] == [2, 2, 3]

    def test_in_a_later_phase(self, watched: Any) -> None:
        """Its answer of the first phase counts; of the round it keeps nothing."""
        run, transport = watched(
            "mime", "softmax", "digits", answers=lambda o: [not o.phase or i != o.ids[0] for i in o.ids], **SETTINGS
        )
        assert [row["participants"] for row in run.rows] == [3, 3, 3]
        assert all(np.isfinite(row["train_loss"]) for row in run.rows)
        assert [len(order.ids) for order in transport.orders] == [4] * 6

    def test_nobody_answers(self, watched: Any) -> None:
        message = r"round 1: fewer clients answered than min_answers=1, in 3.attempts"
        with pytest.raises(TooFewAnswersError, match=message):
            watched("fedavg", "softmax", "digits", answers=lambda order: [False] * len(order.ids), **SETTINGS)


def test_who_diverges_is_told_without_training_again(watched: Any) -> None:
    data = [(torch.full((4, 2), 1e30 if i == 2 else 1.0), torch.zeros(4, dtype=torch.long)) for i in range(4)]
    with pytest.raises(ud.DivergenceError) as told:
        watched("fedavg", nn.Linear(2, 2), data, **SETTINGS | {"lr": 1e10, "cohort": 1.0})
    assert told.value.clients == [2]


class Drafts:
    """Two clients with a state, asked by hand."""

    def __init__(self) -> None:
        run = ud.simulate("scaffold", "softmax", "digits", **SETTINGS | {"rounds": 1})
        half = torch.full((2,), 0.5)
        cohort = Cohort(torch.arange(2), half, 2 * half, population=40, round=1)
        self.mail = run.experiment.method.phases[0].ask(run.memory.server, cohort)
        self.site = site(run.experiment)

    def ask(self, round: int, heard: list[int]) -> Tensor:
        """What the two clients remember after they have answered, before the server has heard it."""
        self.site.answer(_order(round, heard), self.mail)
        return self.remembered(round + 1, heard)

    def remembered(self, round: int, heard: list[int]) -> Tensor:
        states = self.site.remembered(_order(round, heard), None)
        return torch.cat([leaf.flatten(1) for leaf in tree.leaves(states)], dim=1)


def _order(round: int, heard: list[int]) -> Order:
    return Order(
        round=round,
        phase=0,
        seed=0,
        lr=0.1,
        participation=0.05,
        ids=np.arange(2),
        shares=torch.ones(2),
        heard=np.array(heard),
    )


class TestDrafts:
    @pytest.fixture
    def drafts(self) -> Drafts:
        return Drafts()

    def test_become_kept_when_the_server_has_heard(self, drafts: Drafts) -> None:
        zero = drafts.ask(1, [0, 0])  # not heard yet
        assert not zero.any()
        first = drafts.remembered(2, [1, 1])
        assert first.any(1).all()
        drafts.ask(2, [1, 1])
        assert torch.equal(drafts.remembered(3, [1, 1]), first)

    def test_a_lost_answer_changes_nothing(self, drafts: Drafts) -> None:
        drafts.ask(1, [0, 0])
        assert drafts.remembered(2, [1, 0])[0].any()
        drafts.ask(2, [1, 0])
        assert not drafts.remembered(3, [1, 0])[1].any()

    def test_the_same_order_again_is_answered_alike(self, drafts: Drafts) -> None:
        drafts.ask(1, [0, 0])
        drafts.ask(1, [0, 0])
        once = drafts.remembered(2, [1, 1])
        again = Drafts()
        again.ask(1, [0, 0])
        assert torch.equal(again.remembered(2, [1, 1]), once)

    def test_a_state_that_is_not_the_one_the_server_means(self, drafts: Drafts) -> None:
        with pytest.raises(LostStatesError, match="client 0: the server has kept its answer of round 3, but what it"):
            drafts.ask(4, [3, 0])
        drafts.ask(1, [0, 0])
        drafts.ask(2, [1, 1])
        with pytest.raises(LostStatesError, match="of round 1"):
            drafts.ask(3, [0, 0])


def test_an_unknown_place() -> None:
    with pytest.raises(ValueError, match="place must be one of 'local'"):
        ud.simulate("fedavg", "softmax", "digits", place="moon", **SETTINGS)
