"""Clients on Ray: the same numbers on any number of actors, whatever dies, and nothing left behind."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from undrift.core import sharing, tree
from undrift.protocol import Mail
from undrift.reporting.record import TIMES
from undrift.simulation.options import Options
from undrift.simulation.place import place_of
from undrift.storage import memory
from undrift.transport import Answers, ClientsLostError, Order

ray = pytest.importorskip("ray", reason="Ray is an extra")

SETTINGS: dict[str, Any] = {"rounds": 3, "cohort": 6, "lr": 0.1}


def same(a: ud.Run, b: ud.Run) -> bool:
    equal = all(torch.equal(value, b.parameters[name]) for name, value in a.parameters.items())
    return equal and a.history.drop(columns=TIMES).equals(b.history.drop(columns=TIMES))


def test_ctrl_c_saves_the_run_and_ends_ray(tmp_path: Path) -> None:
    def interrupt(row: dict[str, Any], run: ud.Run) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before, handler = psutil.Process().children(recursive=True), signal.getsignal(signal.SIGTERM)
    given = {**SETTINGS, "place": "ray", "actors": 1, "out": tmp_path / "run"}
    with pytest.raises(ud.Interrupted, match="interrupted after round 1; resume with: undrift resume"):
        ud.simulate("scaffold", "softmax", "digits", callbacks=[interrupt], **given)
    assert not ray.is_initialized()
    assert [p for p in psutil.Process().children(recursive=True) if p not in before and p.status() != "zombie"] == []
    assert signal.getsignal(signal.SIGTERM) is handler
    assert (tmp_path / "run" / "rounds.jsonl").read_text().count("\n") == 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray that is the caller's, and a session, so that runs share actors."""
    from undrift.simulation.on_ray.cluster import session

    handler = signal.getsignal(signal.SIGTERM)
    with tempfile.TemporaryDirectory(prefix="undrift-", ignore_cleanup_errors=True) as home:
        ray.init(
            address="local",
            num_cpus=3,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=home,
        )
        signal.signal(signal.SIGTERM, handler)
        with session(None):
            yield
        assert ray.is_initialized()  # not ours to end
        ray.shutdown()


def on_ray(*given: Any, actors: int = 2, **options: Any) -> ud.Run:
    return ud.simulate(*given, **SETTINGS | options | {"place": "ray", "actors": actors})


@pytest.mark.usefixtures("cluster")
class TestTheSameNumbers:
    @pytest.mark.parametrize(
        ("name", "engine", "actors"),
        [
            ("scaffold", "batched", (3, 2, 1)),
            ("scaffold", "sequential", (2,)),
            ("mime", "batched", (3,)),
        ],
    )
    def test_on_any_number_of_actors(self, name: str, engine: str, actors: tuple[int, ...]) -> None:
        local = ud.simulate(name, "softmax", "digits", engine=engine, **SETTINGS)
        assert all(same(on_ray(name, "softmax", "digits", engine=engine, actors=n), local) for n in actors)

    def test_of_what_clients_keep_and_of_diagnostics(self) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
        settings = SETTINGS | {
            "metrics": ["personal_accuracy", "fairness"],
            "diagnostics": ["client_distance", "gradient_dissimilarity"],
            "engine": "sequential",  # batched, last bits of batch normalisation depend on how many are computed at once
        }
        local = ud.simulate("fedbn", model, "digits", **settings)
        there = on_ray("fedbn", model, "digits", **settings)
        assert same(there, local)
        assert there.clients.equals(local.clients)

    def test_of_a_run_that_is_resumed(self, tmp_path: Path) -> None:
        whole = on_ray("scaffold", "softmax", "digits")
        on_ray("scaffold", "softmax", "digits", rounds=2, out=tmp_path / "run")
        again = ud.resume(tmp_path / "run", 3)
        assert same(again, whole)
        assert again.environment["actors"] == 2
        assert again.environment["actor_threads"] == 1
        with pytest.raises(ValueError, match="was begun with place='ray', not 'local'"):
            ud.simulate("scaffold", "softmax", "digits", out=tmp_path / "run", resume=True, **SETTINGS)

    def test_in_a_comparison(self) -> None:
        given: dict[str, Any] = {**SETTINGS, "rounds": 2}
        local = ud.compare(["fedavg", "scaffold"], "softmax", "digits", engine="sequential", **given)
        there = ud.compare(
            ["fedavg", "scaffold"], "softmax", "digits", engine="sequential", place="ray", actors=2, **given
        )
        for a, b in zip(local.records, there.records, strict=True):
            assert a.history.drop(columns=TIMES).equals(b.history.drop(columns=TIMES))

    @pytest.mark.long
    def test_in_a_tuning(self) -> None:
        given: dict[str, Any] = {"rounds": 2, "cohort": 6, "grid": {"lr": [0.1, 0.5]}, "engine": "sequential"}
        local = ud.tune(["scaffold"], "softmax", "digits", **given)
        there = ud.tune(["scaffold"], "softmax", "digits", place="ray", actors=2, **given)
        assert there.best() == local.best()
        assert there.table().equals(local.table())


