"""What becomes of BatchNorm statistics: averaged, local, or dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import undrift as ud
from laws import seeded

# Full batches, one step: a client's statistics after a round are 0.9 × before + 0.1 × those of its samples.
X = [torch.tensor([[1.0], [2.0], [6.0]]).double(), torch.tensor([[10.0], [14.0]]).double()]
MEANS, VARIANCES = np.array([3.0, 12.0]), np.array([7.0, 8.0])  # unbiased
WEIGHTS = np.array([0.6, 0.4])
DATA = [(x, torch.arange(len(x)) % 2) for x in X]
TEST = (torch.tensor([[1.0], [3.0], [5.0], [11.0]]).double(), torch.tensor([0, 1, 1, 0]))
PARAMETERS, BUFFERS = 8 * (2 + 4), 8 * 3  # weight and bias of both layers; mean, variance and a counter


def model() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)))


@pytest.fixture(params=["sequential", "batched"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(policy: str, engine: str, **options: Any) -> ud.Run:
    settings: dict[str, Any] = {"rounds": 2, "batch_size": None, "lr": 0.1} | options
    return ud.simulate("fedavg", model(), DATA, engine=engine, buffers=policy, **{"test": TEST} | settings)


def blend(before: Any, seen: Any) -> Any:
    return 0.9 * before + 0.1 * seen


def local(run: ud.Run, name: str) -> list[float]:
    return run.memory.own.gather(np.arange(2))["buffers"][name].flatten().tolist()


def test_averaged(engine: str) -> None:
    after = run("averaged", engine).buffers
    mean = variance = None
    for _ in range(2):
        mean = WEIGHTS @ blend(0.0 if mean is None else mean, MEANS)
        variance = WEIGHTS @ blend(1.0 if variance is None else variance, VARIANCES)
    assert after["0.running_mean"].item() == pytest.approx(mean, abs=1e-12)
    assert after["0.running_var"].item() == pytest.approx(variance, abs=1e-12)
    assert after["0.num_batches_tracked"].item() == 2
    assert after["0.num_batches_tracked"].dtype is torch.int64


def test_averaged_over_the_cohort_only(engine: str) -> None:
    after = run("averaged", engine, cohort=[[1], [0]]).buffers
    assert after["0.running_mean"].item() == pytest.approx(blend(blend(0, 12), 3), abs=1e-12)
    assert after["0.running_var"].item() == pytest.approx(blend(blend(1, 8), 7), abs=1e-12)


def test_local(engine: str) -> None:
    result = run("local", engine, rounds=3, cohort=[[0, 1], [1], [1]])
    assert local(result, "0.running_mean") == pytest.approx([blend(0, 3), blend(blend(blend(0, 12), 12), 12)])
    assert local(result, "0.running_var") == pytest.approx([blend(1, 7), blend(blend(blend(1, 8), 8), 8)])
    assert local(result, "0.num_batches_tracked") == [1, 3]
    assert result.buffers == {}


def test_dropped(engine: str) -> None:
    """Every round starts from the initial statistics, and nobody keeps them."""
    result = run("dropped", engine)
    assert result.buffers == {}
    assert len(result.memory.own) == 0


def test_statistics_do_not_touch_the_parameters(engine: str) -> None:
    """In training mode batches are normalised by themselves, so that the policy cannot matter."""
    averaged, kept, dropped = (run(policy, engine).parameters for policy in ("averaged", "local", "dropped"))
    assert_close(kept, averaged, rtol=0, atol=0)
    assert_close(dropped, averaged, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("policy", "expected"), [("averaged", PARAMETERS + BUFFERS), ("local", PARAMETERS), ("dropped", PARAMETERS)]
)
def test_only_averaged_buffers_travel(policy: str, expected: int, engine: str) -> None:
    history = run(policy, engine).history
    assert (history["bytes_down"] == 2 * expected).all()
    assert (history["bytes_up"] == 2 * expected).all()


def test_evaluation_uses_averaged_statistics(engine: str) -> None:
    result = run("averaged", engine)
    module = model()
    module.load_state_dict(result.parameters | result.buffers)
    expected = F.cross_entropy(module.eval()(TEST[0]), TEST[1])
    assert result.history["loss"].iloc[-1] == pytest.approx(expected.item(), abs=1e-12)


def test_evaluation_uses_the_mean_of_local_statistics(engine: str) -> None:
    result = run("local", engine, rounds=1)
    module = model()
    module.load_state_dict(result.parameters, strict=False)
    module.get_buffer("0.running_mean").fill_(WEIGHTS @ blend(0, MEANS))
    module.get_buffer("0.running_var").fill_(WEIGHTS @ blend(1, VARIANCES))
    expected = F.cross_entropy(module.eval()(TEST[0]), TEST[1])
    assert result.history["loss"].iloc[-1] == pytest.approx(expected.item(), abs=1e-12)


def test_evaluation_without_statistics_uses_those_of_the_test(engine: str) -> None:
    result = run("dropped", engine)
    module = model()
    module.load_state_dict(result.parameters, strict=False)
    expected = F.cross_entropy(module.train()(TEST[0]), TEST[1])
    assert result.history["loss"].iloc[-1] == pytest.approx(expected.item(), abs=1e-12)


def test_a_constant_buffer_is_left_alone(engine: str) -> None:
    class Scaled(nn.Linear):
        scale: torch.Tensor

        def __init__(self) -> None:
            super().__init__(1, 2)
            self.register_buffer("scale", torch.tensor([0.5]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * self.scale)

    result = ud.simulate("fedavg", seeded(Scaled), DATA, rounds=2, engine=engine)
    assert result.buffers["scale"].item() == pytest.approx(0.5, abs=1e-15)


def test_single_sample_batches_leave_the_variance_alone(engine: str) -> None:
    """One sample has a mean but no variance; PyTorch would refuse it."""
    result = run("averaged", engine, rounds=1, batch_size=1, cohort=[[1]])
    assert result.buffers["0.running_var"].item() == 1
    low, high = (blend(blend(0, a), b) for a, b in ((10, 14), (14, 10)))
    assert result.buffers["0.running_mean"].item() in (pytest.approx(low), pytest.approx(high))


def test_a_single_test_sample_is_normalised_by_itself(engine: str) -> None:
    """It is its own mean, so that the model's outputs do not depend on it."""
    first, second = (
        run("dropped", engine, test=(torch.tensor([[value]]).double(), torch.tensor([1]))).history["loss"].iloc[-1]
        for value in (1.0, 5.0)
    )
    assert first == pytest.approx(second, abs=1e-12)


def test_a_last_sample_joins_the_block_before_it(engine: str) -> None:
    """2049 samples: PyTorch refuses to normalise the last of them alone."""
    x, y = torch.arange(2049).double()[:, None] / 1000, torch.arange(2049) % 2
    result = run("dropped", engine, test=(x, y))
    module = model()
    module.load_state_dict(result.parameters, strict=False)
    expected = F.cross_entropy(module.train()(x), y)
    assert result.history["loss"].iloc[-1] == pytest.approx(expected.item(), abs=1e-12)
