"""Programs of distributed autograd, each of which is also run in one process, where PyTorch alone computes the gradients.

``torch_gradients.py laws workers place`` runs them all: worker 0 says in JSON what came of each. The other names are programs of
their own, in which workers die or change places. ``test_torch_autograd.py`` starts them. The workers are forked off from a process
that has imported torch and done nothing else; its last words are how they ended.
"""

import json
import os
import sys
import threading
import traceback

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch_workers
from testkit import TEST_TIMEOUT, eventually

RANK, WORKERS, PLACE = None, int(sys.argv[2]), sys.argv[3]
LAWS = {}
ALONE = threading.Lock()
# Each worker has them all, and uses its own.
WEIGHTS = [torch.linspace(0.5, 1.5, 3).add(rank / 4).requires_grad_() for rank in range(3)]


def join(rank=None, part=""):
    rank = RANK if rank is None else rank
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{PLACE}{part}", rpc_timeout=TEST_TIMEOUT)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=WORKERS, rpc_backend_options=options)


def law(function):
    LAWS[function.__name__] = function
    return function


def far(rank, function, *args):
    return rpc.rpc_sync(f"worker{rank}", function, args=args)


def near(rank, function, *args):
    return function(*args)


KEPT = []


def kept(x):
    KEPT.append(x * 2)
    return KEPT[-1]


def change_kept():
    KEPT.pop().mul_(10).relu_()


def gradients_of(context, number):
    return dist_autograd.get_gradients(context).get(WEIGHTS[number])


def fresh():
    return torch.linspace(1.0, 2.0, 3).requires_grad_()


def agrees(program, passes=1):
    """Runs a program in one process and over workers. Asserts that all gradients are the same; returns them."""
    with ALONE:
        leaf = fresh()
        for weight in WEIGHTS:
            weight.grad = None
        program(near, leaf).backward()
        wanted = [tensor.grad for tensor in (leaf, *WEIGHTS)]
    leaf = fresh()
    with dist_autograd.context() as context:
        loss = program(far, leaf)
        for left in reversed(range(passes)):
            dist_autograd.backward(context, [loss], retain_graph=left > 0)
        found = [dist_autograd.get_gradients(context).get(leaf)]
        found += [far(rank, gradients_of, context, rank) for rank in range(WORKERS)]
    for one, other in zip(wanted, found):
        assert (one is None) == (other is None), (wanted, found)
        assert one is None or torch.allclose(one * passes, other), (wanted, found)
    return found


def messages_of(program):
    """How many messages a backward pass of it took, on all workers."""
    for rank in range(WORKERS):
        far(rank, count)
    agrees(program)
    return sum(far(rank, counted) for rank in range(WORKERS))


class Counter:
    messages = 0


def count():
    from farref.torch import _passes

    Counter.messages = 0
    if not hasattr(Counter, "ask"):
        Counter.ask, Counter.tell = _passes.ask, _passes.tell

        def ask(*said):
            Counter.messages += 1
            return Counter.ask(*said)

        def tell(*said):
            Counter.messages += 1
            return Counter.tell(*said)

        _passes.ask, _passes.tell = ask, tell


def counted():
    return Counter.messages


# What workers compute


def scale(rank, x):
    return torch.tanh(x * WEIGHTS[rank])


def same(x):
    return x * 1


def square_of(rank, x):
    return torch.outer(x, WEIGHTS[rank])


def turned_of(rank, x):
    """Not contiguous."""
    return torch.outer(x, WEIGHTS[rank]).t()


def scale_and_freeze(number, x):
    scaled = scale(number, x)
    freeze(number, False)
    return scaled


def freeze(rank, wants):
    WEIGHTS[rank].requires_grad_(wants)


def split(x):
    return x * 2, x * 3, x.sum() * 4


def onward(rank, to, x):
    """Asks another worker, and goes on with what it says, and with what it was given."""
    return scale(rank, rpc.rpc_sync(f"worker{to}", scale, args=(to, x))) + x


