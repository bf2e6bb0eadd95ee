"""Flower's simulation on Ray: message API, one worker per core, samples and model kept by every worker.

Its server draws the cohorts, because its client numbers differ from run to run.
"""

import logging
import os
import sys

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}

import torch_side
from flower_client import client_app
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import Clock, Job, answer

logging.getLogger("flwr").setLevel(logging.WARNING)
job = Job.read(sys.argv[1])
cohort = len(job.cohorts[0])
model = torch_side.start(job.net, job.arrays["x"].shape[2:], job.parameters())
clock = Clock()
app = ServerApp()


@app.main()
def main(grid, context):
    def after(round, arrays):
        """Called before the first round and after every one."""
        if round:
            clock.stop()
        if round == job.rounds:
            model.load_state_dict(arrays.to_torch_state_dict())
        clock.start()

    strategy = FedAvg(
        fraction_train=cohort / job.clients,
        fraction_evaluate=0.0,
        min_train_nodes=cohort,
        min_available_nodes=job.clients,
    )
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=job.rounds, evaluate_fn=after)


run_simulation(
    app,
    client_app(sys.argv[1]),
    num_supernodes=job.clients,
    backend_config={
        "client_resources": {"num_cpus": job.threads, "num_gpus": 0.0},
        "init_args": {"num_cpus": job.threads * job.processes, "log_to_driver": False, "logging_level": "ERROR"},
    },
)
answer(job, clock, torch_side.accuracy(model, job.test()), ["flwr", "ray", "torch"])
