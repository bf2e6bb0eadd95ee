"""Random numbers in user's code: every draw is keyed by seed, round, client and step, or refused by its name.

A case puts one to three drawing functions into a place (forward pass, loss, augmentation, evaluation, backward pass).
It must run with the same numbers whatever the global generators were seeded with, on both engines, and leave them
alone; or it is refused before the first round with the name of what drew.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud

Drawer = Callable[[Tensor], Tensor]  # rows [B, C] to rows [B, C], C even
_RNG = np.random.default_rng(0)
_PYTHON = random.Random(0)
_TORCH = torch.Generator().manual_seed(0)


def attend(h: Tensor, **options: Any) -> Tensor:
    heads = h.view(len(h), 1, -1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.3, **options).reshape(h.shape)


def filled(h: Tensor, method: str, *args: Any) -> Tensor:
    """Noise that a method of tensors makes in place, of moderate size."""
    return h + getattr(torch.empty(h.shape, dtype=h.dtype), method)(*args).tanh()


def fixed(h: Tensor) -> Tensor:
    return h * torch.rand(h.shape[1:], generator=torch.Generator().manual_seed(5), dtype=h.dtype)


def in_place(h: Tensor) -> Tensor:
    changed = h * 1
    F.dropout(changed, 0.4, True, inplace=True)
    return changed


ANSWERED: dict[str, Drawer] = {
    "F.dropout": lambda h: F.dropout(h, 0.3),
    "F.dropout in place": in_place,
    "nn.Dropout": nn.Dropout(0.2),
    "F.dropout1d": lambda h: F.dropout1d(h.unsqueeze(-1), 0.3).squeeze(-1),
    "F.dropout1d of a sample": lambda h: F.dropout1d(h, 0.3),
    "F.dropout2d": lambda h: F.dropout2d(h[:, :, None, None], 0.3)[:, :, 0, 0],
    "F.dropout3d": lambda h: F.dropout3d(h[:, :, None, None, None], 0.3)[:, :, 0, 0, 0],
    "F.alpha_dropout": lambda h: F.alpha_dropout(h, 0.3, True),
    "F.feature_alpha_dropout": lambda h: F.feature_alpha_dropout(h, 0.3, True),
    "torch.dropout_": lambda h: torch.dropout_(h * 1, 0.3, True),
    "torch.native_dropout": lambda h: torch.native_dropout(h, 0.3, True)[0],
    "torch.alpha_dropout": lambda h: torch.alpha_dropout(h, 0.3, True),
    "torch.feature_dropout": lambda h: torch.feature_dropout(h, 0.3, True),
    "torch.feature_dropout_": lambda h: torch.feature_dropout_(h * 1, 0.3, True),
    "attention": attend,
    "causal attention": lambda h: attend(h, is_causal=True),
    "masked attention": lambda h: attend(h, attn_mask=torch.eye(h.shape[1] // 2, dtype=torch.bool), scale=0.7),
    "F.rrelu": lambda h: F.rrelu(h, training=True),
    "F.gumbel_softmax": lambda h: F.gumbel_softmax(h, tau=0.7),
    "F.gumbel_softmax hard": lambda h: h + F.gumbel_softmax(h, hard=True),
    "torch.rand": lambda h: h + torch.rand(*h.shape),
    "torch.rand with options": lambda h: h + torch.rand(size=h.shape, dtype=h.dtype, device=h.device),
    "torch.rand out": lambda h: h + torch.rand(h.shape, out=torch.empty(h.shape)),
    "torch.rand_like": lambda h: h + torch.rand_like(h),
    "torch.randn": lambda h: h + torch.randn(len(h), 1),
    "torch.randn complex": lambda h: h + torch.randn(h.shape, dtype=torch.complex64).abs(),
    "torch.randn_like": lambda h: h + torch.randn_like(h, dtype=torch.float64).to(h.dtype),
    "torch.randint": lambda h: h + torch.randint(5, h.shape) - torch.randint(0, 2, size=(len(h), 1)),
    "torch.randint_like": lambda h: h + torch.randint_like(h, 3) - torch.randint_like(h, 1, 4),
    "torch.randperm": lambda h: h[:, torch.randperm(h.shape[1])],
    "torch.randperm of samples": lambda h: h + 0.1 * h[torch.randperm(len(h))],
    "torch.normal": lambda h: torch.normal(h, 0.1) + torch.normal(0.0, h.abs()) + torch.normal(0.0, 1.0, h.shape),
    "torch.bernoulli": lambda h: h * torch.bernoulli(h.detach().sigmoid()),
    "Tensor.bernoulli": lambda h: h * h.bernoulli(0.6),
    "torch.multinomial": lambda h: h + 0.1 * torch.multinomial(h.softmax(-1), 1),
    "Tensor.multinomial": lambda h: h + 0.1 * h.softmax(-1).multinomial(3, True).sum(-1, keepdim=True),
    "Tensor.uniform_": lambda h: filled(h, "uniform_", -1, 2),
    "Tensor.normal_": lambda h: filled(h, "normal_", 0.5, 2),
    "Tensor.exponential_": lambda h: filled(h, "exponential_", 2.0),
    "Tensor.cauchy_": lambda h: filled(h, "cauchy_"),
    "Tensor.geometric_": lambda h: filled(h, "geometric_", 0.3),
    "Tensor.log_normal_": lambda h: filled(h, "log_normal_"),
    "Tensor.random_": lambda h: filled(h, "random_", 4),
    "Tensor.bernoulli_": lambda h: h * h.new_empty(len(h), 1).bernoulli_(0.6),
    "nn.init": lambda h: h + nn.init.xavier_uniform_(torch.empty(h.shape)) + nn.init.normal_(torch.zeros(h.shape)),
    "nn.init.kaiming_uniform_": lambda h: h + nn.init.kaiming_uniform_(torch.empty(h.shape)),
    "nn.init.orthogonal_": lambda h: h @ nn.init.orthogonal_(torch.empty(h.shape[1], h.shape[1])).to(h.dtype),
    "Normal": lambda h: D.Normal(h, h.abs() + 0.1).rsample(),
    "Bernoulli": lambda h: h * D.Bernoulli(logits=h.detach()).sample(),
    "Categorical": lambda h: h + 0.1 * D.Categorical(logits=h.detach()).sample()[:, None],
    "Gumbel": lambda h: D.Gumbel(h, 0.5).rsample().tanh(),
    "Laplace": lambda h: D.Laplace(h, 0.5).rsample().tanh(),
    "Exponential": lambda h: h + D.Exponential(h.detach().abs() + 0.5).rsample().tanh(),
    "Uniform": lambda h: h + D.Uniform(0.0, 1.0).sample(h.shape),
    "RelaxedBernoulli": lambda h: D.RelaxedBernoulli(torch.tensor(0.5), logits=h).rsample(),
    "MultivariateNormal": lambda h: h + D.MultivariateNormal(torch.zeros(2), torch.eye(2)).sample((len(h),))[:, :1],
    "VonMises": lambda h: h + D.VonMises(h.detach(), h.detach().abs() + 0.1).sample(),
    "a seeded generator": fixed,
}
REFUSED: dict[str, tuple[Drawer, str]] = {
    "torch.poisson": (lambda h: h + torch.poisson(h.detach().abs()), "torch.poisson"),
    "torch.binomial": (lambda h: h + torch.binomial(torch.full_like(h, 3.0), h.detach().sigmoid()), "torch.binomial"),
    "Gamma": (lambda h: h + D.Gamma(h.detach().abs() + 1, 2.0).sample(), "torch._standard_gamma"),
    "Beta": (lambda h: h * D.Beta(h.detach().abs() + 1, 2.0).sample(), "torch._sample_dirichlet"),
    "scripted dropout": (torch.jit.script(nn.Dropout(0.3)), "Tensor.bernoulli_|RecursiveScriptModule"),
    "numpy.random": (lambda h: h * float(np.random.rand()), "NumPy's global generator"),
    "random": (lambda h: h * random.random(), "Python's global generator"),
    "a NumPy generator": (lambda h: h * float(_RNG.random()), "numpy's Generator '.*_RNG'"),
    "a Python generator": (lambda h: h * _PYTHON.random(), "random's Random '.*_PYTHON'"),
    "a torch generator": (lambda h: h + torch.rand(h.shape, generator=_TORCH), "torch's Generator '.*_TORCH'"),
    "a new generator": (lambda h: h * float(np.random.default_rng().random()), "gives other numbers"),
    "a seed": (lambda h: h * float(torch.manual_seed(3).initial_seed()), "torch's default generator"),
}


class Net(nn.Module):
    """Two layers with drawing functions between them, in training mode, in evaluation mode or in both."""

    def __init__(self, draw: Drawer | None = None, modes: tuple[bool, ...] = (), backward: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
        self.draw, self.modes, self.backward = draw, modes, backward

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if self.draw is not None and self.training in self.modes:
            h = self.draw(h)
        if self.draw is not None and self.backward and h.requires_grad:
            h.register_hook(self.draw)
        return torch.as_tensor(self.last(h))


def sample_losses(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


def of_place(place: str, draw: Drawer) -> dict[str, Any]:
    """Arguments of `simulate` for code that draws in a place."""
    match place:
        case "forward":
            return {"model": Net(draw, (True,))}
        case "evaluation":
            return {"model": Net(draw, (False,))}
        case "both":
            return {"model": Net(draw, (True, False))}
        case "backward":
            return {"model": Net(draw, backward=True)}
        case "loss":
            return {"model": Net(), "loss": lambda output, target: sample_losses(draw(output), target)}
        case _:
            return {"model": Net(), "augment": lambda x, key, step: draw(x * 1).to(x.dtype)}


def federation(rng: Random) -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(rng.randrange(1000))
    sizes = [rng.randint(1, 7) for _ in range(3)] if rng.random() < 0.7 else [4, 4, 4]

    def samples(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 6, generator=generator), torch.randint(4, (n,), generator=generator)

    return [samples(n) for n in sizes], samples(150)


def states() -> tuple[Any, ...]:
    numpy = np.random.get_state(legacy=False)
    assert isinstance(numpy, dict)
    return torch.get_rng_state().tolist(), numpy["state"]["key"].tolist(), numpy["state"]["pos"], random.getstate()


def run(rng: Random, given: dict[str, Any], engine: str, **options: Any) -> ud.Run:
    """A run after the global generators were seeded anew, which it must leave alone."""
    seed = rng.randrange(2**31)
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    before = states()
    arguments: dict[str, Any] = {"rounds": 2, "lr": 0.1, "batch_size": 3, "device": "cpu", "dtype": "float64"} | options
    try:
        return ud.simulate(engine=engine, **given, **arguments)
    finally:
        assert states() == before


def seeded(given: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    for part in given["model"].modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    return given


def check(rng: Random, given: dict[str, Any], **options: Any) -> None:
    """Reruns are equal to the bit, engines to rounding."""
    seeded(given)
    first, again = (run(rng, given, "sequential", **options) for _ in range(2))
    assert all(torch.equal(v, again.parameters[k]) for k, v in first.parameters.items())
    assert first.history[["loss", "accuracy"]].equals(again.history[["loss", "accuracy"]])
    together = run(rng, given, "auto", **options)  # batched, or what cannot be, for a reason
    assert together.engine.startswith(("batched", "sequential (the model cannot be batched"))
    near = 1e-9 if options.get("dtype", "float64") == "float64" else 1e-4
    for name, value in first.parameters.items():
        torch.testing.assert_close(together.parameters[name], value, rtol=near, atol=near)


@pytest.mark.attack(short=6, long=220)
def test_answered(rng: Random) -> None:
    drawers = [ANSWERED[name] for name in rng.sample(sorted(ANSWERED), rng.randint(1, 3))]

    def draw(h: Tensor) -> Tensor:
        for drawer in drawers:
            h = drawer(h)
        return h

    data, test = federation(rng)
    given = of_place(rng.choice(["forward", "loss", "augment", "evaluation", "both"]), draw) | {"data": data}
    given |= {"test": test, "algorithm": rng.choice(["fedavg", "scaffold", "mime", "moon", "perfedavg"])}
    check(rng, given, seed=rng.randrange(100), dtype=rng.choice(["float64", "float64", "float32"]))


@pytest.mark.attack(short=5, long=150)
def test_refused(rng: Random) -> None:
    place = rng.choice(["forward", "loss", "augment", "evaluation", "both", "backward"])
    draw, words = REFUSED[rng.choice(sorted(REFUSED))]
    other = ANSWERED[rng.choice(sorted(ANSWERED))]
    mixed = place != "backward" and rng.random() < 0.5
    data, _ = federation(rng)
    given = of_place(place, (lambda h: draw(other(h))) if mixed else draw)
    before = generator_states()
    for engine in rng.sample(["sequential", "batched", "auto"], 2):
        with pytest.raises(ValueError, match=words) as raised:
            run(rng, {"algorithm": "fedavg", "data": data} | given, engine)
        who = {"loss": "the loss", "augment": "augment", "backward": "the backward pass"}.get(place, "the model")
        assert who in str(raised.value) or "torch.jit" in str(raised.value)  # refused for that before it is called
    assert generator_states() == before


def generator_states() -> tuple[Any, ...]:
    return _TORCH.get_state().tolist(), _RNG.bit_generator.state["state"]["state"], _PYTHON.getstate()


@pytest.mark.attack(short=3, long=40)
def test_nothing_is_drawn_in_a_backward_pass(rng: Random) -> None:
    name = rng.choice(sorted(ANSWERED.keys() - {"a seeded generator"}))
    data, _ = federation(rng)
    with pytest.raises(ValueError, match=r"the backward pass (draws random numbers by|gives other numbers)"):
        run(
            rng,
            {"algorithm": "fedavg", "data": data} | of_place("backward", ANSWERED[name]),
            rng.choice(["sequential", "batched"]),
        )


# Modules that draw inside


class Attention(nn.Module):
    """A part of a transformer on samples of three tokens, as PyTorch's modules take them."""

    def __init__(self, part: nn.Module, memory: bool = False, weights: bool | None = None) -> None:
        super().__init__()
        self.first, self.part, self.last = nn.Linear(2, 8), part, nn.Linear(8, 4)
        self.inputs = 3 if isinstance(part, nn.MultiheadAttention) else 2 if memory else 1
        self.options = {} if weights is None else {"need_weights": weights}

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.first(x.view(len(x), 3, 2))
        h = self.part(*[tokens] * self.inputs, **self.options)
        return torch.as_tensor(self.last((h[0] if isinstance(h, tuple) else h).mean(1)))