def onward_alone(rank, to, x):
    return scale(rank, scale(to, x)) + x


class Halved(torch.autograd.Function):
    """Not linear in its gradients: sees whether it gets all of them together."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Halved.calls += 1
        return gradient.clamp(max=1.5) ** 2


# The laws


@law
def skips_take_messages_that_grow_with_the_layers():
    def layers(number):
        def program(call, x):
            for layer in range(number):
                rank = 1 + layer % 2
                x = x + call(rank, scale, rank, x)
            return x.sum()

        return program

    # Two for a layer, and what the first and the last of each worker's are announced by.
    assert messages_of(layers(4)) <= 2 * 4 + 4
    assert messages_of(layers(12)) <= 2 * 12 + 4


@law
def skips_around_what_is_not_sent_itself_agree_too():
    def program(call, x):
        for layer in range(5):
            x = x * 1.1 + call(1, scale, 1, x * 0.5).flip(0)
        return x.sum()

    assert messages_of(program) <= 2 * 5


@law
def diamonds_over_three_workers_agree():
    def program(call, x):
        top = call(1, scale, 1, x)
        left, right = call(2, scale, 2, top), call(0, scale, 0, top)
        between = onward if call is far else onward_alone
        return (call(1, between, 1, 2, left * right) + top * left + call(2, between, 2, 1, right)).sum()

    agrees(program)


@law
def what_has_come_can_be_changed_in_place():
    def program(call, x):
        y = call(1, square_of, 1, x)
        y.mul_(3)
        y[0] = 1.0
        y.view(-1)[4:6].mul_(0.5)
        turned = call(2, turned_of, 2, x)
        turned.add_(y)
        return turned.sum() + y.sum()

    agrees(program)


@law
def a_leaf_that_was_frozen_after_the_call_gets_no_gradient():
    leaf, frozen = fresh(), fresh()
    with dist_autograd.context() as context:
        loss = far(1, same, leaf * frozen).sum()
        frozen.requires_grad_(False)
        dist_autograd.backward(context, [loss])
        found = dist_autograd.get_gradients(context)
    assert torch.allclose(found[leaf], fresh().detach()) and frozen not in found, found
    # The same where the other worker has it.
    leaf = fresh()
    with dist_autograd.context() as context:
        loss = far(1, scale, 1, leaf).sum()
        try:
            far(1, freeze, 1, False)
            dist_autograd.backward(context, [loss])
        finally:
            far(1, freeze, 1, True)
        assert leaf in dist_autograd.get_gradients(context)
        assert far(1, gradients_of, context, 1) is None


@law
def a_leaf_that_was_frozen_holds_up_no_others_where_a_skip_passes_by():
    # Whether gradients can come to it at once, or only with those of what was sent.
    for is_sent in (False, True):
        leaf, frozen = fresh(), fresh()
        with dist_autograd.context() as context:
            kept = leaf * frozen if is_sent else leaf * 1
            loss = (far(1, same, kept) * frozen + kept).sum()
            frozen.requires_grad_(False)
            dist_autograd.backward(context, [loss])
            found = dist_autograd.get_gradients(context)
        weight = fresh().detach()
        wanted = (weight + 1) * weight if is_sent else weight + 1
        assert torch.allclose(found[leaf], wanted) and frozen not in found, found


@law
def a_leaf_that_was_frozen_only_while_it_was_answered_gets_its_gradient():
    # Of no leaf of the caller's: so it is the whole graph there, and looked at when the answer is out.
    with dist_autograd.context() as context:
        loss = far(1, scale_and_freeze, 1, fresh().detach()).sum()
        far(1, freeze, 1, True)
        dist_autograd.backward(context, [loss])
        found = far(1, gradients_of, context, 1)
    (wanted,) = torch.autograd.grad(scale(1, fresh().detach()).sum(), WEIGHTS[1])
    assert found is not None and torch.allclose(found, wanted), found


@law
def a_loop_through_all_workers_back_to_the_first_agrees():
    def program(call, x):
        x = x * 2
        for _ in range(3):
            for rank in (1, 2, 0):
                x = call(rank, scale, rank, x) + 0.1 * x
        return x.sum()

    agrees(program)


@law
def what_is_changed_in_place_after_it_was_sent_has_the_gradient_of_what_was_sent():
    def program(call, w):
        x = w * 1
        sent = call(1, same, x.clone() if call is near else x)
        x.mul_(10)
        view = x.view(3, 1)
        again = call(1, same, view.clone() if call is near else view)
        x.relu_()
        return (sent.sum() + again.sum() * x.sum()).sum()

    agrees(program)


@law
def what_a_worker_changes_in_place_after_it_has_answered_has_the_gradient_of_what_it_answered_with():
    def program(call, w):
        came = call(1, kept, w)
        came = came.clone() if call is near else came
        call(1, change_kept)
        return (came * came).sum()

    agrees(program)


@law
def hooks_see_the_whole_gradient_once():
    calls = []

    def program(call, w):
        def hook(gradient):
            calls.append(gradient)
            return gradient.clamp(max=1.5)

        w.register_hook(hook)
        x = w * 1
        x.register_hook(hook)
        came = call(1, same, x)
        came.register_hook(hook)
        ys = [call(rank % 3, same, came) for rank in range(4)]
        return sum(y.sum() for y in ys) + x.sum() + came.sum() + w.sum()

    agrees(program)
    # Alone, and over workers.
    assert len(calls) == 6, len(calls)


@law
def hooks_of_what_was_sent_see_it_once_where_a_skip_passes_by():
    calls = []

    def program(call, x):
        for layer in range(4):
            x = x * 1
            x.register_hook(lambda gradient: calls.append(1) or gradient.clamp(max=1.5))
            x = x + call(1, scale, 1, x)
        return x.sum()

    agrees(program)
    assert len(calls) == 8, len(calls)


@law
def skips_past_local_weights_agree_and_hooks_see_whole_gradients():
    weights = [torch.rand(3, requires_grad=True) for _ in range(2)]
    calls = []

    def program(call, x):
        before = x * 2
        for layer in range(6):
            kept = x * weights[layer % 2]
            kept.register_hook(lambda gradient: calls.append(1) or gradient.clamp(max=0.7))
            x, before = torch.sin(kept) + call(1 + layer % 2, scale, 1 + layer % 2, kept * 0.3) + before * 0.1, kept
        return x.sum() + sum(weight.sum() for weight in weights)

    weights[0].register_hook(lambda gradient: gradient.clamp(max=1.2))
    near_and_far = []
    for call in (near, far):
        leaf = fresh()
        with dist_autograd.context() as context:
            loss = program(call, leaf)
            dist_autograd.backward(context, [loss])
            found = dist_autograd.get_gradients(context)
            near_and_far.append([found[tensor] for tensor in (leaf, *weights)])
    assert all(map(torch.allclose, *near_and_far)), near_and_far
    if hasattr(torch.autograd.graph, "GradientEdge"):
        # Once in one process, and at most twice over workers, whatever the depth.
        assert 12 <= len(calls) <= 18, len(calls)


@law
def functions_that_are_not_linear_get_the_whole_gradient():
    def program(call, w):
        x = Halved.apply(w * 1)
        ys = [call(1 + rank % 2, same, x * rank) for rank in range(4)]
        return sum(y.sum() for y in ys) + x.sum()

    Halved.calls = 0
    agrees(program)
    assert Halved.calls == 2, Halved.calls


@law
def calls_without_gradients_here_have_those_of_where_they_are_computed():
    w = fresh()
    with dist_autograd.context() as context:
        with torch.no_grad():
            y = far(1, scale, 1, w)
        other = torch.ones(3, requires_grad=True)
        dist_autograd.backward(context, [(y * other).sum()])
        assert torch.allclose(dist_autograd.get_gradients(context)[other], y)


@law
def results_that_are_not_used_hold_nothing_up():
    def program(call, w):
        x = w * 2
        call(2, scale, 2, x)
        _, two, _ = call(1, split, x)
        call(1, split, two)
        y = call(1, scale, 1, x)
        call(2, split, y)
        return (y + two).sum()

    # To worker 1, back to this one; and both once more, to say that nothing else will come.
    assert messages_of(program) <= 4


@law
def a_chain_takes_one_message_for_each_step():
    def program(call, x):
        for rank in (1, 2, 1):
            x = call(rank, scale, rank, x)
        return x.sum()

    assert messages_of(program) == 6


@law
def one_remote_layer_takes_one_message():
    def program(call, _):
        return (call(1, scale, 1, torch.ones(3)) * call(1, scale, 1, torch.ones(3) * 2)).sum()

    assert messages_of(program) == 1


@law
def sparse_gradients_agree():
    weight = torch.rand(5, 3, requires_grad=True)
    index = torch.tensor([1, 3, 3])
    loss = look_up(weight, index).sum() * 2 + look_up(weight, index[:1]).sum()
    wanted = torch.autograd.grad(loss, weight)[0].to_dense()
    with dist_autograd.context() as context:
        loss = far(1, look_up, weight, index).sum() * 2 + far(2, look_up, weight, index[:1]).sum()
        dist_autograd.backward(context, [loss])
        found = dist_autograd.get_gradients(context)[weight]
        assert found.is_sparse
        assert torch.allclose(found.to_dense(), wanted)


def look_up(weight, index):
    return torch.nn.functional.embedding(index, weight, sparse=True)


@law
def contexts_side_by_side_do_not_mix():
    failed = []

    def one():
        try:
            for _ in range(5):
                skips_around_what_is_not_sent_itself_agree_too_in_a_thread()
        except BaseException:
            failed.append(traceback.format_exc())

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


def skips_around_what_is_not_sent_itself_agree_too_in_a_thread():
    def program(call, x):
        for rank in (1, 2, 1):
            x = x + call(rank, scale, rank, x * 0.5)
        return x.sum()

    agrees(program)


@law
def passes_over_a_graph_that_is_retained_add_up():
    def program(call, x):
        for rank in (1, 2, 1):
            x = x + call(rank, scale, rank, x * 0.5)
        return (x * x).sum()

    agrees(program, passes=3)


@law
def a_graph_that_is_not_retained_is_freed_everywhere():
    with dist_autograd.context() as context:
        # Only the other worker has anything to free.
        y = far(1, scale, 1, torch.ones(3)).sum()
        dist_autograd.backward(context, [y])
        try:
            dist_autograd.backward(context, [y])
        except RuntimeError as error:
            assert "second time" in str(error), error
        else:
            raise AssertionError("it was run a second time")


@law
def an_error_in_the_middle_is_raised_and_the_next_pass_is_none_the_worse():
    with dist_autograd.context() as context:
        y = far(1, refused, fresh()) + far(2, scale, 2, fresh())
        try:
            dist_autograd.backward(context, [y.sum()])
        except RuntimeError as error:
            assert "Error on Node 1: not like this" in str(error), error
        else:
            raise AssertionError("no error")
    diamonds_over_three_workers_agree()


class Refused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("not like this")


def refused(x):
    return Refused.apply(x)


@law
def gradients_have_memory_of_their_own_and_stay_what_they_were():
    a, b, c = fresh(), fresh(), fresh()
    with dist_autograd.context() as context:
        # PyTorch has one tensor for the first two, and one number in the place of three for the last.
        loss = ((a + b) * torch.ones(3)).sum() + c.sum()
        dist_autograd.backward(context, [loss], retain_graph=True)
        first = dist_autograd.get_gradients(context)
        assert first[c].is_contiguous() and first[a].data_ptr() != first[b].data_ptr()
        dist_autograd.backward(context, [loss])
        assert first[a].tolist() == first[b].tolist() == [1, 1, 1]
        second = dist_autograd.get_gradients(context)
        assert second[a].tolist() == second[b].tolist() == [2, 2, 2]


@law
def sparse_and_whole_gradients_of_one_leaf_add_up_in_any_order():
    weight, index = torch.rand(5, 3, requires_grad=True), torch.tensor([1, 3, 3])
    wanted = torch.autograd.grad(look_up(weight, index).sum() + (weight * 2).sum(), weight)[0].to_dense()
    for order in ((1, 2), (2, 1)):
        with dist_autograd.context() as context:
            for rank in order:
                part = far(1, look_up, weight, index) if rank == 1 else far(2, twice, weight)
                dist_autograd.backward(context, [part.sum()])
            found = dist_autograd.get_gradients(context)[weight]
        assert torch.allclose(found.to_dense(), wanted), order


def twice(x):
    return x * 2


@law
def several_losses_add_up_and_one_counts_as_often_as_it_is_there():
    x = fresh()
    with dist_autograd.context() as context:
        one, other = far(1, twice, x).sum(), far(2, same, x).sum()
        dist_autograd.backward(context, [one, other, one])
        assert dist_autograd.get_gradients(context)[x].tolist() == [5, 5, 5]
    # The same where nothing was sent that wants gradients.
    with dist_autograd.context() as context:
        one = far(1, scale, 1, torch.ones(3)).sum()
        dist_autograd.backward(context, [one, one * 2, one])
        found = far(1, gradients_of, context, 1)
    (wanted,) = torch.autograd.grad(scale(1, torch.ones(3)).sum(), WEIGHTS[1])
    assert torch.allclose(found, 4 * wanted), (found, wanted)


@law
def tensors_without_gradients_between_others_keep_their_places():
    plain = torch.tensor([2.0, 3.0, 4.0])

    def program(call, x):
        a, b, c = call(1, mixed, plain, x, plain * 10, x * 2)
        return (a * 2 + b * 3 + c * 5).sum()

    agrees(program)


def mixed(first, a, second, b):
    return a * first, second, b * second


@law
def what_is_called_outside_of_a_context_runs_in_none():
    seen = []

    def calls_of_nobody():
        seen.extend(far(rank, is_in_context) for rank in range(WORKERS) for _ in range(10))

    with dist_autograd.context():
        assert all(far(rank, is_in_context) for rank in range(WORKERS) for _ in range(3))
        # While there is one that their threads could still be in.
        outside = threading.Thread(target=calls_of_nobody)
        outside.start()
        outside.join()
    calls_of_nobody()
    assert len(seen) == 2 * 10 * WORKERS and not any(seen), seen


def is_in_context():
    try:
        dist_autograd._current_context()
    except RuntimeError:
        return False
    return True


@law
def a_pass_may_begin_at_a_far_loss_and_again_if_it_is_retained():
    x = fresh()
    with dist_autograd.context() as context:
        loss = rpc.remote("worker1", summed, args=(x,))
        loss.backward(context, retain_graph=True)
        loss.backward(context)
        assert dist_autograd.get_gradients(context)[x].tolist() == [4, 4, 4]
    del loss


def summed(x):
    return (x * 2).sum()


@law
def nothing_is_left_when_contexts_are_over():
    for rank in range(WORKERS):
        eventually(lambda: far(rank, contexts) == 0)


def contexts():
    return int(dist_autograd._get_debug_info()["num_autograd_contexts"])


def laws():
    join()
    if RANK == 0:
        said = {}
        for name, function in LAWS.items():
            try:
                function()
                said[name] = None
            except Exception:
                said[name] = traceback.format_exc()
        print(json.dumps(said), flush=True)
    rpc.shutdown()


# Programs of their own


def dies(x):
    return Dies.apply(x)


class Dies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        os._exit(0)


def through_the_dead(x):
    return rpc.rpc_sync("worker2", dies, args=(x,))


def a_worker_that_dies_in_a_pass_is_an_error_and_its_context_ends():
    """Worker 2 dies in the middle of a backward pass that worker 1 has led to it."""
    join()
    if RANK == 0:
        with dist_autograd.context() as context:
            x = fresh()
            y = far(1, through_the_dead, x) + far(1, scale, 1, x)
            try:
                dist_autograd.backward(context, [y.sum()])
            except RuntimeError as error:
                assert "Error on Node 1: Error on Node 2:" in str(error), error
            else:
                raise AssertionError("no error")
        eventually(lambda: contexts() == far(1, contexts) == 0)
        with dist_autograd.context() as context:
            dist_autograd.backward(context, [far(1, scale, 1, x).sum()])
            assert x in dist_autograd.get_gradients(context)
    rpc.shutdown()


def contexts_of_an_earlier_group_are_not_those_of_this_one():
    """Two groups one after the other, in which the workers have changed places."""
    for part, rank in enumerate((RANK, 1 - RANK)):
        join(rank, str(part))
        if rank == 0:
            for _ in range(3):
                w = torch.ones(2, requires_grad=True)
                with dist_autograd.context() as context:
                    dist_autograd.backward(context, [(far(1, same, w) * 2).sum()])
                    assert dist_autograd.get_gradients(context)[w].tolist() == [2, 2]
        rpc.shutdown()


def contexts_of_a_worker_are_not_those_of_another_with_its_id():
    """A worker leaves, and another process takes its id, in a group that goes on."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{PLACE}", rpc_timeout=TEST_TIMEOUT)
    # One after the other: the first is there, the second has left.
    if RANK > 0:
        eventually(lambda: os.path.exists(f"{PLACE}.{RANK - 1}"))
    rpc.init_rpc(f"worker-{RANK}", rank=min(RANK, 1), world_size=None, rpc_backend_options=options)
    if RANK == 0:
        touch(f"{PLACE}.0")
        eventually(lambda: os.path.exists(f"{PLACE}.2"))
    else:
        for _ in range(3):
            w = torch.ones(2, requires_grad=True)
            with dist_autograd.context() as context:
                came = rpc.rpc_sync("worker-0", same, args=(w,))
                dist_autograd.backward(context, [(came * 2).sum()])
                assert dist_autograd.get_gradients(context)[w].tolist() == [2, 2]
    rpc.shutdown()
    touch(f"{PLACE}.{RANK}")


