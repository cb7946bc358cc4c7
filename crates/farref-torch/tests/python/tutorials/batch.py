"""Calls that are answered together: a server that waits for the gradients of all trainers before it answers any.

Its function returns a future and gives its thread back, so that no thread waits for the slowest trainer. The trainers
compute with a copy of the model, which is the answer.
"""

import threading

import torch
import torch.distributed.rpc as rpc
import torch.nn as nn
import torch.nn.functional as F
from torch import optim

from tutorials import numbers

SERVER, TRAINER = "ps", "trainer%d"
FEATURES, CLASSES = 5, 3
BATCH, STEPS, RATE = 10, 15, 0.5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(FEATURES, 7)
        self.scores = nn.Linear(7, CLASSES)

    def forward(self, x):
        return self.scores(torch.tanh(self.hidden(x)))


class BatchServer:
    def __init__(self, trainers):
        self.model = numbers.fill(Model(), seed=9)
        self.lock = threading.Lock()
        self.future_model = torch.futures.Future()
        self.trainers, self.waiting = trainers, 0
        self.optimizer = optim.SGD(self.model.parameters(), lr=RATE, momentum=0.5)
        self.seen = []
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def get_model(self):
        return self.model

    @staticmethod
    @rpc.functions.async_execution
    def update_and_fetch(server_rref, gradients):
        self = server_rref.local_value()
        with self.lock:
            self.waiting += 1
            for parameter, gradient in zip(self.model.parameters(), gradients):
                parameter.grad += gradient
            future = self.future_model
            if self.waiting == self.trainers:
                for parameter in self.model.parameters():
                    parameter.grad /= self.trainers
                self.seen.append([parameter.grad.norm().item() for parameter in self.model.parameters()])
                self.waiting = 0
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
                self.future_model = torch.futures.Future()
                future.set_result(self.model)
        return future


class Trainer:
    def __init__(self, server_rref):
        self.server_rref = server_rref
        self.rank = rpc.get_worker_info().id

    def batches(self):
        """No two trainers have the same. The class of a row is its largest number of the first few."""
        for step in range(STEPS):
            data = numbers.pattern(BATCH, FEATURES, seed=self.rank * 59 + step * 17, scale=2.0)
            yield data, data[:, :CLASSES].argmax(dim=1)

    def train(self):
        losses = []
        model = self.server_rref.rpc_sync().get_model()
        for data, target in self.batches():
            loss = F.cross_entropy(model(data), target)
            losses.append(loss.item())
            model.zero_grad()
            loss.backward()
            model = rpc.rpc_sync(
                self.server_rref.owner(),
                BatchServer.update_and_fetch,
                args=(self.server_rref, [parameter.grad for parameter in model.parameters()]),
            )
        return losses


def run_trainer(server_rref):
    return Trainer(server_rref).train()


def run_server(trainers):
    server = BatchServer(len(trainers))
    server_rref = rpc.RRef(server)
    futures = [rpc.rpc_async(trainer, run_trainer, args=(server_rref,), timeout=0) for trainer in trainers]
    losses = torch.futures.wait_all(futures)
    print("the losses of the last batch: %s" % [one[-1] for one in losses], flush=True)
    weights = [parameter.detach().flatten().tolist() for parameter in server.model.parameters()]
    return {"losses": losses, "gradients": server.seen, "weights": weights}


def run_worker(rank, world_size):
    results = None
    if rank == 0:
        rpc.init_rpc(SERVER, rank=rank, world_size=world_size)
        results = run_server([TRAINER % trainer for trainer in range(1, world_size)])
    else:
        rpc.init_rpc(TRAINER % rank, rank=rank, world_size=world_size)
    rpc.shutdown()
    return results
