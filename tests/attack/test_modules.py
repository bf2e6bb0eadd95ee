"""Modules as people write them, on every engine: trained as PyTorch would, or refused in one line; never anything lost,
leaked to another client or written to the caller's module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from odd_modules import CLASSES, FEATURES, ODD, PARTS, WORDS, Odd, composed
from undrift.core.tree import Tree
from undrift.methods.aggregate import median

Data = list[tuple[Tensor, Tensor]]

SIZES = (5, 3, 4)
LR, ROUNDS, STEPS = 0.1, 2, 2  # full batches, so that their order cannot matter
TRAINED = [name for name, odd in ODD.items() if odd.engines != "none"]
REFUSED = [name for name, odd in ODD.items() if odd.engines == "none"]
ALONE = [name for name, odd in ODD.items() if odd.engines == "sequential"]

pytestmark = pytest.mark.filterwarnings("ignore")


@contextmanager
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def built(odd: Odd) -> nn.Module:
    with double(), torch.random.fork_rng():
        torch.manual_seed(7)
        return odd.build()


def samples(odd: Odd) -> Data:
    generator = torch.Generator().manual_seed(3)
    return [
        (
            torch.randint(0, WORDS, (n, FEATURES), generator=generator)
            if odd.tokens
            else torch.randn(n, FEATURES, dtype=torch.float64, generator=generator) + i / 3,
            torch.randint(0, CLASSES, (n,), generator=generator),
        )
        for i, n in enumerate(SIZES)
    ]


def simulate(
    odd: Odd, engine: str, algorithm: str = "fedavg", module: nn.Module | None = None, **options: Any
) -> ud.Run:
    data = samples(odd)
    before = [tuple(t.clone() for t in pair) for pair in data]
    settings: dict[str, Any] = {"rounds": ROUNDS, "steps": STEPS, "batch_size": None, "lr": LR} | options
    run = ud.simulate(algorithm, module or built(odd), data, test=data[0], engine=engine, eval_every=ROUNDS, **settings)
    assert_close(data, before, rtol=0, atol=0)
    return run


def plain_training(odd: Odd) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """FedAvg by the module itself and SGD: the server's parameters and buffers."""
    state = _state(built(odd))
    weights = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
    for _ in range(ROUNDS):
        after = []
        for x, y in samples(odd):
            module = built(odd)
            for name, tensor in _state(module).items():
                tensor.copy_(state[name])
            trained = [p for p in module.parameters() if p.requires_grad]
            for _ in range(STEPS):
                F.cross_entropy(module.train()(x.clone()), y).backward()
                for p in trained:  # as `torch.optim.SGD` does, which takes seconds to import
                    if p.grad is not None:
                        p.data -= LR * p.grad.to_dense()
                        p.grad = None
            after.append(_state(module))
        stacked = {k: torch.stack([each[k] for each in after]) for k in state if state[k].layout is torch.strided}
        state = state | {
            k: torch.tensordot(weights, v, dims=1) if v.is_floating_point() else v.amax(0)
            for k, v in stacked.items()
            if not v.is_complex()
        }
    names = {name for name, p in built(odd).named_parameters() if p.requires_grad}
    return {k: v for k, v in state.items() if k in names}, {k: v for k, v in state.items() if k not in names}


def _state(module: nn.Module) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: t.data for name, t in tensors.items() if not t.is_quantized}


