"""Whoever computes them, the numbers are the same; what cannot be batched falls back and says why."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import seeded
from undrift.data.batches import Schedule, Table, exact, plan
from undrift.engines import Batched, Sequential, Workload, choose
from undrift.engines.dry_run import full_passes

SIZES = (9, 4, 7, 10)  # with batches of four: short last batches and 3, 1, 2 and 3 steps an epoch
Data = list[tuple[Tensor, Tensor]]


def vectors(dtype: torch.dtype = torch.float64, sizes: tuple[int, ...] = SIZES) -> Data:
    generator = torch.Generator().manual_seed(3)
    return [
        (
            torch.randn(n, 5, dtype=torch.float64, generator=generator).to(dtype) + i / 4,
            torch.randint(0, 3, (n,), generator=generator),
        )
        for i, n in enumerate(sizes)
    ]


def images(side: int = 8) -> Data:
    generator = torch.Generator().manual_seed(4)
    return [
        (
            torch.randn(n, 2, side, side, dtype=torch.float64, generator=generator),
            torch.randint(0, 3, (n,), generator=generator),
        )
        for n in SIZES
    ]


def tokens() -> Data:
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randint(0, 7, (n, 6), generator=generator) for n in SIZES]
    return [(text, text.roll(-1, 1)) for text in drawn]


def simulate(model: nn.Module, data: Data, engine: str, algorithm: Any = "scaffold", **options: Any) -> ud.Run:
    settings: dict[str, Any] = {"rounds": 3, "cohort": 3, "epochs": 2, "batch_size": 4, "lr": 0.05} | options
    return ud.simulate(algorithm, model, data, engine=engine, **settings)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def cnn(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), *between, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


def dense(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), *between, nn.Linear(8, 3))


class Positions(nn.Module):
    """A score for every class at every position: targets [B, T], outputs [B, T, C]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.out = nn.Embedding(7, 4), nn.Linear(4, 6), nn.Linear(6, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(self.embedding(x))))


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x) + 0.1 * torch.rand_like(x)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Data]]] = {
    "mlp": (mlp, vectors),
    "cnn": (cnn, images),
    "batch norm": (lambda: dense(nn.BatchNorm1d(8)), vectors),
    "batch norm without memory": (lambda: dense(nn.BatchNorm1d(8, track_running_stats=False)), vectors),
    "batch norm without weights": (lambda: dense(nn.BatchNorm1d(8, affine=False)), vectors),
    "batch norm of images": (lambda: cnn(nn.BatchNorm2d(4)), images),
    "layer norm": (lambda: dense(nn.LayerNorm(8)), vectors),
    "group norm": (lambda: cnn(nn.GroupNorm(2, 4)), images),
    "instance norm": (lambda: cnn(nn.InstanceNorm2d(4, affine=True)), images),
    "dropout": (lambda: dense(nn.Dropout(0.4)), vectors),
    "dropout twice": (lambda: dense(nn.Dropout(0.4), nn.Tanh(), nn.Dropout(0.2)), vectors),
    "dropout of channels": (lambda: cnn(nn.Dropout2d(0.4)), images),
    "alpha dropout": (lambda: dense(nn.SELU(), nn.AlphaDropout(0.3)), vectors),
    "noise": (lambda: dense(Noise()), vectors),
    "tokens": (Positions, tokens),
}


@pytest.mark.parametrize("name", MODELS)
def test_engines_agree_on_models(name: str) -> None:
    build, data = MODELS[name]
    alone = simulate(seeded(build), data(), "sequential")
    together = simulate(seeded(build), data(), "batched")
    assert together.engine.startswith("batched")
    assert_close(together.parameters, alone.parameters, rtol=1e-10, atol=1e-10)
    assert_close(together.buffers, alone.buffers, rtol=1e-10, atol=1e-10)


def squared(output: Tensor, target: Tensor) -> Tensor:
    return (output - torch.eye(3, dtype=output.dtype)[target]).square().sum(1)


