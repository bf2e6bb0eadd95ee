"""The LSTM of matrix products is PyTorch's, and the models of text read what they should."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from undrift import models
from undrift.models.lstm import LSTM


def copied(theirs: nn.LSTM, layer: int, ours: LSTM) -> None:
    """PyTorch's weights of a layer."""
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(getattr(theirs, f"{name}_l{layer}"))


def test_two_layers_are_pytorchs_with_the_same_weights() -> None:
    torch.manual_seed(0)
    theirs = nn.LSTM(3, 5, num_layers=2, batch_first=True).double()
    layers = [LSTM(3, 5).double(), LSTM(5, 5).double()]
    ours = nn.Sequential(*layers)
    for number, layer in enumerate(layers):
        copied(theirs, number, layer)
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    target = torch.randn(4, 7, 5, dtype=torch.float64)
    expected, outputs = theirs(x)[0], ours(x)
    assert_close(outputs, expected, rtol=0, atol=1e-12)

    def gradients(out: Tensor, module: nn.Module) -> list[Tensor]:
        return list(torch.autograd.grad((out - target).square().sum(), list(module.parameters())))

    assert_close(gradients(outputs, ours), gradients(expected, theirs), rtol=0, atol=1e-12)


def test_one_bias_is_the_sum_of_two() -> None:
    torch.manual_seed(0)
    two, one = LSTM(3, 5).double(), LSTM(3, 5, biases=1).double()
    assert two.bias_hh is not None
    state = {k: v for k, v in two.state_dict().items() if k != "bias_hh"}
    one.load_state_dict(state | {"bias_ih": two.bias_ih + two.bias_hh})
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    assert_close(one(x), two(x), rtol=0, atol=1e-14)


def test_the_next_character_depends_on_all_before_it() -> None:
    model = models.build("char-lstm", (6,), 9).double()
    text = torch.tensor([[1, 2, 3, 4, 5, 6]])
    for position in range(6):
        other = text.clone()
        other[0, position] = 8
        assert not torch.equal(model(other), model(text))


def test_the_next_word_depends_on_none_after_it() -> None:
    model = models.build("word-lstm", (5,), 9).double()
    text = torch.tensor([[1, 2, 3, 4, 5]])
    other = torch.tensor([[1, 2, 8, 4, 5]])
    same = (model(other) == model(text)).all(-1)[0]
    assert same.tolist() == [True, True, False, False, False]


class TestPairs:
    def outputs(self, *pairs: list[list[int]]) -> list[Tensor]:
        model = models.build("pair-lstm", (2, 4), 2)
        return [model(torch.tensor([pair]))[0] for pair in pairs]

    def test_padding_at_the_end_does_not_matter(self) -> None:
        short, long = self.outputs([[7, 8], [9, 0]], [[7, 8, 0, 0, 0], [9, 0, 0, 0, 0]])
        assert_close(long, short, rtol=0, atol=1e-6)

    def test_every_word_of_both_questions_matters(self) -> None:
        first, *others = self.outputs(
            [[7, 8, 0], [5, 6, 4]], [[3, 8, 0], [5, 6, 4]], [[7, 3, 0], [5, 6, 4]], [[7, 8, 0], [5, 6, 3]]
        )
        assert all(not torch.equal(first, other) for other in others)

    def test_rare_words_are_one_unknown_word(self) -> None:
        known, last, beyond = self.outputs([[7, 19_998], [5, 0]], [[7, 19_999], [5, 0]], [[7, 10**6], [5, 0]])
        assert torch.equal(last, beyond)
        assert not torch.equal(known, last)

    def test_an_empty_question_is_allowed(self) -> None:
        assert self.outputs([[0, 0], [5, 0]])[0].isfinite().all()


@pytest.mark.parametrize("name", ["char-lstm", "word-lstm"])
def test_unknown_tokens_are_an_error(name: str) -> None:
    with pytest.raises(IndexError):
        models.build(name, (3,), 5)(torch.tensor([[1, 2, 5]]))