def facts(module: nn.Module) -> dict[str, Any]:
    """What must not change of a module."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    of_parts = {
        name: (
            part.training,
            [child for child, _ in part.named_children()],
            {k: v for k, v in vars(part).items() if isinstance(v, int | str)},
        )
        for name, part in module.named_modules()
    }
    hooks = {name: sum(len(v) for k, v in vars(part).items() if "hooks" in k) for name, part in module.named_modules()}
    bits = {name: (id(t), t.data_ptr(), t.detach().clone(), t.requires_grad, t.grad, t._version) for name, t in tensors}
    return {"parts": of_parts, "hooks": hooks, "bits": bits}


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    comparable = not any(t.is_meta or t.layout is not torch.strided or t.is_quantized for t in _tensors(module))
    before = facts(module) if comparable else None
    yield
    if before is not None:
        after = facts(module)
        assert after["parts"] == before["parts"]
        assert after["hooks"] == before["hooks"]
        for name, (*places, bits, needs, grad, version) in before["bits"].items():
            *now, bits_now, needs_now, grad_now, version_now = after["bits"][name]
            assert (now, needs_now, grad_now, version_now) == (places, needs, grad, version)
            assert torch.equal(bits_now, bits)


def _tensors(module: nn.Module) -> list[Tensor]:
    if any(nn.parameter.is_lazy(t) for t in module.parameters()):
        return [torch.zeros((), device="meta")]
    return [*module.parameters(), *module.buffers()]


def agree(a: ud.Run, b: ud.Run, tolerance: float) -> None:
    assert a.parameters.keys() == b.parameters.keys()
    assert_close(a.parameters, b.parameters, rtol=tolerance, atol=tolerance)
    assert_close(a.buffers, b.buffers, rtol=tolerance, atol=tolerance)
    for column in ("loss", "train_loss"):
        assert a.history[column].iloc[-1] == pytest.approx(b.history[column].iloc[-1], rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("name", TRAINED)
def test_trained_as_pytorch_does(name: str) -> None:
    odd = ODD[name]
    module = built(odd)
    with untouched(module):
        alone = simulate(odd, "sequential", module=module)
        agree(simulate(odd, "sequential", module=module), alone, 0)
        if odd.engines == "every":
            chosen = simulate(odd, "auto", module=module)
            assert chosen.engine.startswith("batched (clients train together")
            agree(chosen, alone, 1e-9)
    start = dict(built(odd).named_parameters())
    assert any(not torch.equal(v, start[k]) for k, v in alone.parameters.items())
    if odd.like_pytorch:
        parameters, others = plain_training(odd)
        assert_close(alone.parameters, parameters, rtol=1e-9, atol=1e-9)
        assert_close(alone.buffers, {k: others[k] for k in alone.buffers}, rtol=1e-9, atol=1e-9)
        first = _state(built(odd))
        unaveraged = {k: v for k, v in others.items() if k not in alone.buffers}
        assert_close(unaveraged, {k: first[k] for k in unaveraged}, rtol=1e-12, atol=0)


@pytest.mark.attack(short=1, long=4)
@pytest.mark.parametrize("name", [name for name in TRAINED if ODD[name].engines == "every"])
def test_engines_agree(name: str, rng: Random) -> None:
    """With an algorithm that keeps states, and with one of two phases."""
    odd, module = ODD[name], built(ODD[name])
    algorithm = rng.choice(["scaffold", "mime"])
    with untouched(module):
        together = simulate(odd, "batched", algorithm, module=module)
        agree(together, simulate(odd, "sequential", algorithm, module=module), 1e-9)


@pytest.mark.attack(short=1, long=4)
@pytest.mark.parametrize("name", ALONE)
def test_one_by_one(name: str, rng: Random, tmp_path: Path) -> None:
    odd, module, algorithm = ODD[name], built(ODD[name]), rng.choice(["scaffold", "mime"])
    with untouched(module):
        with pytest.raises(ValueError, match="engine='batched' cannot train this model: ") as refused:
            simulate(odd, "batched", module=module, out=tmp_path / "run")
        said = str(refused.value)
        assert odd.words in said
        assert "\n" not in said
        assert not (tmp_path / "run").exists()
        chosen = simulate(odd, "auto", algorithm, module=module)
        assert chosen.engine.startswith("sequential (the model cannot be batched: ")
        agree(chosen, simulate(odd, "sequential", algorithm, module=module), 0)


@pytest.mark.attack(short=0, long=1)  # compiling takes its time
@pytest.mark.parametrize("name", ["assigned buffers", "clipped by .data", "teacher"])
def test_compiled(name: str, rng: Random) -> None:
    agree(simulate(ODD[name], "compiled"), simulate(ODD[name], "sequential"), 1e-9)


@pytest.mark.attack(short=1, long=3)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, rng: Random, tmp_path: Path) -> None:
    odd, module, engine = ODD[name], built(ODD[name]), rng.choice(["sequential", "batched", "auto"])
    with untouched(module):
        with pytest.raises(ValueError, match=r"^the (model|loss)") as refused:
            simulate(odd, engine, module=module, out=tmp_path / "run")
        said = str(refused.value)
        assert odd.words in said
        assert "\n" not in said
        assert not (tmp_path / "run").exists()


def own_median(updates: Tree, weights: Tensor) -> Tree:
    """A rule of a user's own, which goes with every algorithm and buffer."""
    return median(updates, weights)


@pytest.mark.attack(short=4, long=200)
def test_composed(rng: Random) -> None:
    """Several parts in one module, on an algorithm and with settings drawn at random."""
    names = rng.sample(sorted(PARTS), rng.randint(2, 5))
    odd = Odd(lambda: composed(names))
    algorithm = rng.choice(["fedavg", "scaffold", "mime", "fedexp", "feddpc", "fedhbm", "moon", "fedvarp", "fedadam"])
    options: dict[str, Any] = {
        "buffers": rng.choice(["averaged", "local", "dropped"]),
        "optimizer": rng.choice(["sgd", "sgd", "adam"]),
        "weight_decay": rng.choice([0.0, 0.01]),
        "batch_size": rng.choice([None, 2]),
        "cohort": rng.choice([None, 2]),
        "aggregate": rng.choice(["mean", own_median]),
    }
    module = built(odd)
    with untouched(module):
        alone = simulate(odd, "sequential", algorithm, module=module, **options)
        chosen = simulate(odd, "auto", algorithm, module=module, **options)
        agree(alone, chosen, 1e-8)
        agree(simulate(odd, "auto", algorithm, module=module, **options), chosen, 0)
    if all(PARTS[name].batched for name in names) and algorithm != "moon":  # `vmap` alone knows no `.data`
        assert chosen.engine.startswith("batched")


def test_plain_fedavg_of_composed_modules() -> None:
    """Every part once, a few at a time, against PyTorch."""
    names = sorted(PARTS)
    for start in range(0, len(names), 4):
        odd = Odd(lambda start=start: composed(names[start : start + 4]))  # type: ignore[misc]
        alone = simulate(odd, "auto")
        parameters, others = plain_training(odd)
        assert_close(alone.parameters, parameters, rtol=1e-9, atol=1e-9)
        assert_close(alone.buffers, {k: others[k] for k in alone.buffers}, rtol=1e-9, atol=1e-9)
