"""On a GPU: the same numbers as on a CPU, and bit-identical reruns. `pytest -m gpu` on a machine that has one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kernel_draws
import plain_kernels
import undrift as ud
from undrift.core import random
from undrift.core.random import Key, Stream
from undrift.diagnostics import DIAGNOSTICS
from undrift.engines import Batched

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def federation(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Six clients of unequal size, images of 1×8×8, four classes."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(n, 1, 8, 8, generator=generator), torch.randint(4, (n,), generator=generator))
        for n in (10, 7, 16, 9, 12, 5)
    ]


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 4))


def convolutional() -> nn.Module:
    """Batch normalisation, dropout of units and of maps: all that could draw or count differently."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(144, 4),
    )


def run(algorithm: Any, model: nn.Module, device: str, **options: Any) -> ud.Run:
    settings: dict[str, Any] = {
        "rounds": 4,
        "cohort": 3,
        "lr": 0.05,
        "batch_size": 4,
        "dtype": "float64",
        "device": device,
    }
    return ud.simulate(algorithm, model, federation(), **(settings | options))


def close(a: ud.Run, b: ud.Run, tolerance: float = 1e-9) -> bool:
    return all(torch.allclose(v.cpu(), b.parameters[k].cpu(), rtol=0, atol=tolerance) for k, v in a.parameters.items())


def test_draws_are_the_same_bits() -> None:
    kernel_draws.compare("cuda")
    for client in (0, 5, 2**31):
        here = random.bits(Key(3, 7, torch.tensor(client)), Stream.BATCHES, 2, 1001)
        there = random.bits(Key(3, 7, torch.tensor(client, device="cuda")), Stream.BATCHES, 2, 1001)
        assert torch.equal(here, there.cpu())


@pytest.mark.parametrize("name", sorted(ud.algorithms.available()))
def test_every_algorithm_gives_the_numbers_of_the_cpu(name: str) -> None:
    model = convolutional() if name in ("fedbn", "moon") else plain()
    assert close(run(name, model, "cuda"), run(name, model, "cpu", engine="sequential"))


@pytest.mark.parametrize("engine", ["batched", "batched:2", "sequential"])
def test_dropout_and_batch_normalisation(engine: str) -> None:
    model = convolutional()
    here = run("fedavg", model, "cpu", engine="sequential")
    there = run("fedavg", model, "cuda", engine=engine)
    assert close(here, there)
    assert all(torch.allclose(v.double(), there.buffers[k].cpu().double()) for k, v in here.buffers.items())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_rerun_gives_the_same_bits(dtype: str) -> None:
    first, second = (run("scaffold", convolutional(), "cuda", dtype=dtype, rounds=6) for _ in range(2))
    assert all(torch.equal(v, second.parameters[k]) for k, v in first.parameters.items())


def test_resume_gives_the_same_bits(tmp_path: Any) -> None:
    whole = run("fedhbm", plain(), "cuda", rounds=6)
    run("fedhbm", plain(), "cuda", rounds=3, out=tmp_path / "run")
    rest = ud.resume(tmp_path / "run", rounds=6, model=plain(), data=federation())
    assert all(torch.equal(v, rest.parameters[k]) for k, v in whole.parameters.items())


def test_auto_batches_convolutions() -> None:
    assert run("fedavg", convolutional(), "cuda").engine.startswith("batched")


# Rounds captured and replayed


@pytest.mark.parametrize("name", sorted(ud.algorithms.available()))
def test_rounds_are_replayed(name: str) -> None:
    """All but those that decide anew in every round, which say so."""
    model = convolutional() if name in ("fedbn", "moon") else plain()
    found = run(name, model, "cuda", rounds=5, lr_decay=0.7)
    assert close(found, run(name, model, "cpu", engine="sequential", rounds=5, lr_decay=0.7))
    assert ("rounds are not replayed" in found.engine) == (name in ("mafsvrg", "gafsvrg"))


@pytest.mark.parametrize("options", [{"epochs": 3}, {"steps": 2}, {"batch_size": None}, {"cohort": None}], ids=str)
def test_unequal_clients_and_any_schedule(options: dict[str, Any]) -> None:
    here = run("scaffold", convolutional(), "cpu", engine="sequential", rounds=8, **options)
    assert close(here, run("scaffold", convolutional(), "cuda", rounds=8, **options))


def test_diagnostics_are_captured() -> None:
    options: dict[str, Any] = {"rounds": 5, "diagnostics": list(DIAGNOSTICS)}
    here = run("scaffold", plain(), "cpu", engine="sequential", **options)
    there, again = (run("scaffold", plain(), "cuda", **options) for _ in range(2))
    assert "not replayed" not in there.engine
    mine, others, repeated = (each.diagnostics["value"].to_numpy() for each in (here, there, again))
    assert np.allclose(mine, others, rtol=1e-7, atol=1e-9, equal_nan=True)
    assert np.array_equal(others, repeated, equal_nan=True)
    off = run("scaffold", plain(), "cuda", rounds=5)
    assert all(torch.equal(value, there.parameters[name]) for name, value in off.parameters.items())


def test_evaluation_is_replayed() -> None:
    x, y = federation(1)[2]
    here, there = (run("fedexp", plain(), device, test=(x, y), rounds=6) for device in ("cpu", "cuda"))
    assert torch.allclose(torch.tensor(here.history.loss), torch.tensor(there.history.loss), rtol=0, atol=1e-9)
    assert here.history.accuracy.tolist() == there.history.accuracy.tolist()


