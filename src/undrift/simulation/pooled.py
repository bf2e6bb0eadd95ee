"""Settings of a run on the pooled data, from those of the federated runs that it is a reference for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from undrift.data.federated import FederatedData
from undrift.simulation import cohort
from undrift.simulation.arguments import Objects
from undrift.simulation.options import Options


def pooled_options(options: Options, data: FederatedData, epochs: int | None) -> Options:
    """A round is an epoch; all of them together are as many passes over the samples as the clients make."""
    rounds = epochs or max(1, round(passes(options, data)))
    return replace(
        options,
        rounds=rounds,
        epochs=1,
        steps=None,
        cohort=None,
        eval_every=min(options.eval_every, rounds),
        server_lr=1.0,
        weighting="samples",
        target=None,
        patience=None,
        buffers="averaged",
        diagnostics=(),
        place="local",
        actors=None,
        actor_threads=1,
        address=None,
    )


def pooled_objects(objects: Objects) -> Objects:
    """Without what changes the updates of clients."""
    return replace(objects, plugins=(), aggregate="mean", compress=None, privacy=None, attack=None)


def passes(options: Options, data: FederatedData) -> float:
    """How often, on average, the clients of all rounds together use a sample."""
    sizes = data.sizes.astype(np.float64)
    if options.steps is None:
        used = options.epochs * sizes
    else:
        used = options.steps * (sizes if options.batch_size is None else np.minimum(options.batch_size, sizes))
    count = cohort.size(options, len(data))
    if count is None:
        return float(sum(used[members].sum() for members in options.cohort) / sizes.sum())  # type: ignore[union-attr]
    return float(options.rounds * count / len(data) * used.sum() / sizes.sum())