OPTIONS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam"},
    "rmsprop": {"optimizer": "rmsprop"},
    "momentum": {"momentum": 0.9},
    "nesterov": {"optimizer": "nesterov", "momentum": 0.9},
    "weight decay": {"weight_decay": 0.1},
    "full batch": {"batch_size": None},
    "batch beyond every client": {"batch_size": 100},
    "steps": {"epochs": 1, "steps": 5},
    "steps, full batch": {"epochs": 1, "steps": 5, "batch_size": None},
    "custom loss": {"loss": squared},
    "by samples": {"weighting": "samples"},
    "everybody": {"cohort": None},
    "one client": {"cohort": 1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_engines_agree_on_options(name: str) -> None:
    alone, together = (simulate(seeded(mlp), vectors(), e, **OPTIONS[name]) for e in ("sequential", "batched"))
    assert_close(together.parameters, alone.parameters, rtol=1e-10, atol=1e-10)
    columns = ["train_loss", "bytes_down", "bytes_up", "participants"]
    np.testing.assert_allclose(together.history[columns], alone.history[columns], rtol=1e-10)


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_the_chunk_does_not_matter(chunk: int) -> None:
    alone = simulate(seeded(mlp), vectors(), "sequential", cohort=None)
    together = simulate(seeded(mlp), vectors(), f"batched:{chunk}", cohort=None)
    assert_close(together.parameters, alone.parameters, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("between", [nn.Tanh, lambda: nn.BatchNorm1d(8)], ids=["plain", "batch norm"])
def test_full_passes_in_several_blocks(between: Any) -> None:
    """Mime looks at all samples of a client; those of large clients do not fit one block."""
    data = vectors(sizes=(1100, 300, 513, 512))
    options: dict[str, Any] = {"rounds": 2, "epochs": 1, "steps": 2, "cohort": None, "batch_size": 20}
    alone, together = (
        simulate(seeded(lambda: dense(between())), data, engine, "mime", **options)
        for engine in ("sequential", "batched")
    )
    assert_close(together.parameters, alone.parameters, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("room", [4 * 256, 1 << 20])
def test_larger_blocks_of_full_passes(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = vectors(sizes=(1100, 300, 513, 512))
    options: dict[str, Any] = {"rounds": 2, "epochs": 1, "steps": 2, "cohort": None, "batch_size": 20}
    choose = sys.modules["undrift.engines.choose"]  # of the package, the function of this name hides it
    runs = []
    for each in (0, room):
        monkeypatch.setattr(choose, "_plain_batched", lambda *_, each=each: Batched(4, full_pass_samples=each))
        runs.append(simulate(seeded(mlp), data, "batched", "mime", **options))
    assert_close(runs[0].parameters, runs[1].parameters, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("between", "larger"), [(nn.Tanh, True), (lambda: nn.BatchNorm1d(8), False)])
def test_blocks_of_full_passes_are_large_where_that_changes_nothing(between: Any, larger: bool) -> None:
    """Small ones cost more than they compute; batch statistics are those of a block."""
    engine = simulate(seeded(lambda: dense(between())), vectors(), "batched", "mime", rounds=1).experiment.engine
    assert isinstance(engine, Batched)
    assert (engine.full_pass_samples > 0) == larger


@pytest.mark.parametrize(
    ("room", "clients", "block"), [(0, 4, 64), (100, 4, 64), (1200, 4, 256), (1 << 20, 4, 1024), (90000, 90, 512)]
)
def test_blocks_of_full_passes_have_room(room: int, clients: int, block: int) -> None:
    assert Batched(clients, full_pass_samples=room)._full_pass_block(clients) == block


@pytest.mark.parametrize(
    ("flops", "passes", "launched", "steps"),
    [
        (1e5, 0, False, [40]),
        (1e8, 0, False, [2, 40]),
        (1e9, 0, False, [2, 4, 40]),
        (1e7, 0, False, [40]),
        (1e7, 20, False, [2, 40]),
        (1e7, 20, True, [40]),
    ],
)
def test_unequal_clients_of_a_gpu_wait_for_each_other_where_they_leave_it_idle(
    flops: float, passes: float, launched: bool, steps: list[int]
) -> None:
    sizes = np.array([10, 20, 40, 400]).repeat(4)[::-1]
    engine = Batched(
        100, replayed=True, full_pass_samples=1 << 20, batch=10, flops=flops, passes=passes, launched=launched
    )
    assert [shape.steps for shape in engine.arrange(Schedule(10, 1, None), sizes, (10, 400)).shapes] == steps


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("fedavg", [0, 0]),
        ("moon", [0, 0]),
        ("mime", [1, 1]),
        ("mimesvrg", [1, 1]),
        ("mafsvrg", [2, 8]),
        ("gafsvrg", [2, 9]),
    ],
)
def test_full_passes_are_counted(name: str, passes: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """In an early round and in a late one."""
    counted: list[float] = []

    def counting(engine: str, workload: Workload) -> Any:
        counted.extend(full_passes(Batched(5), workload, round) for round in (1, 1000))
        return choose(engine, workload)

    monkeypatch.setattr("undrift.simulation.prepare.choose", counting)
    simulate(seeded(mlp), vectors(sizes=(70, 9, 30, 8, 8)), "batched", name, rounds=1, batch_size=10)
    assert counted == passes


@pytest.mark.parametrize("augment", ["flip", "crop", "crop-flip"])
def test_engines_agree_on_augmentation(augment: str) -> None:
    alone, together = (simulate(seeded(cnn), images(), e, augment=augment) for e in ("sequential", "batched"))
    plain = simulate(seeded(cnn), images(), "sequential")
    assert_close(together.parameters, alone.parameters, rtol=1e-10, atol=1e-10)
    assert any(not torch.allclose(v, plain.parameters[k]) for k, v in alone.parameters.items())


def test_engines_agree_in_single_precision() -> None:
    runs = [simulate(seeded(mlp), vectors(), e, dtype="float32") for e in ("sequential", "batched")]
    for run in runs:
        assert all(v.dtype is torch.float32 for v in run.parameters.values())
    assert_close(runs[1].parameters, runs[0].parameters, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_repeated_run_is_the_same_run(engine: str) -> None:
    torch.manual_seed(1)
    first = simulate(seeded(MODELS["dropout"][0]), vectors(), engine)
    torch.manual_seed(2)  # the global generator must not matter
    second = simulate(seeded(MODELS["dropout"][0]), vectors(), engine)
    other = simulate(seeded(MODELS["dropout"][0]), vectors(), engine, seed=1)
    assert_close(second.parameters, first.parameters, rtol=0, atol=0)
    assert not torch.equal(other.parameters["0.weight"], first.parameters["0.weight"])


def test_dropout_drops_anew_in_every_step_round_and_client() -> None:
    """Seen through the model: a weight whose input is dropped does not move."""

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(64, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x.new_ones(len(x), 64), 0.5, self.training) * self.weight

    data = [(torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1))] * 2
    moved = {}
    for name, cohort, steps in (
        ("plain", [[0]], 1),
        ("client", [[1]], 1),
        ("step", [[0]], 2),
        ("round", [[0], [0]], 1),
    ):
        run = ud.simulate(
            "fedavg", Kept(), data, rounds=len(cohort), cohort=cohort, steps=steps, lr=1.0, loss=lambda o, t: o.sum(1)
        )
        moved[name] = run.parameters["weight"] != 0
    assert all(16 < int(m.sum()) < 60 for m in moved.values())
    for name in ("client", "step", "round"):
        assert not torch.equal(moved["plain"], moved[name])


class TestOneClientIsPlainTraining:
    """FedAvg with a single client is what a loop with `torch.optim` does on the same batches."""

    def loop(self, make: Callable[[Any], torch.optim.Optimizer], rounds: int, epochs: int) -> nn.Module:
        data = ud.FederatedData.from_clients(vectors()[:1])
        module = seeded(mlp)
        for number in range(1, rounds + 1):
            optimizer = make(module.parameters())  # fresh in every round
            schedule = Schedule(4, epochs, None)
            table, only = Table.of(data, torch.device("cpu")), torch.tensor([0])
            shape = exact(schedule, data.sizes)
            batches = plan(table, positions=only, clients=only, shape=shape, schedule=schedule, seed=0, round=number)
            for rows, count in zip(batches.rows[0], batches.counts[0].tolist(), strict=True):
                optimizer.zero_grad()
                F.cross_entropy(module(data.x[rows[:count]]), data.y[rows[:count]]).backward()
                optimizer.step()
        return module

    @pytest.mark.parametrize("engine", ["sequential", "batched"])
    @pytest.mark.parametrize(
        ("options", "make"),
        [
            ({"weight_decay": 0.1}, lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.1)),
            (
                {"momentum": 0.9, "weight_decay": 0.1},
                lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1),
            ),
            (
                {"momentum": 0.9, "optimizer": "nesterov"},
                lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
            ),
            ({"optimizer": "adam", "weight_decay": 0.1}, lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.1)),
            ({"optimizer": "rmsprop", "weight_decay": 0.1}, lambda p: torch.optim.RMSprop(p, 0.05, weight_decay=0.1)),
        ],
        ids=["sgd", "momentum", "nesterov", "adam", "rmsprop"],
    )
    def test_equals_a_loop(self, engine: str, options: dict[str, Any], make: Any) -> None:
        trained = self.loop(make, rounds=3, epochs=2).state_dict()
        run = simulate(seeded(mlp), vectors()[:1], engine, "fedavg", cohort=None, **options)
        assert_close(run.parameters, dict(trained), rtol=1e-12, atol=1e-12)

    def test_batch_statistics_too(self) -> None:
        data, module = vectors()[:1], seeded(lambda: dense(nn.BatchNorm1d(8)))
        run = simulate(module, data, "sequential", "fedavg", rounds=1, cohort=None, batch_size=None)
        optimizer = torch.optim.SGD(module.parameters(), 0.05)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(module(data[0][0]), data[0][1]).backward()
            optimizer.step()
        assert_close(run.parameters | run.buffers, dict(module.state_dict()), rtol=1e-12, atol=1e-12)


