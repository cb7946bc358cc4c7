"""Distributed autograd through both languages, compared with the same sums done in one process."""

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc

import peer_api
import worker_api

SIZE = 3


def layer(number):
    torch.manual_seed(number)
    return torch.randn(SIZE, SIZE), torch.randn(SIZE)


class Local:
    """The layers of some workers in one process, for comparison."""

    def __init__(self, layers):
        self.layers = {worker: [t.clone().requires_grad_() for t in pair] for worker, pair in layers.items()}

    def __call__(self, worker, x):
        weight, bias = self.layers[worker]
        return x @ weight + bias

    def gradient(self, worker):
        return {name: t.grad for name, t in zip(["weight", "bias"], self.layers[worker]) if t.grad is not None}


def main(group):
    workers = group.pythons + group.peers
    layers = {worker: layer(number) for number, worker in enumerate(workers)}
    for worker, (weight, bias) in layers.items():
        group.ask(worker, "set_linear", weight, bias)
    torch.manual_seed(100)
    x, target = torch.randn(5, SIZE), torch.randn(5, SIZE)
    for scenario in [
        layer_on_peer, reference_of_result, nested, there_and_back, peers_loss, peers_own_context, python_between, builtin,
        no_gradient, twice, two_contexts, unknown_context,
    ]:  # fmt: skip
        scenario(group, Local(layers), x, target)
        group.settle(workers)


def gradients_equal(group, name, got, want):
    group.checks.equal(name + ": which", sorted(got), sorted(want))
    for part in want:
        group.checks.close("%s: %s" % (name, part), got[part], want[part])


def layer_on_peer(group, local, x, target):
    """(a) A model in Python with one layer on the peer."""
    weight = torch.randn(SIZE, SIZE, requires_grad=True)
    with dist_autograd.context() as context_id:
        hidden = torch.tanh(x @ weight)
        loss = ((rpc.rpc_sync(group.peer, peer_api.linear, args=(hidden,)) - target) ** 2).mean()
        dist_autograd.backward(context_id, [loss])
        got = dist_autograd.get_gradients(context_id)[weight]
        theirs = group.ask(group.peer, "gradient", context_id)
    expected = ((local(group.peer, torch.tanh(x @ weight)) - target) ** 2).mean()
    expected.backward()
    group.checks.close("a layer on the peer: loss", loss.detach(), expected.detach())
    group.checks.close("a layer on the peer: mine", got, weight.grad)
    gradients_equal(group, "a layer on the peer: its", theirs, local.gradient(group.peer))
    group.checks.error(
        "a context that is over", None, ["context"], lambda: group.ask(group.peer, "gradient", context_id)
    )


def reference_of_result(group, local, x, target):
    """The same by `remote` and `to_here`, by `rpc_async`, and with an input that requires gradients."""
    data = x.clone().requires_grad_()
    with dist_autograd.context() as context_id:
        one = rpc.remote(group.peer, peer_api.linear, args=(data,)).to_here()
        two = rpc.rpc_async(group.peer, peer_api.linear, args=(one,)).wait()
        loss = ((two - target) ** 2).mean()
        dist_autograd.backward(context_id, [loss])
        got = dist_autograd.get_gradients(context_id)[data]
        theirs = group.ask(group.peer, "gradient", context_id)
    expected = x.clone().requires_grad_()
    ((local(group.peer, local(group.peer, expected)) - target) ** 2).mean().backward()
    group.checks.close("by remote and by rpc_async: mine", got, expected.grad)
    gradients_equal(group, "by remote and by rpc_async: its", theirs, local.gradient(group.peer))


def nested(group, local, x, target):
    """(c) Python, peer, and on to a third worker, in one context."""
    third = (group.pythons[1:] + group.peers[1:])[0]
    data = x.clone().requires_grad_()
    with dist_autograd.context() as context_id:
        args = (data, third, group.named(third, "linear"), [])
        loss = ((rpc.rpc_sync(group.peer, peer_api.linear_then, args=args) - target) ** 2).mean()
        dist_autograd.backward(context_id, [loss])
        got = dist_autograd.get_gradients(context_id)[data]
        theirs = {worker: group.ask(worker, "gradient", context_id) for worker in [group.peer, third]}
    expected = x.clone().requires_grad_()
    ((local(third, torch.relu(local(group.peer, expected))) - target) ** 2).mean().backward()
    group.checks.close("through the peer to a third: mine", got, expected.grad)
    for worker in theirs:
        gradients_equal(group, "through the peer to a third: " + worker, theirs[worker], local.gradient(worker))