def transformer_parts(p: float) -> list[Callable[[], nn.Module]]:
    heads = {"dropout": p, "batch_first": True}
    return [
        lambda: Attention(nn.TransformerEncoderLayer(8, 2, 16, **heads)),  # type: ignore[arg-type]
        lambda: Attention(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, **heads), 2)),  # type: ignore[arg-type]
        lambda: Attention(nn.TransformerDecoderLayer(8, 2, 16, **heads), memory=True),  # type: ignore[arg-type]
        lambda: Attention(nn.Transformer(8, 2, 1, 1, 16, **heads), memory=True),  # type: ignore[arg-type]
        lambda: Attention(nn.MultiheadAttention(8, 2, p, batch_first=True), weights=True),
        lambda: Attention(nn.MultiheadAttention(8, 2, p, batch_first=True), weights=False),
        lambda: Attention(nn.MultiheadAttention(8, 4, p, add_bias_kv=True, add_zero_attn=True), weights=False),
    ]


@pytest.mark.attack(short=3, long=40)
def test_attention(rng: Random) -> None:
    model = rng.choice(transformer_parts(rng.choice([0.1, 0.4])))()
    data, test = federation(rng)
    given = {"model": model, "data": data, "test": test, "algorithm": rng.choice(["fedavg", "scaffold", "fedprox"])}
    check(rng, given, seed=rng.randrange(100))