def test_divergence_is_reported_with_its_round() -> None:
    """The model is linear, the loss a square: at this rate it grows by a factor in every round until it overflows."""
    clients = [(torch.full((4, 2), float(i)), torch.zeros(4)) for i in range(1, 5)]
    model = nn.Linear(2, 1)
    with pytest.raises(ud.DivergenceError) as caught:
        ud.simulate("fedavg", model, clients, loss=lambda out, _: out.square().sum(1), lr=1.0, rounds=50, device="cuda")
    assert 3 < caught.value.round == caught.value.run.rounds + 1
    assert all(bool(torch.isfinite(v).all()) for v in caught.value.run.parameters.values())


def test_runs_together() -> None:
    settings: dict[str, Any] = {"rounds": 5, "cohort": 3, "batch_size": 4, "dtype": "float64", "weighting": "paper"}
    comparison = ud.compare(["scaffold"], convolutional(), federation(), seeds=3, lr=[0.05, 0.1], **settings)
    for record in comparison.records:
        lr = 0.05 if record.label.endswith("0.05") else 0.1
        alone = run(
            "scaffold", convolutional(), "cpu", engine="sequential", seed=record.seed, **(settings | {"lr": lr})
        )
        assert record.history.train_loss.tolist() == pytest.approx(alone.history.train_loss.tolist(), abs=1e-9)


# Convolutions for many clients, and precision


@pytest.mark.parametrize(
    ("precision", "dtype", "tolerance"),
    [("ieee", torch.float32, 2e-6), ("tf32", torch.float32, 3e-3), ("ieee", torch.bfloat16, 2e-2)],
)
@pytest.mark.parametrize("case", plain_kernels.CASES, ids=str)
def test_kernels(case: plain_kernels.Case, precision: str, dtype: torch.dtype, tolerance: float) -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = precision
        plain_kernels.compare(case, "cuda", tolerance, dtype)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def pictures(clients: int = 4, samples: int = 24) -> ud.FederatedData:
    """Learnable in a few rounds: the class is where the bright spot is."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(4, (clients * samples,), generator=generator)
    x = torch.randint(0, 60, (len(y), 3, 32, 32), dtype=torch.uint8, generator=generator)
    for i, label in enumerate(y.tolist()):
        x[i, :, 16 * (label // 2) : 16 * (label // 2) + 16, 16 * (label % 2) : 16 * (label % 2) + 16] += 150
    rows = [range(i * samples, (i + 1) * samples) for i in range(clients)]
    return ud.FederatedData(x, y, rows, (x[:40], y[:40]), classes=4)


def learned(precision: str | None, **options: Any) -> ud.Run:
    settings: dict[str, Any] = {"rounds": 6, "batch_size": 8, "lr": 0.05, "device": "cuda", "precision": precision}
    return ud.simulate("fedavg", "lenet-hsu", pictures(), **(settings | options))


def distance(a: ud.Run, b: ud.Run) -> float:
    """How far apart two final models are, against how far they went from zero."""
    gap = sum(float((v.cpu() - b.parameters[k].cpu()).double().square().sum()) for k, v in a.parameters.items())
    return (gap / sum(float(v.double().square().sum()) for v in b.parameters.values())) ** 0.5


@pytest.mark.parametrize(("precision", "most"), [(None, 5e-3), ("tf32", 5e-3), ("bf16", 5e-2), ("fp32", 5e-4)])
def test_precisions_learn_alike(precision: str | None, most: float) -> None:
    found, exact = learned(precision), learned("fp32", device="cpu")
    assert found.precision == (precision or "tf32")
    assert ("convolutions for many clients" in found.engine) == (precision != "fp32")
    assert distance(found, exact) < most
    assert all(v.dtype is torch.float32 for v in found.parameters.values())
    assert found.history.accuracy.iloc[-1] == pytest.approx(exact.history.accuracy.iloc[-1], abs=0.1)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_any_precision_reruns_bit_by_bit(precision: str) -> None:
    first, second = (learned(precision) for _ in range(2))
    assert all(torch.equal(v, second.parameters[k]) for k, v in first.parameters.items())


def test_a_precision_does_not_outlive_its_run() -> None:
    settings: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv")]  # noqa: B009  # untyped
    before = [setting.fp32_precision for setting in settings]
    learned("tf32", rounds=2)
    assert [setting.fp32_precision for setting in settings] == before


@pytest.mark.parametrize(
    "name", ["cnn", "lenet", "vgg11-bn", "resnet20-gn", "resnet18-bn", "mobilenetv2", "softmax", "mlp"]
)
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_named_models(name: str, precision: str) -> None:
    found = ud.simulate(
        "fedavg", name, pictures(), rounds=4, batch_size=10, lr=0.01, device="cuda", precision=precision
    )
    assert found.engine.startswith("batched")
    assert "not replayed" not in found.engine
    assert found.history.train_loss.notna().all()
    assert found.history.train_loss.iloc[-1] < found.history.train_loss.iloc[0]


@pytest.mark.parametrize(("model", "larger"), [(plain, True), (convolutional, False)])
def test_blocks_of_full_passes_are_large_where_that_changes_nothing(model: Any, larger: bool) -> None:
    """Mime's gradients of all samples: on a GPU in large blocks, if the model neither draws nor normalises."""
    alone, here = run("mime", model(), "cpu"), run("mime", model(), "cuda")
    engine = here.experiment.engine
    assert isinstance(engine, Batched)
    assert (engine.full_pass_samples > 0) == larger
    for name, value in alone.parameters.items():
        torch.testing.assert_close(here.parameters[name].cpu(), value, rtol=1e-9, atol=1e-9)