def there_and_back(group, local, x, target):
    """(c) Python, peer, and back into the same Python worker."""
    data = x.clone().requires_grad_()
    with dist_autograd.context() as context_id:
        args = (data, group.name, "worker_api.linear", [])
        loss = ((rpc.rpc_sync(group.peer, peer_api.linear_then, args=args) - target) ** 2).mean()
        dist_autograd.backward(context_id, [loss])
        got = dist_autograd.get_gradients(context_id)[data]
        theirs = {worker: group.ask(worker, "gradient", context_id) for worker in [group.peer, group.name]}
    expected = x.clone().requires_grad_()
    ((local(group.name, torch.relu(local(group.peer, expected))) - target) ** 2).mean().backward()
    group.checks.close("through the peer and back: data", got, expected.grad)
    for worker in theirs:
        gradients_equal(group, "through the peer and back: " + worker, theirs[worker], local.gradient(worker))


def peers_loss(group, local, x, target):
    """(e) The loss is the peer's; `rref.backward` starts there, where it also ends up in Python's layer."""
    weight = torch.randn(SIZE, SIZE, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = rpc.remote(group.peer, peer_api.linear_loss, args=(x @ weight, target))
        loss.backward(context_id)
        got = dist_autograd.get_gradients(context_id)[weight]
        theirs = group.ask(group.peer, "gradient", context_id)
        value = loss.to_here()
    expected = ((local(group.peer, x @ weight) - target) ** 2).mean()
    expected.backward()
    group.checks.close("a loss of the peer", value.detach(), expected.detach())
    group.checks.close("a loss of the peer: mine", got, weight.grad)
    gradients_equal(group, "a loss of the peer: its", theirs, local.gradient(group.peer))
    # The same with a loss of Python's that the peer took part in, held by reference here.
    with dist_autograd.context() as context_id:
        y = rpc.rpc_sync(group.peer, peer_api.linear, args=(x,))
        mine = rpc.RRef(((y - target) ** 2).mean())
        mine.backward(context_id)
        again = group.ask(group.peer, "gradient", context_id)
    fresh = Local({group.peer: [t.detach() for t in local.layers[group.peer]]})
    ((fresh(group.peer, x) - target) ** 2).mean().backward()
    gradients_equal(group, "a loss of mine by reference", again, fresh.gradient(group.peer))


def peers_own_context(group, local, x, target):
    """(b) The peer opens the context; one layer is in Python."""
    got = group.ask(
        group.peer, "loss_through", group.name, "worker_api.linear", [], x, target, [[group.name, "worker_api.gradient"]]
    )
    expected = ((local(group.name, torch.relu(local(group.peer, x))) - target) ** 2).mean()
    expected.backward()
    group.checks.close("the peer trains: loss", torch.tensor(got["loss"]), expected.detach())
    gradients_equal(group, "the peer trains: its", got["gradient"], local.gradient(group.peer))
    gradients_equal(group, "the peer trains: mine", got["others"][0], local.gradient(group.name))


def python_between(group, local, x, target):
    """(d) The peer opens the context, calls Python, which calls the peer (and a third worker) again."""
    for last in [group.peer] + (group.pythons[1:] + group.peers[1:])[:1]:
        here = Local({worker: [t.detach() for t in pair] for worker, pair in local.layers.items()})
        asks = [[group.name, "worker_api.gradient"], [last, group.named(last, "gradient")]]
        more = [last, group.named(last, "linear"), []]
        got = group.ask(group.peer, "loss_through", group.name, "worker_api.linear_then", more, x, target, asks)
        hidden = torch.relu(here(group.name, torch.relu(here(group.peer, x))))
        expected = ((here(last, hidden) - target) ** 2).mean()
        expected.backward()
        name = "peer, Python, %s" % last
        group.checks.close(name + ": loss", torch.tensor(got["loss"]), expected.detach())
        gradients_equal(group, name + ": the peer's", got["gradient"], here.gradient(group.peer))
        gradients_equal(group, name + ": Python's", got["others"][0], here.gradient(group.name))
        gradients_equal(group, name + ": the last one's", got["others"][1], here.gradient(last))


def builtin(group, local, x, target):
    """Builtin operators on the peer carry gradients, too."""
    a, b = torch.randn(2, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    c = torch.randn(2, 2, requires_grad=True)
    with dist_autograd.context() as context_id:
        y = rpc.rpc_sync(group.peer, torch.matmul, args=(a, b))
        y = rpc.rpc_sync(group.peer, torch.mul, args=(rpc.rpc_sync(group.peer, torch.add, args=(y, c)), c))
        y = rpc.rpc_sync(group.peer, torch.relu, args=(rpc.rpc_sync(group.peer, torch.sub, args=(y, 0.1)),))
        loss = rpc.rpc_sync(group.peer, torch.sum, args=(rpc.remote(group.peer, torch.neg, args=(y,)).to_here(),))
        dist_autograd.backward(context_id, [loss])
        got = [dist_autograd.get_gradients(context_id)[t] for t in (a, b, c)]
    torch.neg(torch.relu((a @ b + c) * c - 0.1)).sum().backward()
    for name, one, t in zip("abc", got, (a, b, c)):
        group.checks.close("builtins: gradient of " + name, one, t.grad)


def no_gradient(group, local, x, target):
    """Calls inside of a context that have nothing to do with gradients."""
    with dist_autograd.context():
        group.checks.equal("a plain call in a context", group.ask(group.peer, "echo", {"a": 1}), {"a": 1})
        group.checks.equal("a tensor without gradient", group.ask(group.peer, "echo", torch.ones(2)), torch.ones(2))
        group.checks.equal("a builtin without gradient", rpc.rpc_sync(group.peer, torch.add, args=(x, 1)), x + 1)
        group.checks.equal("remote in a context", rpc.remote(group.peer, peer_api.echo, args=("r",)).to_here(), "r")
        group.checks.error(
            "an error in a context", "ValueError", ["text"], lambda: group.ask(group.peer, "fail", "text", "ValueError")
        )
        group.checks.equal(
            "the peer calls back in a context", group.ask(group.peer, "call_back", group.name, "worker_api.double", [2]), 4
        )


def twice(group, local, x, target):
    """Backward twice over the same graph adds up."""
    with dist_autograd.context() as context_id:
        loss = ((rpc.rpc_sync(group.peer, peer_api.linear, args=(x,)) - target) ** 2).mean()
        dist_autograd.backward(context_id, [loss], retain_graph=True)
        dist_autograd.backward(context_id, [loss])
        theirs = group.ask(group.peer, "gradient", context_id)
    ((local(group.peer, x) - target) ** 2).mean().backward()
    doubled = {name: gradient * 2 for name, gradient in local.gradient(group.peer).items()}
    gradients_equal(group, "backward twice", theirs, doubled)


def two_contexts(group, local, x, target):
    """Two contexts one after the other, the first still known: gradients are kept apart."""
    for factor in [1.0, 3.0]:
        here = Local({worker: [t.detach() for t in pair] for worker, pair in local.layers.items()})
        with dist_autograd.context() as context_id:
            loss = rpc.rpc_sync(group.peer, peer_api.linear, args=(x * factor,)).sum()
            dist_autograd.backward(context_id, [loss])
            theirs = group.ask(group.peer, "gradient", context_id)
        here(group.peer, x * factor).sum().backward()
        gradients_equal(group, "contexts are kept apart", theirs, here.gradient(group.peer))


def unknown_context(group, local, x, target):
    group.checks.error("no such context", None, ["context"], lambda: group.ask(group.peer, "gradient", 12345))
    assert worker_api.parameters()["weight"].shape == (SIZE, SIZE)
