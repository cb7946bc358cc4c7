"""A parameter server: the whole model lives on one worker, others send it their batches and train it.

A trainer sees the server's object by a reference only. It runs methods on it where it is, collects references to its
parameters, and steps them with one distributed optimizer.
"""

import threading

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.distributed.optim import DistributedOptimizer

from tutorials import numbers

SERVER = "parameter_server"
FEATURES, HIDDEN, CLASSES = 8, 16, 4
BATCH, BATCHES, EPOCHS, RATE = 16, 4, 4, 0.5


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(FEATURES, HIDDEN)
        self.scores = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        return F.log_softmax(self.scores(torch.tanh(self.hidden(x))), dim=1)


class Server(nn.Module):
    """Has the model, and looks after it for all trainers."""

    def __init__(self, devices=0):
        super().__init__()
        self.device = torch.device("cuda:0" if devices else "cpu")
        self.model = numbers.fill(Classifier(), seed=3).to(self.device)

    def forward(self, batch):
        # What is sent has to be in main memory.
        return self.model(batch.to(self.device)).to("cpu")

    def gradients_in(self, context_id):
        """What a context has gathered so far: gradients by parameter."""
        found = dist_autograd.get_gradients(context_id)
        return {parameter.to("cpu"): gradient.to("cpu") for parameter, gradient in found.items()}

    def parameter_rrefs(self):
        return [rpc.RRef(parameter) for parameter in self.model.parameters()]


_server = None
_lock = threading.Lock()


def the_server(devices=0):
    """The one server of this process. Whoever asks first makes it."""
    global _server
    with _lock:
        if _server is None:
            _server = Server(devices)
        return _server


def call_method(method, rref, *args, **kwargs):
    """Runs on the owner of the reference."""
    return method(rref.local_value(), *args, **kwargs)


def remote_method(method, rref, *args, **kwargs):
    args = [method, rref] + list(args)
    return rpc.rpc_sync(rref.owner(), call_method, args=args, kwargs=kwargs)


class RemoteNet(nn.Module):
    """The model as a trainer has it: all of it is on the server."""

    def __init__(self, devices=0):
        super().__init__()
        self.server_rref = rpc.remote(SERVER, the_server, args=(devices,))

    def parameter_rrefs(self):
        return remote_method(Server.parameter_rrefs, self.server_rref)

    def forward(self, batch):
        return remote_method(Server.forward, self.server_rref, batch)


def batches():
    """The class of a row is the largest of its first numbers, as far as there are classes."""
    for number in range(BATCHES):
        data = numbers.pattern(BATCH, FEATURES, seed=number * 53, scale=2.0)
        yield data, data[:, :CLASSES].argmax(dim=1)


def train(net):
    optimizer = DistributedOptimizer(optim.SGD, net.parameter_rrefs(), lr=RATE)
    losses, sizes = [], []
    for epoch in range(EPOCHS):
        for data, target in batches():
            with dist_autograd.context() as context_id:
                loss = F.nll_loss(net(data), target)
                dist_autograd.backward(context_id, [loss])
                gradients = remote_method(Server.gradients_in, net.server_rref, context_id)
                assert gradients != {}, "no gradients have come"
                sizes.append(sorted(gradient.norm().item() for gradient in gradients.values()))
                optimizer.step(context_id)
                losses.append(loss.item())
        print("epoch %d: loss %.4f" % (epoch, losses[-1]), flush=True)
    return losses, sizes


def accuracy(net):
    with torch.no_grad():
        right = sum((net(data).argmax(dim=1) == target).sum().item() for data, target in batches())
    return right / (BATCH * BATCHES)


def run_parameter_server(rank, world_size):
    # It has nothing to do but to answer, until all trainers are done.
    rpc.init_rpc(SERVER, rank=rank, world_size=world_size)
    rpc.shutdown()


def run_trainer(rank, world_size):
    rpc.init_rpc("trainer_%d" % rank, rank=rank, world_size=world_size)
    net = RemoteNet()
    losses, sizes = train(net)
    right = accuracy(net)
    rpc.shutdown()
    return {"losses": losses, "gradients": sizes, "accuracy": right}


def run_worker(rank, world_size):
    if rank == 0:
        return run_parameter_server(rank, world_size)
    return run_trainer(rank, world_size)
