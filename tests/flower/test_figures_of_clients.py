"""Drift diagnostics and metrics of clients on Flower: further exchanges, with the figures of a simulation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from federations import (
    BY_ALGORITHM,
    CLIENTS,
    MIME,
    SCAFFOLD,
    TEST,
    assert_same,
    draw,
    federation,
    options_of,
    simulated,
)
from laws import Law
from undrift.diagnostics import DIAGNOSTICS
from undrift.flower import Samples, client_app
from undrift.flower.messages import EXCHANGE, PERSONAL
from undrift.transport import Answers, admit

pytestmark = pytest.mark.usefixtures("networks_are_tried_once", "no_pauses")

FEDAVG, FEDBN = BY_ALGORITHM["fedavg"], BY_ALGORITHM["fedbn"]


class TestDiagnostics:
    @pytest.mark.parametrize("law", [SCAFFOLD, MIME], ids=["scaffold", "mime"])
    def test_all_of_them_are_those_of_a_simulation(self, law: Law, tmp_path: Path) -> None:
        asked = {"diagnostics": list(DIAGNOSTICS), "rounds": 2}
        run = federation(law, tmp_path, **asked).serve()
        assert_same(run, simulated(law, **asked))
        assert run.history["gradient_norm/mean"].notna().all()

    def test_a_server_that_was_stopped_goes_on(self, tmp_path: Path) -> None:
        asked: dict[str, Any] = {"diagnostics": ["previous_cosine", "gradient_noise"]}
        app = federation(SCAFFOLD, tmp_path, rounds=1, **asked)
        app.serve()
        assert_same(app.serve(**{"run.rounds": 3}), simulated(SCAFFOLD, **asked))

    def test_who_does_not_answer_the_probe_is_left_out_of_the_round(self, tmp_path: Path) -> None:
        away = int(draw(1)[1])
        asked: dict[str, Any] = {"diagnostics": ["gradient_noise"], "rounds": 1}
        app = federation(
            SCAFFOLD,
            tmp_path,
            lambda kind, client, count: "error" if client == away and kind == EXCHANGE else None,
            **asked,
        )
        run = app.serve()
        rest = [[client for client in draw(1).tolist() if client != away]]
        assert_same(run, simulated(SCAFFOLD, cohort=rest, **asked))
        assert run.history["unanswered"].tolist() == [1]


def split(own_tests: bool) -> ud.FederatedData:
    """The federation where all samples are in one place; clients have test samples of their own, or the server's."""
    data = ud.FederatedData.from_clients(CLIENTS, test=TEST)
    return data.hold_out(0.3) if own_tests else data


METRICS: Any = ["personal_accuracy", "fairness"]


class TestMetrics:
    @pytest.mark.parametrize("own_tests", [True, False])
    @pytest.mark.parametrize("law", [FEDAVG, FEDBN], ids=["fedavg", "fedbn"])
    def test_figures_are_those_of_a_simulation(self, law: Law, own_tests: bool, tmp_path: Path) -> None:
        """Clients that have not taken part use the server's model: it is sent to them."""
        data, asked = split(own_tests), {"metrics": METRICS, "rounds": 2, "cohort": 2}
        app = federation(law, tmp_path, **asked)
        app.grid.app = client_app(
            lambda context: Samples.of_client(data, int(context.node_config["partition-id"])), **app.objects
        )
        run = app.serve()
        alike = ud.simulate(law.algorithm, law.model(), data, TEST, **options_of(**dict(law.options) | asked))
        assert_same(run, alike)
        assert run.history["client_accuracy_gap"].gt(0).all()
        assert sum(kind == PERSONAL for kind, _ in app.grid.messages) == 2 * len(CLIENTS)
        assert run.clients["accuracy"].equals(alike.clients["accuracy"])
        assert "classes" not in run.clients

    def test_who_does_not_answer_does_not_count(self, tmp_path: Path) -> None:
        data = split(own_tests=True)
        fate = {(PERSONAL, 3): "error"}
        app = federation(
            FEDAVG, tmp_path, lambda kind, client, count: fate.get((kind, client)), metrics=METRICS, rounds=1
        )
        app.grid.app = client_app(
            lambda context: Samples.of_client(data, int(context.node_config["partition-id"])), **app.objects
        )
        run = app.serve()
        assert np.isnan(run.clients["accuracy"]).tolist() == [False, False, False, True, False]
        assert run.history["client_accuracy_worst"].notna().all()

    def test_clients_without_test_samples(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        app = federation(FEDAVG, tmp_path, metrics=METRICS, rounds=1)
        with pytest.raises(ValueError, match="needs clients with test samples of their own, and none has any"):
            app.serve()
        assert not (tmp_path / "run").exists()
        own = Samples(*CLIENTS[0], classes=3, test=(CLIENTS[0][0].numpy(), CLIENTS[0][1].tolist()))
        app.grid.apps[1000] = client_app(lambda context: own, **app.objects)
        run = app.serve()
        assert "4\N{NO-BREAK SPACE}clients without test samples count in no metric of clients" in caplog.text
        assert np.isfinite(run.clients["accuracy"]).tolist() == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ((torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)), "test x must be like x, torch.float32 [6], got"),
        ((torch.zeros(2, 6), torch.zeros(2)), "test y must be like y, torch.int64 [], got torch.float32 []"),
        ((torch.zeros(3, 6), torch.zeros(2, dtype=torch.int64)), "equally many rows, got 3 and 2"),
        (torch.zeros(3, 6), "test must be a pair (x, y), got"),
    ],
)
def test_test_samples_that_do_not_fit(test: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        Samples(torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64), test=test)


def test_an_answer_whose_report_is_not_finite_does_not_count() -> None:
    """It would otherwise end the run, which looks at losses to see that it diverges."""
    found = admit(Answers({"update": torch.ones(3, 2)}, {"loss": torch.tensor([1.0, torch.nan, 2.0])}), 3)
    assert found.present is not None
    assert found.present.tolist() == [0, 2]
    assert found.failures["not_finite"] == 1


@pytest.mark.parametrize("asked", [{"run.diagnostics": "client_distance"}, {"run.metrics": "fairness"}])
def test_a_private_run_has_none(asked: dict[str, Any], tmp_path: Path) -> None:
    app = federation(FEDAVG, tmp_path, privacy="gaussian(clip=1)")
    with pytest.raises(ValueError, match="clients send clipped updates only: leave out run"):
        app.serve(**asked)
    assert not app.grid.messages
