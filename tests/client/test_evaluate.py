"""How samples are evaluated together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from undrift.client.evaluate import _block_size


@pytest.mark.parametrize(("memory", "samples"), [(16 << 30, 2048), (139 << 30, 10240)])
def test_a_gpu_with_ample_memory_takes_larger_blocks(
    monkeypatch: pytest.MonkeyPatch, memory: int, samples: int
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=memory))
    assert _block_size(torch.device("cuda")) == samples
    assert _block_size(torch.device("cpu")) == 128