def touch(path):
    with open(path, "w"):
        pass


def begins(x):
    """Runs on a worker that opens a context, has others take part and then dies."""
    dist_autograd._new_context()
    rpc.rpc_sync("worker1", scale, args=(1, x))


def hands_on(x):
    return rpc.rpc_sync("worker2", scale, args=(2, x))


def contexts_of_dead_workers_end():
    """Contexts of a worker that has died, and those that only a dead one has told of."""
    join()
    if RANK == 0:
        rpc.rpc_sync("worker3", begins, args=(fresh(),))
        rpc.rpc_async("worker3", os._exit, args=(0,))
        eventually(lambda: far(1, contexts) == 0)
        with dist_autograd.context():
            far(1, hands_on, fresh())
            assert far(2, contexts_besides) == 1
            rpc.rpc_async("worker1", os._exit, args=(0,))
            eventually(lambda: is_gone("worker1"))
        eventually(lambda: rpc.rpc_sync("worker2", contexts) == 0)
    rpc.shutdown()


def contexts_besides():
    """Asked in a context, which is one here."""
    return contexts()


def is_gone(name):
    try:
        rpc.rpc_sync(name, same, args=(1,))
    except RuntimeError:
        return True
    return False


def work(rank):
    global RANK
    RANK = rank
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    torch_workers.fork(WORKERS, work)
