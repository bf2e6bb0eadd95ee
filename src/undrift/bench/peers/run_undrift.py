"""undrift as a user calls it: with the engine it chooses, or compiled from scratch."""

import os
import sys
import tempfile

import numpy as np
import torch
import torch_side
from job import Clock, Job, answer

import undrift as ud

job = Job.read(sys.argv[1])
torch.set_num_threads(job.threads)
x, y = job.samples()
rows = np.arange(y.size)
data = ud.FederatedData.from_rows(x.reshape(-1, *x.shape[2:]), y.reshape(-1), rows, [y.shape[1]] * len(y), classes=10)
model = torch_side.start(job.net, x.shape[2:], job.parameters())

code = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = code.name  # an empty cache: compiling is measured
clock = Clock(torch_side.waiting(job.device))
run = ud.simulate(
    job.algorithm,
    model,
    data,
    rounds=job.rounds,
    cohort=job.cohorts,
    batch_size=job.batch_size,
    lr=job.lr,
    eval_every=job.rounds,
    device=job.device,
    engine=job.engine,
    callbacks=[lambda row, run: clock.lap()],
    **({} if job.precision is None else {"precision": job.precision}),
)
model.load_state_dict(run.parameters)
accuracy = torch_side.accuracy(model, job.test())
peak = torch_side.peak(job.device)
answer(job, clock, accuracy, ["undrift", "torch"], device_bytes=peak, note=run.engine)
