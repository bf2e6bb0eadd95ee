"""Plain JAX: a round is one compiled program, all clients under `vmap`, their steps in a `scan`."""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import jax_side
import numpy as np
from job import Clock, Job, answer

job = Job.read(sys.argv[1])
assert job.device == "cpu" or jax.default_backend() == "gpu", f"error: this JAX has no GPU, only {jax.devices()}"
if job.precision:
    jax.config.update("jax_default_matmul_precision", {"fp32": "highest"}.get(job.precision, "tensorfloat32"))
kind = jnp.bfloat16 if job.precision == "bf16" else jnp.float32
x, y = job.samples()
x, y = jnp.asarray(jax_side.images(x)), jnp.asarray(y.astype(np.int32))
size = y.shape[1]
steps, rest = divmod(size, job.batch_size)


def step(own_x, own_y, p, batch):
    rows, key = batch
    cast = [v.astype(kind) for v in p]
    gradient = jax.grad(lambda q: jax_side.loss(job.net, q, own_x[rows].astype(kind), own_y[rows], key=key))(cast)
    return [v - job.lr * g.astype(v.dtype) for v, g in zip(p, gradient, strict=True)], None


def train(p, client, key):
    """One epoch; the last short batch is a step of its own, so that nothing is padded."""
    shuffling, *keys = jax.random.split(key, 2 + steps)
    order = jax.random.permutation(shuffling, size)
    full = order[: steps * job.batch_size].reshape(steps, job.batch_size)
    client_step = partial(step, x[client], y[client])
    p, _ = jax.lax.scan(client_step, p, (full, jnp.stack(keys[:steps])))
    return client_step(p, (order[steps * job.batch_size :], keys[-1]))[0] if rest else p


@jax.jit
def train_round(p, cohort, key):
    trained = jax.vmap(train, (None, 0, 0))(p, cohort, jax.random.split(key, len(cohort)))
    return [v.mean(0) for v in trained]


p = jax_side.parameters(job.parameters())
clock = Clock(lambda: jax.block_until_ready(p))
for number, cohort in enumerate(job.cohorts):
    p = train_round(p, jnp.asarray(cohort), jax.random.PRNGKey(number))
    clock.lap()
peak = jax.devices()[0].memory_stats()
accuracy = jax_side.accuracy(job.net, p, job.test())
answer(job, clock, accuracy, ["jax"], device_bytes=peak and peak.get("peak_bytes_in_use"))
