"""A Hugging Face transformer with LoRA adapters, trained by any algorithm; only adapters and head travel.

    pip install undrift transformers peft
    python examples/lora.py

The model is a tiny one with random weights, so that nothing is downloaded and the example takes seconds. For a real
one, give `get_peft_model` what ``AutoModelForSequenceClassification.from_pretrained(NAME, num_labels=2)`` returns, and
let `clients` return the token numbers of your sites, padded to one length.
"""

from __future__ import annotations

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import undrift as ud

VOCABULARY, LENGTH, PADDING = 50, 12, 0


def model() -> nn.Module:
    """The base model with adapters: its own parameters are frozen, so that they stay out of every message."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        attn_implementation="eager",  # others look at the mask's values, which keeps clients from training together
    )
    adapters = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, target_modules=["query", "value"])
    return get_peft_model(BertForSequenceClassification(config), adapters)


class Classifier(nn.Module):
    """What undrift calls: a batch of token numbers to logits; padding is masked."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.inner(input_ids=tokens, attention_mask=(tokens != PADDING).long()).logits
        return output


def clients(count: int = 6, samples: int = 40) -> dict[str, tuple[Tensor, Tensor]]:
    """Texts of a few sites: whether a text holds the word 7. Sites write different words."""
    draw = torch.Generator().manual_seed(1)
    found = {}
    for number in range(count):
        low = 1 + 3 * number
        tokens = torch.randint(low, low + 20, (samples, LENGTH), generator=draw)
        labels = torch.arange(samples) % 2
        tokens[tokens == 7] = 8
        tokens[labels == 1, 2] = 7
        found[f"site {number}"] = tokens, labels
    return found


def main(algorithm: str = "scaffold", rounds: int = 10) -> ud.Run:
    data = clients()
    test = data.pop("site 5")
    local = {"epochs": 2, "batch_size": 8, "optimizer": "adam", "lr": 0.01}
    run = ud.simulate(algorithm, Classifier(model()), data, test=test, rounds=rounds, **local)
    whole = sum(parameter.nbytes for parameter in run.model.parameters())
    sent = sum(parameter.nbytes for parameter in run.parameters.values())
    print(run.history[["round", "loss", "accuracy", "bytes_up"]].tail(1).to_string(index=False))
    print(f"{sent / whole:.1%} of the model is trained, kept by the server and sent; engine: {run.engine}")
    run.model.inner.save_pretrained("adapters")  # as peft stores them
    return run


if __name__ == "__main__":
    main()