class Branching(nn.Module):
    """Control flow that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out if out.sum() > 0 else 2 * out


class Centred(nn.Module):
    """Mixes the samples of a batch: every one is compared with their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0))


class Recurrent(nn.Module):
    kind: type[nn.LSTM] | type[nn.GRU] = nn.LSTM

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layers, self.out = nn.Embedding(7, 4), self.kind(4, 5, batch_first=True), nn.Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.embedding(x))[0])


class Gated(Recurrent):
    kind = nn.GRU


class Started(Recurrent):
    """The LSTM's first state is not zero."""

    def forward(self, x: Tensor) -> Tensor:
        start = self.embedding.weight.new_ones(1, len(x), 5)
        return self.out(self.layers(self.embedding(x), hx=(start, start))[0])


class TimeFirst(nn.Module):
    """Dropout on [positions, samples, features]: its draws are not in the order of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.dropout(self.embedding(x.T), 0.5, self.training)).transpose(0, 1)


class Flattened(nn.Module):
    """Batch normalisation over samples and positions in one axis, where padding cannot be told."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.out = nn.Embedding(7, 4), nn.BatchNorm1d(4), nn.Linear(4, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.embedding(x).flatten(0, 1)).unflatten(0, x.shape))


class TestChoice:
    def test_auto_says_which_and_why(self) -> None:
        assert simulate(seeded(mlp), vectors(), "auto").engine.startswith("batched (")
        assert simulate(seeded(mlp), vectors(), "batched:2").engine == "batched (as asked)"
        assert simulate(seeded(cnn), images(), "auto").engine == (
            "sequential (on a CPU a convolution is faster client by client)"
        )
        assert simulate(seeded(mlp), vectors(), "sequential").engine == "sequential (as asked)"

    @pytest.mark.parametrize(
        ("model", "data", "why"),
        [
            (Branching, vectors, "data-dependent control flow"),
            (Centred, vectors, "mixes the samples of a batch"),
            (Gated, tokens, "no nn.GRU for many clients"),
            (Started, tokens, "initial state"),
            (TimeFirst, tokens, "mixes the samples of a batch"),
            (Flattened, tokens, "must match"),
        ],
    )
    def test_what_cannot_be_batched_falls_back(self, model: type[nn.Module], data: Any, why: str) -> None:
        run = simulate(seeded(model), data(), "auto", "fedavg")
        assert run.engine.startswith("sequential (the model cannot be batched: ")
        assert why in run.engine
        alone = simulate(seeded(model), data(), "sequential", "fedavg")
        assert_close(run.parameters, alone.parameters, rtol=0, atol=0)
        with pytest.raises(ValueError, match="engine='batched' cannot train this model") as caught:
            simulate(seeded(model), data(), "batched", "fedavg")
        assert why in str(caught.value)

    @pytest.mark.parametrize("algorithm", ["scaffold", "fedpgvc"])
    def test_pytorchs_lstm_is_batched(self, algorithm: str) -> None:
        runs = [simulate(seeded(Recurrent), tokens(), e, algorithm) for e in ("sequential", "batched")]
        assert_close(runs[1].parameters, runs[0].parameters, rtol=1e-10, atol=1e-10)
        assert simulate(seeded(Recurrent), tokens(), "auto", algorithm).engine.startswith(
            "batched (clients train together, up to"
        )

    def test_mixing_samples_is_fine_without_padding(self) -> None:
        data = vectors(sizes=(8, 8, 8))
        runs = [simulate(seeded(Centred), data, e, "fedavg", cohort=2) for e in ("sequential", "batched")]
        assert_close(runs[1].parameters, runs[0].parameters, rtol=1e-10, atol=1e-10)

    def test_a_loss_that_mixes_samples_falls_back(self) -> None:
        def relative(output: Tensor, target: Tensor) -> Tensor:
            losses = F.cross_entropy(output, target, reduction="none")
            return losses * losses.detach() / losses.detach().mean()

        run = simulate(seeded(mlp), vectors(), "auto", "fedavg", loss=relative)
        assert "mixes the samples of a batch" in run.engine

    def test_an_augmentation_that_mixes_samples_falls_back(self) -> None:
        run = simulate(seeded(mlp), vectors(), "auto", "fedavg", augment=lambda x, key, step: (x + x.flip(0)) / 2)
        assert "mixes the samples of a batch" in run.engine

    def test_draws_that_cannot_be_repeated_are_refused(self) -> None:
        class Gate(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x * torch.poisson(torch.full_like(x, 0.5)))

        for engine in ("auto", "sequential", "batched"):
            with pytest.raises(ValueError, match=r"draws random numbers by torch.poisson"):
                simulate(Gate(5, 3).double(), vectors(), engine)

    def test_a_model_too_large_for_several_clients_is_trained_client_by_client(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules["undrift.engines.choose"]._MEMORY, "cpu", 10 << 20)  # a hundredth
        model = nn.Sequential(nn.Embedding(12_000, 32), nn.Flatten(), nn.Linear(160, 3))  # 1.5 MB, few operations
        data = [(torch.randint(9, (n, 5)), torch.randint(3, (n,))) for n in (4, 4)]
        run = ud.simulate("fedavg", model, data, rounds=1, steps=1)
        assert run.engine == "sequential (the model is too large to train several clients at once)"

    @pytest.mark.parametrize(
        "engine", ["batched:0", "batched:x", "sequential:0", "sequential:9999", "auto:2", "batched:", "batched:-1"]
    )
    def test_a_wrong_chunk_is_refused(self, engine: str) -> None:
        with pytest.raises(ValueError, match="'batched:16'"):
            simulate(seeded(mlp), vectors(), engine)


