"""Random functions of PyTorch, answered by the counter-based generator: the originals' shapes, types, distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undrift.client.draws import Draws, Listener
from undrift.core.random import Key, Stream

SIZE = 20_000


def draws(step: int = 0) -> Draws:
    return Draws(Key(0, 1, torch.tensor(3)), step)


def ones() -> Tensor:
    return torch.ones(SIZE)


DISTRIBUTIONS: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(SIZE),
    "rand complex": lambda: torch.view_as_real(torch.rand(SIZE, dtype=torch.complex64)),
    "rand_like": lambda: torch.rand_like(ones(), dtype=torch.float64),
    "randn": lambda: torch.randn(size=(SIZE,)),
    "randn complex": lambda: torch.view_as_real(torch.randn(SIZE, dtype=torch.complex64)),
    "randn_like": lambda: torch.randn_like(ones()),
    "randint": lambda: torch.randint(-2, 5, (SIZE,)),
    "randint by name": lambda: torch.randint(low=1, high=7, size=(SIZE,), dtype=torch.int32),
    "randint of floats": lambda: torch.randint(4, (SIZE,), dtype=torch.float32),
    "randint_like": lambda: torch.randint_like(ones(), 2, 9),
    "normal": lambda: torch.normal(2 * ones(), 0.5),
    "normal of numbers": lambda: torch.normal(2.0, 0.5, (SIZE,)),
    "normal of two tensors": lambda: torch.normal(torch.zeros(SIZE, 1), torch.tensor([1.0, 2.0])),
    "bernoulli": lambda: torch.bernoulli(0.3 * ones()),
    "bernoulli by p": lambda: ones().bernoulli(0.3),
    "multinomial": lambda: torch.multinomial(torch.tensor([1.0, 0.0, 2.0, 3.0]).expand(SIZE, 4), 1),
    "multinomial, second": lambda: torch.multinomial(torch.tensor([1.0, 2.0, 3.0]).expand(SIZE, 3), 2)[:, 1],
    "multinomial, many": lambda: torch.tensor([1.0, 2.0, 5.0]).multinomial(SIZE, replacement=True),
    "uniform_": lambda: ones().uniform_(-1, 3),
    "uniform_ of float64": lambda: ones().double().uniform_(to=4),
    "normal_": lambda: ones().normal_(1, 2),
    "exponential_": lambda: ones().exponential_(2.0),
    "geometric_": lambda: ones().geometric_(0.3),
    "log_normal_": lambda: ones().log_normal_(0.1, 0.3),
    "cauchy_": lambda: ones().cauchy_(1.0, 2.0).atan(),
    "bernoulli_": lambda: ones().bernoulli_(0.2),
    "bernoulli_ of tensors": lambda: ones().bernoulli_(torch.linspace(0, 1, SIZE)),
    "random_": lambda: ones().random_(6),
    "random_ from": lambda: ones().long().random_(3, 6),
    "random_ of bytes": lambda: ones().to(torch.uint8).random_(),
    "random_ of large numbers": lambda: ones().long().random_() / 2.0**62,
    "init.normal_": lambda: nn.init.normal_(ones(), 1.0, 3.0),
    "init.uniform_": lambda: nn.init.uniform_(ones(), 1.0, 3.0),
    "dropout": lambda: F.dropout(ones(), 0.3),
    "dropout of everything": lambda: F.dropout(ones(), 1.0),
    "dropout in place": lambda: F.dropout(ones(), 0.3, inplace=True),
    "alpha dropout": lambda: F.alpha_dropout(ones(), 0.3, True),
    "feature alpha dropout": lambda: F.feature_alpha_dropout(torch.ones(SIZE, 2, 1), 0.3, True),
    "native dropout": lambda: torch.native_dropout(ones(), 0.3, True)[0],
    "native dropout's mask": lambda: torch.native_dropout(ones(), 0.3, True)[1],
    "rrelu": lambda: F.rrelu(-ones(), 0.1, 0.5, True),
    "rrelu in evaluation": lambda: F.rrelu(-ones(), 0.1, 0.5, False),
    "gumbel_softmax": lambda: F.gumbel_softmax(torch.tensor([0.0, 1.0]).expand(SIZE, 2), tau=0.5)[:, 0],
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_are_those_of_pytorch(name: str) -> None:
    with draws():
        ours = DISTRIBUTIONS[name]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = DISTRIBUTIONS[name]()
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    first, second = (each.double().flatten().sort().values for each in (ours, theirs))
    assert (first - second).abs().mean() <= 0.05 * second.std()  # the distance of two distributions


def test_channels_are_dropped_as_a_whole() -> None:
    with draws():
        for function, shape in (
            (F.dropout1d, (40, 30, 5)),
            (F.dropout2d, (40, 30, 2, 3)),
            (F.dropout3d, (40, 30, 2, 1, 2)),
        ):
            kept = function(torch.ones(*shape), 0.5).flatten(2)
            assert set(kept.unique().tolist()) == {0.0, 2.0}
            assert (kept == kept[..., :1]).all()
        rows = F.dropout1d(torch.ones(50, 6), 0.5)  # a sample of 50 channels
        assert (rows == rows[:, :1]).all()


def test_permutations() -> None:
    with draws():
        drawn = [torch.randperm(50).tolist() for _ in range(3)]
    assert all(sorted(each) == list(range(50)) for each in drawn)
    assert drawn[0] != drawn[1] != drawn[2]


def test_attention_is_the_definition() -> None:
    """With values of a unit matrix attention returns its weights, which a draw of the mask then drops."""
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5), torch.eye(6).expand(2, 3, 6, 6)
    mask = torch.rand(4, 6) < 0.6
    mask[2] = False
    choices: list[dict[str, Any]] = [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": mask}]
    for options in [*choices, {"attn_mask": torch.randn(4, 6)}]:
        exact = F.scaled_dot_product_attention(query, key, value, **options)
        with draws():
            dropped = F.scaled_dot_product_attention(query, key, value, dropout_p=0.5, **options)
        kept = dropped != 0
        torch.testing.assert_close(dropped[kept], 2 * exact[kept])
        if not options:
            assert 0.3 < kept.double().mean() < 0.7
    grouped = torch.randn(2, 1, 6, 5)
    with draws():
        several = F.scaled_dot_product_attention(query, grouped, value[:, :1], dropout_p=1e-9, enable_gqa=True)
    torch.testing.assert_close(several, F.scaled_dot_product_attention(query, grouped, value[:, :1], enable_gqa=True))


def test_calls_steps_and_streams_differ_and_repeat() -> None:
    def numbers(step: int, stream: Stream = Stream.DROPOUT) -> list[float]:
        with Draws(Key(0, 1, torch.tensor(3)), step, stream):
            return [float(torch.rand(())) for _ in range(700)]

    drawn = numbers(0) + numbers(1) + numbers(0, Stream.EVALUATION)
    assert len(set(drawn)) > len(drawn) - 5  # of 24 bits each
    assert numbers(1) == drawn[700:1400]


def test_a_generator_that_is_given_is_used() -> None:
    with draws():
        drawn = torch.rand(3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(1)))


def test_options_of_functions_that_make_tensors() -> None:
    with draws():
        out = torch.empty(0)
        assert torch.rand(2, 3, out=out) is out
        assert out.shape == (2, 3)
        assert torch.randn(3, requires_grad=True).requires_grad
        assert torch.rand(3, dtype=torch.float16).dtype is torch.float16
        assert torch.rand([2, 3]).shape == torch.rand(torch.Size((2, 3))).shape == (2, 3)


def test_wrong_probabilities_are_refused() -> None:
    with draws(), pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(torch.ones(3), 1.5)


def test_attention_without_dropout_needs_no_draws() -> None:
    """Models with it would be slower for nothing."""
    x = torch.ones(2, 3, 8)
    for dropout, calls in ((0.0, 0), (0.5, 1)):
        layer = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True)
        for training in (True, False):
            with Listener(Key(0, 1, torch.tensor(3)), 0) as listener:
                layer.train(training)(x, x, x, need_weights=False)
            assert listener.calls == calls * training
            assert listener.heard == bool(listener.calls)
