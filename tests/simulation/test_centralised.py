"""Training on the pooled data as a reference: what it computes, how long, and what is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pandas.testing import assert_frame_equal
from torch.nn import functional as F
from torch.testing import assert_close

import undrift as ud
from laws import classified, mlp
from undrift.data import FederatedData
from undrift.reporting.record import TIMES
from undrift.simulation.options import Options
from undrift.simulation.pooled import passes

DATA = classified((4, 3, 5))
X, Y = (torch.cat([client[part] for client in DATA]) for part in (0, 1))
SETTINGS: dict[str, Any] = {"rounds": 6, "lr": 0.1, "batch_size": 4}


def by_torch(epochs: int, momentum: float, cosine: bool) -> dict[str, torch.Tensor]:
    """The same as a plain loop over full batches."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs if cosine else 10**9)
    for _ in range(epochs):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
        schedule.step()
    return {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("engine", ["batched", "sequential"])
def test_momentum_is_kept_across_epochs(cosine: bool, engine: str) -> None:
    text = f"centralised(epochs=5, momentum=0.9, lr_decay={'cosine' if cosine else 1.0})"
    full: dict[str, Any] = {"lr": 0.1, "batch_size": None, "weight_decay": 0.01, "engine": engine}
    run = ud.simulate(text, mlp(), DATA, **full)
    assert_close(run.parameters, by_torch(5, 0.9, cosine), rtol=1e-10, atol=1e-12)
    assert len(run.history) == 5
    assert not run.history[["bytes_down", "bytes_up"]].any(axis=None)  # nothing travels


def test_an_epoch_is_in_batches() -> None:
    """Twelve samples in batches of four: three steps, of which the last ones differ with the seed."""
    one, other = (ud.simulate("centralised(epochs=1)", mlp(), DATA, batch_size=4, lr=0.1, seed=seed) for seed in (0, 1))
    full = ud.simulate("centralised(epochs=1)", mlp(), DATA, batch_size=12, lr=0.1)
    assert one.experiment.schedule.step_counts(one.experiment.data.sizes).tolist() == [3]
    assert not torch.equal(one.parameters["0.weight"], other.parameters["0.weight"])
    assert not torch.allclose(one.parameters["0.weight"], full.parameters["0.weight"])


def test_samples_that_clients_share_are_there_once() -> None:
    data = FederatedData(X, Y, [[3, 1, 2], [2, 5]])
    assert data.pooled().rows.tolist() == [1, 2, 3, 5]
    assert data.pooled().sizes.tolist() == [4]
    assert data.sizes.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rounds": 10, "cohort": None, "epochs": 2}, 20),
        ({"rounds": 10, "cohort": 1}, 10 / 3),
        ({"rounds": 10, "cohort": None, "steps": 2}, 10 * 2 * 11 / 12),  # of three samples no batch of four is made
        ({"rounds": 2, "cohort": [[0], [0, 2]]}, (4 + 4 + 5) / 12),
    ],
)
def test_the_budget_is_that_of_all_clients(options: dict[str, Any], expected: float) -> None:
    given = Options(batch_size=4, lr=0.1, eval_every=1, weight_decay=0.0, server_lr=1.0, **options)
    assert passes(given, FederatedData.from_clients(DATA)) == pytest.approx(expected)


