"""Classification of pairs of questions: do they mean the same?"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undrift.models.lstm import LSTM

_WORDS, _UNITS = 20_000, 128


class PairLSTM(nn.Module):
    """Both questions are read by the same LSTM; each is represented by the state after its last word."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, _UNITS)
        self.lstm = nn.Sequential(LSTM(_UNITS, _UNITS), LSTM(_UNITS, _UNITS))
        self.linear_1 = nn.Linear(4 * _UNITS, 128)
        self.linear_2 = nn.Linear(128, 64)
        self.classifier = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:  # [B, 2, T] -> [B, classes]
        words = x.flatten(0, 1)  # [2B, T]
        states = self.lstm(self.embedding(words.clamp_max(_WORDS - 1)))
        last = (words != 0).sum(1, keepdim=True).clamp_min(1) - 1
        at_last = torch.arange(words.shape[1], device=x.device) == last  # [2B, T]
        first, second = (states * at_last.unsqueeze(-1)).sum(1).unflatten(0, (-1, 2)).unbind(1)
        pair = torch.cat([first, second, (first - second).abs(), first * second], -1)
        out: Tensor = self.classifier(F.relu(self.linear_2(F.relu(self.linear_1(pair)))))
        return out


def pair_lstm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Pairs of questions (QQP, as FedPGVC): two LSTM layers, two linear layers and a classifier; samples [2, length].

    FedPGVC names these layers and no sizes; chosen here: embedding and LSTM of 128, linear layers of 128 and 64 on
    [u, v, |u − v|, u v], the features of GLUE's baseline (Wang et al., 2018). Words are numbered by decreasing
    frequency; 0 pads a question at its end, and all from 19 999 on are one unknown word.
    """
    if len(shape) != 2 or shape[0] != 2 or shape[1] < 1:
        raise ValueError(f"model 'pair-lstm' needs samples [2, length] of token numbers, got {shape}")
    return PairLSTM(classes)
