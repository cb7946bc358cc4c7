"""Pipeline parallelism: the first half of a model on one worker, the second on another, a batch cut into slices.

While one half works on a slice, the other has the one before. The slices themselves go from half to half as
references; the one who drives sees the last results only.
"""

import threading

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.nn as nn
from torch import optim
from torch.distributed.optim import DistributedOptimizer
from torch.distributed.rpc import RRef

from tutorials import numbers

FEATURES, HIDDEN, CLASSES = 6, 10, 3
BATCH, STEPS, RATE = 12, 6, 0.2
SPLITS = (1, 3, 6)


class Half(nn.Module):
    def __init__(self, device, layers):
        super().__init__()
        self._lock = threading.Lock()
        self.device = device
        self.layers = layers.to(device)

    def forward(self, x_rref):
        x = x_rref.to_here().to(self.device)
        with self._lock:
            out = self.layers(x)
        return out.cpu()

    def parameter_rrefs(self):
        return [RRef(parameter) for parameter in self.parameters()]


class FirstHalf(Half):
    def __init__(self, device, hidden=HIDDEN):
        layers = nn.Sequential(nn.Linear(FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, hidden))
        super().__init__(device, numbers.fill(layers, seed=6))


class SecondHalf(Half):
    def __init__(self, device, hidden=HIDDEN):
        layers = nn.Sequential(nn.Tanh(), nn.Linear(hidden, CLASSES))
        super().__init__(device, numbers.fill(layers, seed=8))


class TwoHalves(nn.Module):
    def __init__(self, split_size, workers, *args, **kwargs):
        super().__init__()
        self.split_size = split_size
        self.first_rref = rpc.remote(workers[0], FirstHalf, args=("cpu",) + args, kwargs=kwargs)
        self.second_rref = rpc.remote(workers[1], SecondHalf, args=("cpu",) + args, kwargs=kwargs)

    def forward(self, batch):
        outputs = []
        for x in batch.split(self.split_size, dim=0):
            x_rref = RRef(x)
            y_rref = self.first_rref.remote().forward(x_rref)
            outputs.append(self.second_rref.rpc_async().forward(y_rref))
        # In the order of the slices, when all are there.
        return torch.cat(torch.futures.wait_all(outputs))

    def parameter_rrefs(self):
        rrefs = []
        rrefs.extend(self.first_rref.remote().parameter_rrefs().to_here())
        rrefs.extend(self.second_rref.remote().parameter_rrefs().to_here())
        return rrefs


def run_master(slices):
    model = TwoHalves(BATCH // slices, ["worker1", "worker2"], hidden=HIDDEN)
    criterion = nn.MSELoss()
    optimizer = DistributedOptimizer(optim.SGD, model.parameter_rrefs(), lr=RATE)
    classes = torch.arange(BATCH).remainder(CLASSES).reshape(BATCH, 1)
    losses = []
    for step in range(STEPS):
        inputs = numbers.pattern(BATCH, FEATURES, seed=step * 31, scale=2.0)
        labels = torch.zeros(BATCH, CLASSES).scatter_(1, classes, 1)
        with dist_autograd.context() as context_id:
            outputs = model(inputs)
            loss = criterion(outputs, labels)
            dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)
            losses.append(loss.item())
    print("%d slices: loss %.4f" % (slices, losses[-1]), flush=True)
    return losses


def run_worker(rank, world_size):
    results = None
    if rank == 0:
        rpc.init_rpc("master", rank=rank, world_size=world_size)
        results = {"in %d slices" % slices: run_master(slices) for slices in SPLITS}
    else:
        rpc.init_rpc("worker%d" % rank, rank=rank, world_size=world_size)
    rpc.shutdown()
    return results
