"""FedJAX: federated averaging on its `jit` backend, the fastest of its backends on a CPU."""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax_side
import numpy as np
from job import Clock, Job, answer

if not hasattr(jax, "tree_map"):  # FedJAX 0.0.17 calls it by the name that newer JAX has dropped
    jax.tree_map = jax.tree_util.tree_map

import fedjax

job = Job.read(sys.argv[1])
x, y = job.samples()
x, y = jax_side.images(x), y.astype(np.int32)
gradient = jax.grad(lambda p, batch, key: jax_side.loss(job.net, p, batch["x"], batch["y"], key=key))
batches = fedjax.ShuffleRepeatBatchHParams(batch_size=job.batch_size, num_epochs=1, drop_remainder=False, seed=0)
clients = [fedjax.ClientDataset({"x": own, "y": labels}) for own, labels in zip(x, y, strict=True)]

with fedjax.for_each_client_backend("jit"):
    sgd = fedjax.optimizers.sgd
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(gradient, sgd(job.lr), sgd(1.0), batches)
    state = algorithm.init(jax_side.parameters(job.parameters()))
    clock = Clock()
    for number, cohort in enumerate(job.cohorts):
        keys = jax.random.split(jax.random.PRNGKey(number), len(cohort))
        state, _ = algorithm.apply(state, [(i, clients[i], key) for i, key in zip(cohort, keys, strict=True)])
        jax.block_until_ready(state.params)
        clock.lap()
answer(job, clock, jax_side.accuracy(job.net, state.params, job.test()), ["fedjax", "jax"])
