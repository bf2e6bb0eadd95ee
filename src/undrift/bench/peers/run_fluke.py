"""fluke: everything in memory, no evaluation, no persistent clients unless they have a state."""

import importlib
import sys

import torch
import torch_side
from job import Clock, Job, answer

try:
    importlib.import_module("torchvision")
except RuntimeError:
    # torchvision's compiled operators need PyTorch with CUDA. fluke imports it for networks and data sets that are not
    # used here, so declaring the operators is enough.
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver

job = Job.read(sys.argv[1])
torch.set_num_threads(job.threads)
x, y = torch_side.tensors(job.samples())
model = torch_side.start(job.net, x.shape[2:], job.parameters())


class Timer(FederationObserver):
    def start_round(self, round, global_model):
        clock.start()

    def end_round(self, round):
        clock.stop()


FlukeENV().set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
loaders = [
    FastDataLoader(*own, num_labels=10, batch_size=job.batch_size, shuffle=True) for own in zip(x, y, strict=True)
]
settings = DDict(
    model=model,
    client=DDict(
        batch_size=job.batch_size,
        local_epochs=1,
        loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", lr=job.lr),
        persistency=job.algorithm == "scaffold",  # without it, clients keep no model of their own, which is faster
        scheduler=DDict(name="StepLR", step_size=1, gamma=1),
    ),
    server=DDict(weighted=False),
)
container = DummyDataContainer(loaders, [None] * job.clients, None, 10)
algorithm = {"fedavg": FedAVG, "scaffold": SCAFFOLD}[job.algorithm](job.clients, DataSplitter(container), settings)
cohorts = iter(job.cohorts)
algorithm.server.get_eligible_clients = lambda share: [algorithm.clients[i] for i in next(cohorts)]

clock = Clock()
algorithm.set_callbacks(Timer())
algorithm.run(job.rounds, len(job.cohorts[0]) / job.clients)
answer(job, clock, torch_side.accuracy(algorithm.server.model, job.test()), ["fluke-fl", "torch"])
