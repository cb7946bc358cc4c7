"""What programs write that do not know what they hand on: `*args`, methods by name, values of several types,
optimizers of parameters wherever they are, functions that return futures."""

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch.distributed.optim import DistributedOptimizer
from torch.distributed.optim.optimizer import _local_optimizer_step, _new_local_optimizer

import peer_api
import worker_api


def main(group):
    check, peer, me = group.checks, group.peer, group.name

    # Arguments without number.
    counted = rpc.rpc_sync(peer, peer_api.count_arguments, args=(1, 2, 3), kwargs={"x": 4, "y": 5})
    check.equal("*args and **kwargs", counted, [1, 2, ["x", "y"]])
    check.equal("none of them", rpc.rpc_sync(peer, peer_api.count_arguments, kwargs={"first": 7}), [7, 0, []])
    doubled = lambda: rpc.rpc_sync(peer, peer_api.count_arguments, args=(1,), kwargs={"first": 2})
    check.error("one of them twice", "TypeError", ["first"], doubled)

    # A method of an object by the function that it is.
    counter = rpc.remote(peer, peer_api.Counter, args=[40])
    check.equal("a method", rpc.rpc_sync(peer, peer_api.call_method, args=[peer_api.Counter.add, counter, 2]), 42)
    check.equal("with a default", rpc.rpc_sync(peer, peer_api.call_method, args=[peer_api.Counter.add, counter]), 43)
    wrong = lambda: rpc.rpc_sync(peer, peer_api.call_method, args=[peer_api.Counter.not_served, counter])
    check.error("one that nobody serves", None, ["not_served"], wrong)
    del counter

    # Values of several types, tensors among them.
    check.equal("a number", rpc.rpc_sync(peer, peer_api.doubled, args=(1.5,)), 3.0)
    check.equal("a text", rpc.rpc_sync(peer, peer_api.doubled, args=("ab",)), "abab")
    many = rpc.rpc_sync(peer, peer_api.doubled, args=([torch.arange(3.0), 1.5, ["a"]],))
    check.equal("tensors among others", many, [torch.arange(3.0) * 2, 3.0, ["aa"]])

    # Gradients flow through all of it.
    scaler = rpc.remote(peer, peer_api.Scaler, args=(3.0,))
    ways = {
        "echo of any value": (1, lambda x: rpc.rpc_sync(peer, peer_api.echo, args=({"x": [x]},))["x"][0]),
        "a value of several types": (2, lambda x: rpc.rpc_sync(peer, peer_api.doubled, args=([x],))[0]),
        "a method by name": (3, lambda x: rpc.rpc_sync(peer, peer_api.call_method, args=[peer_api.Scaler.scale, scaler, x])),
    }
    for name, (factor, way) in ways.items():
        with dist_autograd.context() as context_id:
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            y = way(x * 5)
            check.equal(name, y.detach(), x.detach() * 5 * factor)
            dist_autograd.backward(context_id, [(y * y).sum()])
            expected = 2 * x.detach() * (5 * factor) ** 2
            check.close("gradient through " + name, dist_autograd.get_gradients(context_id)[x], expected)
    del scaler, way, ways, x, y

    # Functions that return futures.
    seen = rpc.rpc_sync(peer, peer_api.call_async, args=(me, "worker_api.later", [[1, "x"]]))
    check.equal("a future's value", seen, [1, "x"])
    group.ask(me, "own_ledger", "ledger", "t")
    group.ask(me, "share", "ledger", peer, "peer_api.hold", "ledger")
    check.equal("a method's future", group.ask(peer, "held_call", "ledger", "later", [7]), 7)
    group.ask(peer, "drop", "ledger")
    group.ask(me, "drop", "ledger")

    # Optimizers.
    cases = [
        (torch.optim.SGD, (0.1,), {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Adam, (), {"lr": 0.05, "betas": (0.8, 0.99)}),
        (torch.optim.AdamW, (), {"weight_decay": 0.1}),
        (torch.optim.Adagrad, (0.1,), {}),
        (torch.optim.RMSprop, (), {"lr": 0.02, "momentum": 0.5}),
    ]
    for case in cases:
        train(group, *case)
    sgd = lambda rrefs: rpc.rpc_sync(peer, _new_local_optimizer, args=(torch.optim.SGD, rrefs), kwargs={"lr": 0.1})
    train(group, torch.optim.SGD, (), {"lr": 0.1}, Plain(sgd, peer))
    rrefs = group.ask(peer, "parameter_rrefs")
    unknown = lambda: DistributedOptimizer(torch.optim.ASGD, rrefs, lr=0.1)
    check.error("an optimizer that the peer has not", None, ["ASGD"], unknown)
    del rrefs, unknown


class Plain:
    """An optimizer without TorchScript, as PyTorch makes those that it has no TorchScript of."""

    def __init__(self, make, peer):
        self.make, self.peer = make, peer

    def __call__(self, optimizer, rrefs, *args, **kwargs):
        self.made = self.make(rrefs)
        return self

    def step(self, context_id):
        rpc.rpc_sync(self.peer, _local_optimizer_step, args=(self.made, context_id))


def train(group, optimizer, args, kwargs, make=DistributedOptimizer):
    """Some steps of the peer's layer, beside the same in this process."""
    peer, name = group.peer, optimizer.__name__ + ("" if make is DistributedOptimizer else ", plain")
    torch.manual_seed(11)
    weight, bias, x, target = torch.randn(3, 2), torch.zeros(2), torch.randn(8, 3), torch.randn(8, 2)
    group.ask(peer, "set_linear", weight, bias)
    made = make(optimizer, group.ask(peer, "parameter_rrefs"), *args, **kwargs)
    for _ in range(4):
        with dist_autograd.context() as context_id:
            loss = rpc.rpc_sync(peer, peer_api.linear_loss, args=(x, target))
            dist_autograd.backward(context_id, [loss])
            made.step(context_id)
    got = group.ask(peer, "parameters")
    local = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
    alike = optimizer(local, *args, **kwargs)
    for _ in range(4):
        alike.zero_grad()
        ((x @ local[0] + local[1] - target) ** 2).mean().backward()
        alike.step()
    group.checks.close("weight after steps of " + name, got["weight"], local[0].detach())
    group.checks.close("bias after steps of " + name, got["bias"], local[1].detach())
