"""JAX written for the purpose: a round is one compiled program, all clients under `vmap`, their steps in a `scan`."""

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


def step(own_x, own_y, p, taken):
    rows, key = taken
    near = [v.astype(kind) for v in p]
    slope = jax.grad(lambda q: jax_side.loss(job.net, q, own_x[rows].astype(kind), own_y[rows], key))(near)
    return [v - job.lr * s.astype(v.dtype) for v, s in zip(p, slope, strict=True)], None


def train(p, client, key):
    """One epoch; the last short batch is a step of its own, so that nothing is padded."""
    shuffling, *keys = jax.random.split(key, 2 + steps)
    order = jax.random.permutation(shuffling, size)
    full = order[: steps * job.batch_size].reshape(steps, job.batch_size)
    turn = partial(step, x[client], y[client])
    p, _ = jax.lax.scan(turn, p, (full, jnp.stack(keys[:steps])))
    return turn(p, (order[steps * job.batch_size :], keys[-1]))[0] if rest else p


@jax.jit
def play(p, cohort, key):
    trained = jax.vmap(train, (None, 0, 0))(p, cohort, jax.random.split(key, len(cohort)))
    return [v.mean(0) for v in trained]


p = jax_side.parameters(job.parameters())
clock = Clock(lambda: jax.block_until_ready(p))
for number, cohort in enumerate(job.cohorts):
    p = play(p, jnp.asarray(cohort), jax.random.PRNGKey(number))
    clock.lap()
peak = jax.devices()[0].memory_stats()
answer(job, clock, jax_side.accuracy(job.net, p, job.test()), ["jax"], peak and peak.get("peak_bytes_in_use"))
