"""The client of the Flower benchmark, in its own module so that a worker loads samples and model only once."""

from functools import cache

import torch
import torch.nn.functional as F
import torch_side
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from job import Job


@cache
def loaded(path):
    job = Job.read(path)
    torch.set_num_threads(job.threads)
    x, y = torch_side.tensors(job.samples())
    return job, x, y, torch_side.start(job.net, x.shape[2:], job.parameters())


def client_app(path):
    app = ClientApp()

    @app.train()
    def train(message, context):
        job, x, y, model = loaded(path)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        model.train()
        client = int(context.node_config["partition-id"])
        optimizer = torch.optim.SGD(model.parameters(), lr=job.lr)
        for rows in torch.randperm(len(x[client])).split(job.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(x[client, rows]), y[client, rows]).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(x[client])})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return app