class TestComparison:
    """It is trained with the same seeds, kept and continued with the others, and looked at apart from them."""

    def compared(self, out: Path | None = None, **settings: Any) -> ud.Comparison:
        given = {"seeds": 2, "centralised": True, "out": out} | SETTINGS | settings
        return ud.compare(["fedavg"], mlp(), DATA, (X, Y), **given)

    def test_its_runs_are_references(self, tmp_path: Path) -> None:
        comparison = self.compared(tmp_path, targets=["50%"])
        assert [(r.label, r.seed) for r in comparison.records] == [("FedAvg", 0), ("FedAvg", 1)]
        assert [(r.label, r.seed) for r in comparison.references] == [("Centralised", 0), ("Centralised", 1)]
        table = comparison.table()
        assert table["label"].tolist() == ["FedAvg", "Centralised"]
        assert table.attrs["targets"] == {"50%": pytest.approx(0.5 * table["accuracy"][1])}
        again = ud.Comparison.from_directories([tmp_path], targets=["50%"])
        assert_frame_equal(again.table(), table)

    def test_it_is_continued_to_the_bit(self, tmp_path: Path) -> None:
        settings: dict[str, Any] = {"momentum": 0.9}
        self.compared(tmp_path, rounds=4, **settings)
        longer, whole = self.compared(tmp_path, **settings).curves(), self.compared(**settings).curves()
        assert_frame_equal(longer.drop(columns=TIMES), whole.drop(columns=TIMES))
        run = ud.resume(tmp_path / "centralised" / "seed-1", model=mlp(), data=DATA, test=(X, Y))
        assert run.rounds == 6

    def test_the_others_are_what_they_were(self) -> None:
        alone = self.compared(centralised=False).curves()
        together = self.compared().curves()
        assert_frame_equal(together[together["label"] == "FedAvg"].drop(columns=TIMES), alone.drop(columns=TIMES))

    def test_the_page_has_a_line_and_a_row(self, tmp_path: Path) -> None:
        page = self.compared().report(tmp_path / "report.html").read_text("utf-8")
        assert '<span class="target end">Centralised, ' in page
        assert page.count("<span>Centralised</span>") == 1
        assert "<h1>own data: FedAvg</h1>" in page

    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"centralised": "fedavg"}, ValueError, r"is written 'centralised\(epochs=150"),
            ({"centralised": 3}, TypeError, "centralised must be True or written"),
            ({"centralised": "centralised(epochs=0)"}, ValueError, "epochs must be at least 1, got 0"),
            ({"centralised": False, "targets": ["90%"]}, ValueError, "compare with centralised=True"),
            ({"targets": [1.5]}, ValueError, r"between 0 and 1, got 1\.5"),
            ({"last_k": 0}, ValueError, "last_k must be at least 1, got 0"),
        ],
    )
    def test_what_is_refused(self, settings: dict[str, Any], error: type[Exception], message: str) -> None:
        trained: list[Any] = []
        with pytest.raises(error, match=message):
            self.compared(callbacks=[lambda row, run: trained.append(row)], **settings)
        assert not trained

    def test_its_label_is_taken(self) -> None:
        with pytest.raises(ValueError, match="'Centralised', which is the label of another"):
            ud.compare({"Centralised": "fedavg"}, mlp(), DATA, centralised=True, **SETTINGS)

    def test_targets_need_a_test_set(self) -> None:
        with pytest.raises(ValueError, match="need a test set"):
            ud.compare(["fedavg"], mlp(), DATA, targets=0.5, **SETTINGS)


def test_it_is_found_but_not_listed() -> None:
    assert ud.algorithms.find("centralised") is ud.algorithms.Centralised
    assert "centralised" not in ud.algorithms.available()
    with pytest.raises(ValueError, match="pgvc has no meaning"):
        ud.algorithms.Centralised(pgvc=ud.PGVC())


class TestCosine:
    def test_rates(self) -> None:
        rates = [Options(rounds=4, lr=1.0, lr_decay="cosine").rate(round) for round in (1, 2, 3, 4)]
        assert rates == pytest.approx((1 + np.cos(np.pi * np.arange(4) / 4)) / 2)

    def test_the_number_of_rounds_is_part_of_it(self, tmp_path: Path) -> None:
        given: dict[str, Any] = {"model": mlp(), "data": DATA}
        ud.simulate("fedavg", lr_decay="cosine", out=tmp_path, **SETTINGS, **given)
        with pytest.raises(ValueError, match="begun for 6 rounds, over which its rate decays, not for 8"):
            ud.resume(tmp_path, rounds=8, **given)

    def test_another_word(self) -> None:
        with pytest.raises(ValueError, match="lr_decay must be a number or \"cosine\", got 'linear'"):
            Options(lr_decay="linear")