def test_dropout_of_attention_changes_the_numbers() -> None:
    rng = Random(0)
    data, _ = federation(rng)
    for part in (0, 4, 5):
        models = [transformer_parts(p)[part]() for p in (0.4, 0.0)]
        runs = [run(rng, seeded({"model": m, "data": data, "algorithm": "fedavg"}), "sequential") for m in models]
        assert any(not torch.equal(v, runs[1].parameters[k]) for k, v in runs[0].parameters.items())


# Outputs and losses that cannot be trained


class Returns(nn.Module):
    """A layer whose output is changed, in training mode, in evaluation mode or in both."""

    def __init__(self, change: Callable[[Tensor], Any], modes: tuple[bool, ...] = (True, False)) -> None:
        super().__init__()
        self.layer, self.change, self.modes = nn.Linear(6, 4), change, modes

    def forward(self, x: Tensor) -> Any:
        output = self.layer(x)
        return self.change(output) if self.training in self.modes else output


OUTPUTS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a tuple": (lambda h: (h, h), "must return a tensor with one row per sample, .*got tuple"),
    "a dict": (lambda h: {"output": h}, "must return a tensor with one row per sample, .*got a dict with"),
    "None": (lambda h: None, "must return a tensor with one row per sample, .*got NoneType"),
    "a scalar": (lambda h: h.sum(), "must return a tensor with one row per sample"),
    "too many rows": (lambda h: torch.cat([h, h]), "must return a tensor with one row per sample"),
}
UNTRAINABLE: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "detached": (lambda h: h.detach(), "output is detached from its parameters"),
    "data": (lambda h: h.data, "output is detached from its parameters"),
    "constant": (lambda h: torch.ones_like(h), "output is detached from its parameters"),
    "integers": (lambda h: (10 * h).long(), "output is (of type torch.int64|detached)"),
    "booleans": (lambda h: h > 0, "output is (of type torch.bool|detached)"),
}
LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "a mean": (lambda o, t: F.cross_entropy(o, t), r"one value per sample, a tensor of shape \(2,\), got \(\)"),
    "a number": (lambda o, t: 1.0, "one value per sample.*got float"),
    "a tuple": (lambda o, t: (sample_losses(o, t),), "one value per sample.*got tuple"),
    "a matrix": (lambda o, t: o, "one value per sample"),
    "a value per class": (lambda o, t: o.mean(0), "one value per sample"),
    "a column": (lambda o, t: sample_losses(o, t)[:, None], "one value per sample"),
    "two values, however many samples": (lambda o, t: o.sum(0)[:2], "one value per sample"),
    "integers": (lambda o, t: (o.argmax(1) != t).long(), "floating-point numbers, got torch.int64"),
    "booleans": (lambda o, t: o.argmax(1) != t, "floating-point numbers, got torch.bool"),
    "complex numbers": (
        lambda o, t: torch.view_as_complex(o[:, :2].contiguous()),
        "floating-point numbers, got torch.complex",
    ),
    "detached": (lambda o, t: sample_losses(o, t).detach(), "loss is detached from the model's output"),
    "by NumPy": (lambda o, t: torch.from_numpy(o.detach().numpy().sum(1)), "loss is detached from the model's output"),
    "counted": (lambda o, t: (o.argmax(1) != t).double(), "loss is detached from the model's output"),
    "writing": (lambda o, t: sample_losses(o.mul_(2), t), "writes into the outputs or targets"),
    "writing targets": (lambda o, t: sample_losses(o, t.fill_(0)), "writes into the outputs or targets"),
    "failing": (lambda o, t: o[:, 10:].max(), "the loss does not fit outputs of shape"),
    "asserting": (
        lambda o, t: sample_losses(o, t) if o.requires_grad and not len(o) else 1 / 0,
        "the loss does not fit",
    ),
}


