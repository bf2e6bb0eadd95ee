"""Federations on Flower's own messages, in one process: the numbers are those of a simulation."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

import undrift as ud
from federations import (
    BY_ALGORITHM,
    CLIENTS,
    MIME,
    SCAFFOLD,
    TEST,
    Federation,
    assert_same,
    draw,
    federation,
    options_of,
    simulated,
    training_samples,
)
from laws import SHORT, Law
from undrift.algorithms import FSVRG, FedHBM
from undrift.cli import app as cli
from undrift.flower import Samples, client_app
from undrift.flower.messages import CENSUS, EXCHANGE
from undrift.simulation import fit
from undrift.storage import client_disk
from undrift.transport import TooFewAnswersError

pytestmark = pytest.mark.usefixtures("networks_are_tried_once", "no_pauses")
WAIT = 900  # seconds for nodes that come back at once; only a test that hangs waits so long


@pytest.mark.parametrize("name", sorted(BY_ALGORITHM))
def test_numbers_are_those_of_a_simulation(name: str, tmp_path: Path) -> None:
    law = BY_ALGORITHM[name]
    rounds = 3 if "fsvrg" in name else 2  # they send more models from round 3 on
    app = federation(law, tmp_path, rounds=rounds)
    run, alike = app.serve(), simulated(law, rounds=rounds)
    several = ("bytes_down",) if name in ("mafsvrg", "gafsvrg") else ()  # clients are sent again what they forgot
    assert_same(run, alike, but=several)
    assert run.history["bytes_down"].sum() == app.grid.tensors["mail"]
    assert run.history["bytes_up"].sum() == app.grid.tensors["reply"]
    assert not several or run.history["bytes_down"].gt(alike.history["bytes_down"]).all()


def test_a_name_with_a_slash_and_bytes_of_the_history(tmp_path: Path) -> None:
    model = nn.Sequential(OrderedDict({"a/b": nn.Linear(6, 4), "~": nn.Tanh(), "c": nn.Linear(4, 3)})).double()
    options = {k: v for k, v in SHORT.items() if k != "engine"}
    run = Federation(tmp_path, FedHBM(), options, model=model).serve()
    assert_same(run, ud.simulate(FedHBM(), model, CLIENTS, TEST, **SHORT | {"engine": "sequential"}))


class Killed(BaseException):
    """Instead of a signal."""


@pytest.mark.parametrize(("law", "phases"), [(SCAFFOLD, 1), (MIME, 2)])
def test_a_server_that_was_killed_goes_on(law: Law, phases: int, tmp_path: Path) -> None:
    """At any message: clients may have answered a round that the server has not counted."""
    left, attempts = 0, 0

    def fate(kind: str, client: int, count: int) -> None:
        nonlocal left
        left -= kind == EXCHANGE
        if left < 0:
            raise Killed

    app = federation(law, tmp_path, fate)
    while True:
        attempts += 1
        left = 3 * phases - 1 + attempts % 3  # messages: a round, one more, one less
        try:
            run = app.serve()
            break
        except Killed:
            assert attempts < 20
    assert attempts > 2
    assert_same(run, simulated(law))
    assert len(json.loads((tmp_path / "run" / "config.json").read_text())["data"]["clients"]) == len(CLIENTS)


def test_a_finished_run_stays_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = federation(SCAFFOLD, tmp_path)
    first = app.serve()
    asked = len(app.grid.messages)
    caplog.set_level("INFO")
    assert_same(app.serve(), first)
    assert len(app.grid.messages) == asked + len(CLIENTS)  # the census
    assert "has all its 3 rounds" in caplog.text
    assert_same(app.serve(**{"run.rounds": 4}), simulated(SCAFFOLD, rounds=4))


def test_the_run_directory_is_that_of_a_simulation(tmp_path: Path) -> None:
    run = federation(SCAFFOLD, tmp_path).serve()
    page = tmp_path / "report.html"
    assert CliRunner().invoke(cli, ["report", str(tmp_path / "run"), "-o", str(page)]).exit_code == 0
    assert "SCAFFOLD" in page.read_text("utf-8")
    file = tmp_path / "model.safetensors"
    assert CliRunner().invoke(cli, ["export", str(tmp_path / "run"), str(file)]).exit_code == 0
    exported = load_file(file)
    assert all(torch.equal(exported[name], value) for name, value in run.parameters.items())
    with pytest.raises(ValueError, match="data given as an object"):
        ud.resume(tmp_path / "run", 5, model=SCAFFOLD.model())


def with_arrays(reply: Message, dtype: str = "", stype: str = "") -> Message:
    """A reply whose arrays say something else of themselves."""
    record = reply.content.array_records["reply"]
    arrays = {name: Array(dtype or a.dtype, a.shape, stype or a.stype, a.data) for name, a in record.items()}
    reply.content["reply"] = ArrayRecord(arrays)
    return reply


def without(reply: Message, name: str) -> Message:
    del reply.content[name]
    return reply


def with_more(reply: Message) -> Message:
    record = reply.content.array_records["reply"]
    record["more"] = next(iter(record.values()))
    return reply


class TestMessagesGoWrong:
    def test_a_client_that_does_not_answer_is_left_out_and_comes_back(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It continues from the last round that the server has heard it in, as if it had not been in the cohort."""
        cohorts = [draw(round).tolist() for round in (1, 2, 3)]
        lost = next(client for client in range(len(CLIENTS)) if sum(client in cohort for cohort in cohorts) > 1)

        def fate(kind: str, client: int, count: int) -> str | None:
            return "lost" if kind == EXCHANGE and client == lost and count == 0 else None

        app = federation(SCAFFOLD, tmp_path, fate)
        app.config["federation.deadline"] = 0.05
        run = app.serve()
        missed = next(number for number, cohort in enumerate(cohorts) if lost in cohort)
        cohorts[missed].remove(lost)
        assert_same(run, simulated(SCAFFOLD, cohort=cohorts), but=("bytes_down",))  # it was sent in vain
        assert f"round {missed + 1}, left out: client {lost}: no answer within 0.05 s" in caplog.text
        assert run.history["late"].tolist() == [float(number == missed) for number in range(3)]

    @pytest.mark.parametrize(
        ("change", "line"),
        [
            (with_more, "its reply: 'more' is not expected"),
            (lambda reply: with_arrays(reply, dtype="float32"), "is 'float32' (8, 6), expected 'float64' (8, 6)"),
            (lambda reply: with_arrays(reply, stype="numpy.ndarray"), "expected"),
            (lambda reply: without(reply, "reply"), "its reply is missing"),
            (lambda reply: without(reply, "report"), "its report is missing"),
            ("error", "the node is gone (Flower's code 3)"),
        ],
    )
    def test_a_wrong_answer_is_named_in_one_line(
        self, change: Any, line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        wrong = int(draw(1)[0])

        def fate(kind: str, client: int, count: int) -> Any:
            return change if kind == EXCHANGE and client == wrong and count == 0 else None

        run = federation(BY_ALGORITHM["fedavg"], tmp_path, fate, rounds=1).serve()
        rest = [draw(1)[1:].tolist()]
        assert_same(run, simulated(BY_ALGORITHM["fedavg"], rounds=1, cohort=rest), but=("bytes_down",))
        said = [text for text in caplog.messages if text.startswith(f"round 1, left out: client {wrong}")]
        assert len(said) == 1
        assert line in said[0]
        column = "unanswered" if change == "error" else "malformed"
        assert run.history[["asked", "participants", column]].to_numpy().tolist() == [[3, 2, 1]]

    def test_a_second_answer_is_ignored(self, tmp_path: Path) -> None:
        app = federation(SCAFFOLD, tmp_path)
        app.grid.twice = True
        run = app.serve()
        assert_same(run, simulated(SCAFFOLD))
        assert run.history["repeated"].max() > 0

    def test_a_round_that_nobody_answers_is_repeated_and_then_the_run_stops(self, tmp_path: Path) -> None:
        def fate(kind: str, client: int, count: int) -> str | None:
            return "error" if kind == EXCHANGE and app.grid.exchanges > 3 else None

        app = federation(SCAFFOLD, tmp_path)
        app.grid.fate = fate
        with pytest.raises(TooFewAnswersError, match="round 2: fewer clients answered than min_answers=1"):
            app.serve()
        app.grid.fate = lambda kind, client, count: None
        assert_same(app.serve(), simulated(SCAFFOLD))


def test_a_round_waits_until_enough_nodes_are_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As after SuperNodes were killed: a round that needs all clients is the one it would have been."""
    caplog.set_level("INFO")
    app = federation(SCAFFOLD, tmp_path, cohort=None, min_answers=len(CLIENTS), attempts=2)
    everybody, looks = set(app.grid.online), 0

    def fate(kind: str, client: int, count: int) -> str | None:
        if (kind, client, count) == (EXCHANGE, 3, 1):  # its second round
            app.grid.online = everybody - {1001, 1003}
            return "error"
        return None

    def look() -> list[int]:
        nonlocal looks
        looks += app.grid.online != everybody
        if looks == 6:
            app.grid.online = everybody
        return sorted(app.grid.online)

    app.grid.fate, app.grid.get_node_ids = fate, look  # type: ignore[method-assign]
    run = app.serve(**{"federation.wait": WAIT})
    assert_same(run, simulated(SCAFFOLD, cohort=None), but=("bytes_up", "bytes_down"))
    assert run.history["attempts"].tolist() == [1, 2, *[1] * (len(run.history) - 2)]
    assert f"waiting up to {WAIT} s for client 1, client 3" in caplog.text


@pytest.mark.parametrize("name", ["../../elsewhere", "/elsewhere", "", "0123456789abcdeF"])
def test_a_server_cannot_choose_folders_of_a_client(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("undrift.flower.server.new_name", lambda: name)
    with pytest.raises(TooFewAnswersError):
        federation(SCAFFOLD, tmp_path).serve()
    assert f"the server's order: {name!r} is no name of a run" in caplog.text


class TestCensus:
    def test_a_client_that_does_not_fit_is_named_and_left_out(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = federation(SCAFFOLD, tmp_path, cohort=None, rounds=1)
        other = client_app(lambda context: Samples(*CLIENTS[4], classes=4), **app.objects)
        app.grid.apps[1004] = other
        run = app.serve()
        assert_same(run, ud.simulate(SCAFFOLD.algorithm, SCAFFOLD.model(), CLIENTS[:4], TEST, **options_of(rounds=1)))
        assert "client 4 does not fit the server and is left out: classes: 4 here, 3 at the server" in caplog.text
        assert "client 4 (node 1004) is left out: classes: 4 there, 3 here" in caplog.text
        assert "1 of 5 clients have not come or do not fit, and are left out: 4" in caplog.text

    @pytest.mark.parametrize(
        ("objects", "word"),
        [
            ({"model": nn.Linear(6, 3).double()}, "model: "),
            ({"algorithm": FedHBM(beta=0.5)}, "algorithm: "),
        ],
    )
    def test_nobody_fits(
        self, objects: dict[str, Any], word: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = federation(SCAFFOLD, tmp_path)
        app.grid.app = client_app(training_samples, **app.objects | objects)
        with pytest.raises(ValueError, match="none of the 5 clients has come within 0 s and fits"):
            app.serve()
        assert f"client 0 does not fit the server and is left out: {word}" in caplog.text
        assert not (tmp_path / "run").exists()

    def test_two_nodes_of_one_number(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        app = federation(SCAFFOLD, tmp_path, rounds=1)
        app.grid.contexts[1004].node_config["partition-id"] = 3
        app.serve()
        assert "client 3 (node 1004) is left out: node 1003 is client 3 already" in caplog.text

    def test_a_node_that_comes_back_with_another_id(self, tmp_path: Path) -> None:
        """As SuperNodes without keys do."""
        app = federation(SCAFFOLD, tmp_path)

        def fate(kind: str, client: int, count: int) -> None:
            if kind == EXCHANGE and app.grid.online == set(app.grid.contexts):
                app.grid.rename(1003, 2003)

        app.grid.fate = fate
        assert_same(app.serve(), simulated(SCAFFOLD))

    def test_a_node_whose_answer_was_lost_is_asked_again(self, tmp_path: Path) -> None:
        """As that of a SuperNode that was killed and started again, with the same key and id."""
        app = federation(SCAFFOLD, tmp_path)
        app.grid.fate = lambda kind, client, count: "error" if (kind, client, count) == (CENSUS, 2, 0) else None
        assert_same(app.serve(**{"federation.wait": WAIT}), simulated(SCAFFOLD))

    def test_other_samples_than_when_the_run_began(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        app = federation(SCAFFOLD, tmp_path, rounds=1)
        app.serve()
        changed = client_app(lambda context: Samples(*CLIENTS[0], classes=3), **app.objects)
        app.grid.apps[1003] = changed
        app.serve(**{"run.rounds": 2, "run.cohort": 3})
        if 3 in draw(2):
            assert "client 3 is left out: it had 14 samples when the run began, and now 11" in caplog.text


def test_a_client_whose_disk_is_full_is_left_out_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(tensors: dict[str, Any], file: Path) -> None:
        if file.parent.name == "2" and list(file.parent.glob("000001-*")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_file(tensors, file)

    app = federation(SCAFFOLD, tmp_path, cohort=None, rounds=2)
    with monkeypatch.context() as full:
        full.setattr(client_disk, "save_file", write)
        app.serve()
    run = app.serve(**{"run.rounds": 3})
    everybody = list(range(len(CLIENTS)))
    assert_same(run, simulated(SCAFFOLD, cohort=[everybody, [0, 1, 3, 4], everybody], rounds=3), but=("bytes_down",))
    assert run.history["participants"].tolist() == [5, 4, 5]
    line = rf"round 2, left out: client 2: the client's state cannot be written to {tmp_path}/clients/\w+/2: "
    assert re.search(f"{line}.*No space left on device", caplog.text)


def test_clients_say_what_they_keep_of_earlier_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    app = federation(SCAFFOLD, tmp_path, cohort=1, rounds=1)
    app.serve()
    assert "earlier run" not in caplog.text
    (first,) = (tmp_path / "clients").iterdir()
    (tmp_path / "clients" / "notes").mkdir()  # not of a run
    os.utime(next(first.glob("*/memory.json")), (0, 12 * 3600))
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    app.serve(**{"federation.out": str(tmp_path / "second")})
    size = f"{sum(map(len, before.values())) / 1000:.3g} kB"
    line = rf"clients holds {size} of 1.earlier run, the oldest \({first.name}\) last used on 01 January 1970; delete"
    assert re.search(line, caplog.text)
    assert f"in the folder {first.name}, as long as it may be continued" in caplog.text
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before  # none is deleted


def test_a_client_whose_memory_is_gone_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = federation(SCAFFOLD, tmp_path, rounds=1, cohort=None)
    app.serve()
    shutil.rmtree(next((tmp_path / "clients").iterdir()) / "2")
    app.serve(**{"run.rounds": 2})
    line = "client 2: the server has kept its answer of round 1, but what it remembers is of no round"
    assert f"round 2, left out: {line}" in caplog.text


def test_clients_try_their_model_in_the_census_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server found of its copy is told with every order: a trial takes longer than training a small model."""
    tried: list[str] = []

    def watched(learner: Any, *given: Any) -> Any:
        tried.append("trial")
        return before(learner, *given)

    before = fit._try
    monkeypatch.setattr(fit, "_try", watched)
    app = federation(BY_ALGORITHM["fedbn"], tmp_path, lambda kind, client, count: tried.append(kind), rounds=1)
    app.serve()
    begun = tried.index(EXCHANGE)
    assert tried[:begun].count("trial") == len(CLIENTS) + 2  # the server prepares before and after the census
    assert tried[begun:].count("trial") == 0


def test_samples_that_no_longer_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They did in the census."""
    x, y = CLIENTS[0]
    given = iter([Samples(x, y, classes=3), Samples(x, y + 3, classes=3)])
    app = federation(BY_ALGORITHM["fedavg"], tmp_path, rounds=1, cohort=None)
    app.grid.apps[1000] = client_app(lambda context: next(given), **app.objects)
    assert app.serve().history["participants"].tolist() == [4]
    assert "round 1, left out: client 0: labels must lie in 0..2" in caplog.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"local.lrr": 0.1}, "unknown key 'local.lrr'; did you mean 'local.lr'?"),
        ({"local.lr": "fast"}, "local.lr must be a number"),
        ({"federation.clints": 3}, "unknown key 'federation.clints'"),
        ({"federation.out": "runs"}, "federation.out must be an absolute path, got 'runs'"),
        ({"run.faults": "dropout=0.1"}, "is for simulations; a federation has its own"),
        ({"run.cohort": 9}, "cohort must lie between 1 and the federation's 5 clients, got 9"),
    ],
)
def test_wrong_settings_are_refused_before_anybody_is_asked(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    app = federation(SCAFFOLD, tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)):
        app.serve(**given)
    assert not app.grid.messages
    assert not (tmp_path / "run").exists()


def test_centralised_training_and_a_census_of_features_are_refused(tmp_path: Path) -> None:
    for algorithm, words in (("centralised", "in one place"), (FSVRG(feature_scaling="census"), "in one place")):
        app = Federation(tmp_path, algorithm, {"rounds": 1}, model=nn.Linear(6, 3).double())
        with pytest.raises(ValueError, match=words):
            app.serve()