class TestWorkers:
    """Clients side by side in threads: the numbers of one thread, whatever the model keeps in itself."""

    @pytest.mark.parametrize("name", ["fedavg", "scaffold", "moon"])
    def test_any_number_of_workers_gives_the_same_bits(self, name: str) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            runs = []
            for workers in (1, 2, 3):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(torch, "get_num_threads", lambda workers=workers: workers)
                    runs.append(simulate_images(name))
                assert runs[-1]._experiment.engine == Sequential(workers)
        finally:
            torch.set_num_threads(threads)
        for other in runs[1:]:
            assert all(torch.equal(v, other.parameters[k]) for k, v in runs[0].parameters.items())

    def test_a_small_cohort_shares_the_cores_and_says_so(self) -> None:
        """What was chosen is stored, and a run that is given it uses as many cores for a client."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "get_num_threads", lambda: 4)
            run = simulate_images("fedavg", cohort=2)
            asked = simulate_images("fedavg", cohort=2, engine="sequential")
        torch.set_num_threads(1)
        assert run.engine.endswith("2 clients in parallel, 2 cores each)")
        assert run.environment["engine"] == "sequential:2"
        assert run._experiment.engine == Sequential(2, cores=2)
        assert asked._experiment.engine == Sequential(4)

    def test_an_error_in_a_worker_reaches_the_caller(self) -> None:
        def spoilt(output: Tensor, target: Tensor) -> Tensor:
            if threading.current_thread() is not threading.main_thread():
                raise RuntimeError("spoilt")
            return F.cross_entropy(output, target, reduction="none")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "get_num_threads", lambda: 2)
            with pytest.raises(RuntimeError, match="spoilt"):
                simulate_images("fedavg", loss=spoilt)


def simulate_images(name: str, **options: Any) -> ud.Run:
    """A network with a convolution, batch normalisation and dropout on seven unequal clients."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(108, 4)
    )
    data = [(torch.randn(n, 1, 8, 8), torch.randint(4, (n,))) for n in (5, 9, 3, 8, 6, 7, 4)]
    return ud.simulate(name, model, data, rounds=3, batch_size=4, lr=0.1, **options)