@pytest.mark.attack(short=6, long=80)
def test_outputs(rng: Random) -> None:
    fits = rng.random() < 0.5
    (change, words), modes = (
        rng.choice(list((OUTPUTS if fits else UNTRAINABLE).values())),
        rng.choice([(True,), (True, False)]),
    )
    loss = None if fits else lambda output, target: output.double().sum(1)
    data, test = federation(rng)
    given = {"model": Returns(change, modes), "data": data, "test": test, "loss": loss, "algorithm": "fedavg"}
    with pytest.raises(ValueError, match=words) as raised:
        run(
            rng,
            given,
            rng.choice(["sequential", "batched", "auto"]),
            precision=rng.choice([None, "bf16"]),
            dtype="float32",
        )
    assert ("in training mode" in str(raised.value)) == (fits and modes == (True,))
    assert "\n" not in str(raised.value)


@pytest.mark.attack(short=6, long=60)
def test_losses(rng: Random) -> None:
    loss, words = rng.choice(list(LOSSES.values()))
    data, test = federation(rng)
    given = {"model": Net(), "data": data, "test": test, "loss": loss, "algorithm": rng.choice(["fedavg", "mime"])}
    with pytest.raises(ValueError, match=words) as raised:
        run(rng, given, rng.choice(["sequential", "batched", "auto"]))
    assert "\n" not in str(raised.value)
