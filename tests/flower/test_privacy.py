"""Differential privacy of real clients: secret noise and cohorts, and nothing but clipped updates leaves a client."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from torch import Tensor
from torch.testing import assert_close
from typer.testing import CliRunner

import undrift as ud
from federations import BY_ALGORITHM, CLIENTS, HELD_OUT, SCAFFOLD, Federation, federation, simulated
from undrift.cli import app as cli
from undrift.flower import Samples
from undrift.flower.messages import CENSUS, EXCHANGE
from undrift.flower.server import serve
from undrift.methods.private import Privacy
from undrift.simulation import cohort

pytestmark = pytest.mark.usefixtures("networks_are_tried_once", "no_pauses")

FEDAVG = BY_ALGORITHM["fedavg"]
PRIVATE = "gaussian(clip=0.05, noise=1)"
ALMOST_NO_NOISE = "gaussian(clip=0.05, noise=1e-9)"


def private(home: Path, fate: Any = None, **options: Any) -> Federation:
    return federation(FEDAVG, home, fate, **{"privacy": PRIVATE, "rounds": 2, "cohort": None} | options)


def changed(reply: Message, value: float) -> Message:
    """A reply with one number instead of all of its own."""
    record = reply.content.array_records["reply"]
    arrays = {}
    for name, array in record.items():
        numbers = np.full(array.shape, value, np.dtype(array.dtype))
        arrays[name] = Array(array.dtype, array.shape, array.stype, numbers.tobytes())
    reply.content["reply"] = ArrayRecord(arrays)
    return reply


def test_what_leaves_a_client_and_what_the_history_says(tmp_path: Path) -> None:
    replies: list[Message] = []

    def fate(kind: str, client: int, count: int) -> Any:
        return seen if kind == EXCHANGE else None

    def seen(reply: Message) -> Message:
        replies.append(reply)
        return reply

    app = private(tmp_path, fate)
    run = app.serve()
    assert {kind for kind, _ in app.grid.messages} == {CENSUS, EXCHANGE}
    assert len(replies) == 2 * len(CLIENTS)
    for reply in replies:
        assert set(reply.content) == {"reply", "report"}
        assert not reply.content.array_records["report"]
        sent = reply.content.array_records["reply"]
        assert all(name.startswith("update/") for name in sent)
        numbers = np.concatenate([np.frombuffer(array.data, array.dtype) for array in sent.values()])
        assert np.linalg.norm(numbers) <= 0.05 * (1 + 1e-9)
    alike = simulated(FEDAVG, privacy=PRIVATE, rounds=2, cohort=None).history
    assert run.history[["epsilon", "delta"]].equals(alike[["epsilon", "delta"]])
    assert run.history["train_loss"].isna().all()
    assert run.history[["bytes_up", "bytes_down"]].equals(alike[["bytes_up", "bytes_down"]])


def test_the_numbers_are_those_of_a_simulation_but_for_the_noise(tmp_path: Path) -> None:
    run = private(tmp_path, privacy=ALMOST_NO_NOISE).serve()
    alike = simulated(FEDAVG, privacy=ALMOST_NO_NOISE, rounds=2, cohort=None)
    assert_close(run.parameters, alike.parameters, rtol=0, atol=1e-7)
    assert any(not torch.equal(run.parameters[name], value) for name, value in alike.parameters.items())


def test_a_resumed_run_draws_other_noise_for_the_same_clients(tmp_path: Path) -> None:
    app = private(tmp_path / "a", rounds=1, cohort=2)
    app.serve()
    shutil.copytree(tmp_path / "a" / "run", tmp_path / "copy")
    found = []
    for out in (tmp_path / "a" / "run", tmp_path / "copy"):
        before = len(app.grid.messages)
        run = app.serve(**{"run.rounds": 3, "federation.out": str(out)})
        found.append((run, [client for kind, client in app.grid.messages[before:] if kind == EXCHANGE]))
    assert found[0][1] == found[1][1]
    one, other = (run.parameters for run, _ in found)
    assert all(not torch.equal(one[name], other[name]) for name in one)


def test_cohorts_are_secret_and_stay_the_same_when_a_round_is_repeated(tmp_path: Path) -> None:
    run = private(tmp_path, rounds=1, cohort=2).serve()
    secret = (tmp_path / "run" / "cohorts.secret").read_text()
    assert run.experiment.cohort_secret == secret
    assert len(secret) == 32
    assert (tmp_path / "run" / "cohorts.secret").stat().st_mode & 0o077 == 0

    def drawn(secret: str, attempt: int = 1) -> list[list[int]]:
        experiment = replace(run.experiment, cohort_secret=secret)
        return [cohort.draw(experiment, round, attempt).tolist() for round in range(1, 40)]

    assert drawn("a") == drawn("a", attempt=2)
    assert drawn("a") != drawn("b")
    assert drawn("") != drawn("", attempt=2)
    assert np.bincount(np.array(drawn("a")).ravel(), minlength=5).min() > 4  # of 15.6


def test_nobody_is_left_out_because_of_numbers(tmp_path: Path) -> None:
    """An update that is not finite is zero, a long one is clipped: who takes part tells nothing of samples."""
    numbers = iter([torch.nan, torch.inf, 1e300, 1e6])

    def fate(kind: str, client: int, count: int) -> Any:
        return (lambda reply: changed(reply, next(numbers))) if kind == EXCHANGE and client else None

    run = private(tmp_path, fate, privacy=ALMOST_NO_NOISE, rounds=1).serve()
    assert run.history["participants"].tolist() == [5]
    assert run.history[["not_finite", "absurd_norm"]].to_numpy().sum() == 0
    alone = simulated(FEDAVG, privacy=ALMOST_NO_NOISE, rounds=1, cohort=[[0]])
    start = {name: value.detach() for name, value in FEDAVG.model().named_parameters()}

    def step(found: ud.Run) -> Tensor:
        return torch.cat([(found.parameters[name] - start[name]).flatten() for name in start])

    assert_close(
        5 * step(run) - step(alone), torch.full_like(step(run), 0.05 / len(step(run)) ** 0.5), rtol=1e-5, atol=1e-6
    )


def test_the_server_cuts_what_it_gets() -> None:
    sent = {"a": torch.tensor([[3.0, 0.0], [0.3, 0.0], [torch.nan, 1.0], [torch.inf, 1.0]]), "b": torch.zeros(4)}
    sent["b"][0] = 4.0
    clipped = Privacy(clip=1.0).clipped_by_server(sent)
    assert_close(clipped, {"a": torch.tensor([[0.6, 0], [0.3, 0], [0, 0], [0, 0]]), "b": torch.tensor([0.8, 0, 0, 0])})


def test_pages_and_tables_of_a_run_without_losses(tmp_path: Path) -> None:
    """Also without test samples: there is not one figure of the model."""
    app = private(tmp_path, rounds=2)
    serve(app.grid, app.config, Samples(HELD_OUT.x[:0], HELD_OUT.y[:0], classes=3), **app.objects)
    page = tmp_path / "report.html"
    found = CliRunner().invoke(cli, ["report", str(tmp_path / "run"), "-o", str(page)])
    assert found.exit_code == 0, found.output
    assert "ε" in found.output + page.read_text("utf-8")
    secret = (tmp_path / "run" / "cohorts.secret").read_text()
    assert secret not in found.output + page.read_text("utf-8")


def test_a_client_without_privacy_does_not_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = federation(FEDAVG, tmp_path, rounds=1)
    with pytest.raises(ValueError, match="none of the 5 clients has come within 0 s and fits"):
        app.serve(**{"server.privacy": PRIVATE})
    assert f"client 0 does not fit the server and is left out: privacy: None here, '{Privacy(0.05)}'" in caplog.text


@pytest.mark.parametrize(
    ("law", "options", "message"),
    [
        (SCAFFOLD, {}, "does not cover SCAFFOLD: clients also send"),
        (BY_ALGORITHM["fedbn"], {}, "does not cover what clients keep of the model"),
        (FEDAVG, {"weighting": "samples"}, "privacy needs equal weights"),
    ],
)
def test_what_is_not_covered_is_refused_before_round_1(
    law: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    app = federation(law, tmp_path, **{"privacy": PRIVATE, "cohort": None} | options)
    with pytest.raises(ValueError, match=message):
        app.serve()
    assert not (tmp_path / "run").exists()
    assert {kind for kind, _ in app.grid.messages} <= {CENSUS}
