"""pfl: one process, or under torchrun one per core."""

import itertools
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
import torch_side
from job import Clock, Job, answer
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

job = Job.read(sys.argv[1])
torch.set_num_threads(job.threads)
np.random.seed(0)
x, y = torch_side.tensors(job.samples())


class Net(torch.nn.Module):
    """The net with the methods that pfl needs."""

    def __init__(self):
        super().__init__()
        self.net = torch_side.start(job.net, x.shape[2:], job.parameters())

    def loss(self, inputs, targets, is_eval=False):
        self.train(not is_eval)
        return F.cross_entropy(self.net(inputs), targets)

    def metrics(self, inputs, targets, is_eval=True):
        return {}


class Timer(TrainingProcessCallback):
    def on_train_begin(self, *, model):
        clock.start()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        clock.lap()
        return False, Metrics()


net = Net()
model = PyTorchModel(
    net, local_optimizer_create=torch.optim.SGD, central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0)
)
members = itertools.chain.from_iterable(job.cohorts)
data = FederatedDataset.from_slices({i: [x[i], y[i]] for i in range(job.clients)}, lambda: next(members))
common = {
    "central_num_iterations": job.rounds,
    "evaluation_frequency": 10**9,
    "train_cohort_size": len(job.cohorts[0]),
    "val_cohort_size": 0,
}
if job.algorithm == "scaffold":
    storage = InMemoryUserStateStorage()
    algorithm, parameters = (
        SCAFFOLD(),
        SCAFFOLDParams(
            **common, population=job.clients, use_gradient_as_control_variate=False, user_state_storage=storage
        ),
    )
else:
    algorithm, parameters = FederatedAveraging(), NNAlgorithmParams(**common)

clock = Clock()
algorithm.run(
    algorithm_params=parameters,
    backend=SimulatedBackend(training_data=data, val_data=data),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=job.lr, local_batch_size=job.batch_size
    ),
    model_eval_params=NNEvalHyperParams(local_batch_size=1000),
    callbacks=[Timer()],
    send_metrics_to_platform=False,
)
if os.environ.get("RANK", "0") == "0":
    answer(job, clock, torch_side.accuracy(net.net, job.test()), ["pfl", "torch"])
if torch.distributed.is_initialized():  # a process that just exits may abort the shutdown of another
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
