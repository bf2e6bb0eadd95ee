"""One file for all systems: the same samples, the same split, the same initial weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from undrift.bench.peers import torch_side
from undrift.bench.workloads import Workload
from undrift.data import cache, is_local
from undrift.data.catalogue import CATALOGUE, Images

_TEST_SAMPLES = 10_000


def export(work: Workload, file: Path) -> None:
    """Write the samples of a workload, [clients, samples, ...], and its initial parameters.

    If the data set is not in the cache, the samples are random and there is no test set: time does not depend on the
    pixels, accuracy would.
    """
    arrays = _real(work) if is_local(work.data) else _random(work)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parameters = torch_side.build(work.net, work.shape).parameters()
    initial = {f"parameter{number:02d}": p.detach().numpy() for number, p in enumerate(parameters)}
    content: dict[str, Any] = arrays | _scale(work) | initial
    np.savez(file, **content)


def cohorts(work: Workload, rounds: int) -> list[list[int]]:
    """The clients of every round."""
    rng = np.random.default_rng(0)
    return [rng.choice(work.clients, work.cohort, replace=False).tolist() for _ in range(rounds)]


def _scale(work: Workload) -> dict[str, Any]:
    """Mean and deviation of the pixels per channel, for normalisation."""
    images = CATALOGUE[work.data].content
    assert isinstance(images, Images)
    return {name: np.float32(getattr(images, name)).reshape(-1, 1, 1) for name in ("mean", "std")}


def _real(work: Workload) -> dict[str, Any]:
    """Samples in random order, split among the clients, and the test set."""
    arrays = cache.arrays(work.data)
    rows = np.random.default_rng(0).permutation(len(arrays["train_y"]))[: work.clients * work.samples]
    rows = rows.reshape(work.clients, work.samples)
    return {
        "x": arrays["train_x"][rows],
        "y": arrays["train_y"][rows].astype(np.int64),
        "test_x": arrays["test_x"][:_TEST_SAMPLES],
        "test_y": arrays["test_y"][:_TEST_SAMPLES].astype(np.int64),
    }


def _random(work: Workload) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    count = (work.clients, work.samples)
    return {
        "x": rng.integers(0, 256, (*count, *work.shape), dtype=np.uint8),
        "y": rng.integers(0, 10, count, dtype=np.int64),
    }
