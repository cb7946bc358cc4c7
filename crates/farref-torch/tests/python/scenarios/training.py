"""Training that must come to the same numbers as in one process: layers on two Python workers and on the peer."""

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch.distributed.optim import DistributedOptimizer

import peer_api
import worker_api

STEPS, RATE, SIZE = 25, 0.2, 3


class SGD(torch.optim.SGD):
    """Steps in a way of its own."""


def main(group):
    peer, me, other = group.peer, group.name, group.pythons[1]
    torch.manual_seed(7)
    layers = {worker: (torch.randn(SIZE, SIZE) / 2, torch.zeros(SIZE)) for worker in [me, peer, other]}
    x, target = torch.randn(32, SIZE), torch.tanh(torch.randn(32, SIZE))
    for worker, (weight, bias) in layers.items():
        group.ask(worker, "set_linear", weight, bias)
    # Python's parameters are changed by DistributedOptimizer, the peer's by itself.
    parameters = group.ask(me, "parameter_rrefs") + group.ask(other, "parameter_rrefs")
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=RATE)
    # A class that only has the name of one that the peer has.
    theirs = group.ask(peer, "parameter_rrefs")
    words = ["NotImplementedError", "scenarios.training.SGD"]
    group.checks.error("somebody else's SGD", None, words, lambda: DistributedOptimizer(SGD, theirs, lr=RATE))
    del theirs
    losses = []
    for _ in range(STEPS):
        with dist_autograd.context() as context_id:
            hidden = torch.relu(worker_api.linear(x))
            hidden = rpc.rpc_sync(peer, peer_api.linear_then, args=(hidden, other, "worker_api.linear", []))
            loss = ((hidden - target) ** 2).mean()
            losses.append(loss.item())
            dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)
            group.ask(peer, "step", context_id, RATE)
    got = {worker: group.ask(worker, "parameters") for worker in layers}
    del optimizer, parameters

    local = {worker: [t.clone().requires_grad_() for t in pair] for worker, pair in layers.items()}
    sgd = torch.optim.SGD([t for pair in local.values() for t in pair], lr=RATE)
    expected = []
    for _ in range(STEPS):
        hidden = x
        for worker in [me, peer]:
            hidden = torch.relu(hidden @ local[worker][0] + local[worker][1])
        loss = ((hidden @ local[other][0] + local[other][1] - target) ** 2).mean()
        expected.append(loss.item())
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    group.checks.close("all losses", torch.tensor(losses), torch.tensor(expected))
    group.checks.that("the loss falls", losses[-1] < losses[0] * 0.9, losses)
    for worker, (weight, bias) in local.items():
        group.checks.close("weight of " + worker, got[worker]["weight"], weight.detach())
        group.checks.close("bias of " + worker, got[worker]["bias"], bias.detach())
    group.checks.note("losses", [losses[0], losses[-1]])
