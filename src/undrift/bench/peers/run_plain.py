"""The plain loop: the baseline of all ratios."""

import sys

import plain_loop
import torch
import torch_side
from job import Clock, Job, answer

job = Job.read(sys.argv[1])
torch.set_num_threads(job.threads)
x, y = torch_side.tensors(job.samples(), job.device)
model = torch_side.start(job.net, x.shape[2:], job.parameters()).to(job.device)
if job.algorithm == "scaffold":
    loop = plain_loop.Scaffold(model, job.lr, job.batch_size, job.clients)
else:
    loop = plain_loop.FedAvg(model, job.lr, job.batch_size)
compute = torch_side.compute(job.precision)

clock = Clock(torch_side.waiting(job.device))
for cohort in job.cohorts:
    loop.round(cohort, x, y, compute)
    clock.lap()
accuracy = torch_side.accuracy(model, job.test())
answer(job, clock, accuracy, ["torch"], device_bytes=torch_side.peak(job.device))