class Fragile:
    """A loss during which a process dies, once for every file in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.driver = str(folder), os.getpid()

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        if os.getpid() != self.driver and (orders := os.listdir(self.folder)):
            os.unlink(os.path.join(self.folder, orders[0]))
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.cross_entropy(output, target, reduction="none")


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Those that runs open."""
    from undrift.simulation.on_ray.transport import RayTransport

    opened: list[Any] = []
    begin = RayTransport.__init__

    def noted(self: RayTransport, given: Any) -> None:
        opened.append(self)
        begin(self, given)

    monkeypatch.setattr(RayTransport, "__init__", noted)
    return opened


def kill(transport: Any, number: int) -> None:
    actor = transport._places[number].actor
    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)


@pytest.mark.usefixtures("cluster")
class TestAnActorThatIsKilled:
    def test_in_the_middle_of_a_round_twice(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        def order(row: dict[str, Any], run: ud.Run) -> None:
            if row["round"] <= 2:
                (tmp_path / str(row["round"])).touch()

        loss = Fragile(tmp_path)
        whole = ud.simulate("scaffold", "softmax", "digits", loss=loss, engine="sequential", **SETTINGS | {"rounds": 4})
        there = on_ray("scaffold", "softmax", "digits", loss=loss, engine="sequential", rounds=4, callbacks=[order])
        assert not list(tmp_path.iterdir())
        assert sum("another one takes its place" in line for line in caplog.messages) == 2
        assert same(there, whole)

    def test_together_with_all_others_and_again_while_it_starts(
        self, transports: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        from undrift.simulation.on_ray.transport import RayTransport

        restored, killed = RayTransport._restored, set[int]()

        def die(row: dict[str, Any], run: ud.Run) -> None:
            if row["round"] == 1:
                kill(transports[-1], 0)
                kill(transports[-1], 1)

        def dying(self: RayTransport, place: Any) -> Any:
            if not killed:
                killed.add(self._places.index(place))
                kill(self, *killed)
            return restored(self, place)

        monkeypatch.setattr(RayTransport, "_restored", dying)
        there = on_ray("scaffold", "softmax", "digits", callbacks=[die])
        assert sum("another one takes its place" in line for line in caplog.messages) == 3
        assert same(there, ud.simulate("scaffold", "softmax", "digits", **SETTINGS))

    @pytest.mark.long
    def test_between_two_phases(self, transports: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        from undrift.simulation.on_ray.transport import RayTransport

        exchange, orders = RayTransport.exchange, []

        def dying(self: RayTransport, order: Order, mail: Mail) -> Answers:
            orders.append((order.round, order.phase))
            if orders.count((2, 1)) == 1 and order.phase == 1:
                kill(self, 1)
            return exchange(self, order, mail)

        monkeypatch.setattr(RayTransport, "exchange", dying)
        there = on_ray("mime", "softmax", "digits")
        assert orders == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
        assert same(there, ud.simulate("mime", "softmax", "digits", **SETTINGS))

    @pytest.mark.long
    def test_after_states_of_many_rounds_were_stored_as_one(self, transports: list[Any]) -> None:
        def die(row: dict[str, Any], run: ud.Run) -> None:
            if row["round"] == 9:
                kill(transports[-1], 0)

        cohorts = [[0, 2, 4 + 2 * number] for number in range(10)]  # every round leaves a state that no later one has
        given = {**SETTINGS, "rounds": 10, "cohort": cohorts}
        whole = ud.simulate("scaffold", "softmax", "digits", **given)
        there = on_ray("scaffold", "softmax", "digits", callbacks=[die], **given)
        assert same(there, whole)

    def test_with_what_its_clients_remember(self, transports: list[Any], tmp_path: Path) -> None:
        from ray._private.internal_api import free

        def lose(row: dict[str, Any], run: ud.Run) -> None:
            run.save()
            free([past.stored for past in transports[-1]._places[0].past], local_only=False)
            kill(transports[-1], 0)

        large = nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))  # not sent inline
        told = "actor 0 died, and what its clients remember is lost.*resume from .*1 with: undrift resume"
        with pytest.raises(ClientsLostError, match=told):
            on_ray("scaffold", large, "digits", callbacks=[lose], out=tmp_path / "run")
        assert same(ud.resume(tmp_path / "run", model=large), ud.simulate("scaffold", large, "digits", **SETTINGS))


@pytest.mark.usefixtures("cluster")
class TestActors:
    def test_are_no_more_than_clients(self) -> None:
        data = [(torch.randn(4, 2), torch.zeros(4, dtype=torch.long)) for _ in range(2)]
        run = ud.simulate("fedavg", nn.Linear(2, 2), data, rounds=1, lr=0.1, place="ray", actors=3)
        assert run.environment["actors"] == 2

    def test_are_as_many_as_there_are_cores_for(self) -> None:
        assert place_of(ray_options := Options(place="ray", cohort=6)).completed(ray_options, 40).actors == 3

    def test_share_the_memory_of_their_machine(self, transports: list[Any]) -> None:
        def look(row: dict[str, Any], run: ud.Run) -> None:
            shares.extend(
                ray.get([place.actor.__ray_call__.remote(lambda _: sharing.processes("cpu")) for place in places()])
            )

        places: Callable[[], Any] = lambda: transports[-1]._places  # noqa: E731
        shares: list[int] = []
        on_ray("fedavg", "softmax", "digits", rounds=1, callbacks=[look])
        assert shares == [2, 2]

    def test_are_not_sent_what_cannot_be_pickled(self) -> None:
        lock = threading.Lock()

        def loss(output: Tensor, target: Tensor) -> Tensor:
            with lock:
                return nn.functional.cross_entropy(output, target, reduction="none")

        with pytest.raises(ValueError, match="loss cannot be sent to Ray's actors: cannot pickle"):
            on_ray("fedavg", "softmax", "digits", loss=loss)

    def test_say_what_is_wrong_with_users_code(self) -> None:
        driver = os.getpid()

        def loss(output: Tensor, target: Tensor) -> Tensor:
            if os.getpid() != driver:
                raise ZeroDivisionError("no such loss")
            return nn.functional.cross_entropy(output, target, reduction="none")

        with pytest.raises(Exception, match="no such loss"):
            on_ray("fedavg", "softmax", "digits", loss=loss)


@pytest.mark.usefixtures("cluster")
class TestShares:
    @pytest.mark.parametrize(
        ("actors", "threads", "expected"),
        [(2, 1, (1, 1)), (3, 1, (1, 0.5)), (4, 2, (2, 0.5)), (8, 2, (1, 0.25)), (6, 1, (1, 0.3333))],
    )
    def test_of_cores_and_gpus(
        self, actors: int, threads: int, expected: tuple[float, float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from undrift.simulation.on_ray.cluster import share

        monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 2.0})
        assert share(actors, threads, on_gpu=True) == expected
        assert share(actors, threads, on_gpu=False) == (expected[0], 0)

    def test_of_no_gpu(self) -> None:
        from undrift.simulation.on_ray.cluster import share

        with pytest.raises(ValueError, match="Ray has no GPU"):
            share(1, 1, on_gpu=True)

    def test_of_a_gpu_are_asked_of_ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from undrift.simulation.on_ray import cluster

        asked: dict[str, Any] = {}
        monkeypatch.setattr(ray, "remote", lambda **options: asked.update(options) or (lambda kind: kind))
        cluster.take(type("Kind", (), {"remote": staticmethod(lambda: None)}), cluster.Share(1, 0.25), 1)
        assert asked == {"max_restarts": 0, "max_task_retries": 0, "num_cpus": 1, "num_gpus": 0.25}


def test_memory_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_machine", lambda: 1 << 30)
    monkeypatch.setattr(memory, "control_groups", lambda: [])
    with sharing.shared_by(4):
        assert memory.host_left() == 1 << 28
    assert memory.host_left() == 1 << 30


class TestBadInput:
    @pytest.mark.usefixtures("cluster")
    def test_another_address_than_the_one_in_use(self) -> None:
        with pytest.raises(ValueError, match=r"address='10\.0\.0\.1:1' was given, but this process uses the Ray at "):
            on_ray("fedavg", "softmax", "digits", address="10.0.0.1:1")

    @pytest.mark.parametrize("address", ["127.0.0.1:1", "nobody", ""])
    def test_an_address_where_no_ray_is(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from undrift.simulation.on_ray import cluster

        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setattr(ray, "shutdown", lambda: None)
        with pytest.raises(ValueError, match=f"no Ray is reached at address='{address}'"), cluster.session(address):
            pass

    @pytest.mark.parametrize("given", [{"actors": 2}, {"actor_threads": 2}, {"address": "auto"}])
    def test_options_of_ray_elsewhere(self, given: dict[str, Any]) -> None:
        (name,) = given
        with pytest.raises(ValueError, match=f"{name}=.* is for place='ray', got place='local'"):
            Options(**given)
        assert replace(Options(place="ray", **given), rounds=5).place == "ray"

    def test_an_engine_that_compiles_whole_rounds(self) -> None:
        with pytest.raises(ValueError, match="engine='compiled' compiles whole rounds, for place='local'"):
            Options(place="ray", engine="compiled")


def test_tensors_travel_as_they_are() -> None:
    from undrift.simulation.on_ray.wire import pack, unpack

    nest: dict[str, Any] = {
        "a": {"half": torch.randn(2, 3).bfloat16(), "none": torch.empty(0, 4), "scalar": torch.tensor(7)},
        "b": torch.tensor([True, False]),
        "c": torch.randn(3, 4).T,
        "empty": {},
    }
    back = unpack(pack(nest))
    assert back["empty"] == {}
    for here, there in zip(tree.leaves(nest), tree.leaves(back), strict=True):
        assert there.dtype is here.dtype
        assert torch.equal(here, there)
    assert np.shares_memory(pack(nest)["b"].content, nest["b"].numpy())
