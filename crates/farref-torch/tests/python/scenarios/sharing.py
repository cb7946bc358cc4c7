"""References handed from worker to worker: every owner, every parent, every child.

Of three workers each one in turn owns the value, hands the reference on, and receives it: 27 combinations, among them
owner to user, user to owner, user to user, and a worker to itself. In each, the parent has got the reference in two
ways (it made it by `remote`, or the owner gave it), and hands it on in three (as an argument, as a result, as an
argument that it passes on while it has just arrived). The child uses it, the parent lets go, the child uses it again.
"""

import itertools

import torch

# PyTorch gives references made by `RRef(value)` a type ("str", "Tensor", "Dict[str, int]"), and fetches those with a type
# by another message than those without. No tuple: PyTorch cannot share `RRef(tuple)`, its name of the type is rubbish.
VALUES = [
    {"rows": [1, 2]},
    "text",
    torch.arange(3.0),
    [1, None, "mixed"],
    7,
    None,
    [0.5, 1.5],
    {"weights": torch.ones(2, 2), "names": ["a"]},
]


def main(group):
    workers = group.pythons + group.peers
    group.meet(workers)
    values = itertools.cycle(VALUES)
    count = 0
    for owner, parent, child in itertools.product(workers, repeat=3):
        for made, handed in itertools.product(["remote", "given"], ["argument", "result", "passed on"]):
            count += 1
            hand_on(group, owner, parent, child, made, handed, next(values), str(count))
    group.checks.note("combinations", count)
    group.settle(workers)
    chain(group, workers)
    crowd(group, workers)
    unmade(group)


def hand_on(group, owner, parent, child, made, handed, value, key):
    name = "%s owns, %s hands to %s (%s, %s)" % (owner, parent, child, made, handed)
    at_parent, at_child = "parent" + key, "child" + key
    # The parent gets its reference.
    if made == "remote":
        group.ask(parent, "make_on", at_parent, owner, group.named(owner, "echo"), [value])
    else:
        group.ask(owner, "own", "owner" + key, value)
        group.ask(owner, "share", "owner" + key, parent, group.named(parent, "hold"), at_parent)
        group.ask(owner, "drop", "owner" + key)
    # The child gets it from the parent.
    if handed == "argument":
        is_owner = group.ask(parent, "share", at_parent, child, group.named(child, "hold"), at_child)
    elif handed == "result":
        is_owner = group.ask(child, "take", at_child, parent, group.named(parent, "give"), at_parent)
    else:
        # Through this worker, which keeps nothing, and the parent again, which knows it as a newcomer.
        reference = group.ask(parent, "give", at_parent)
        is_owner = group.ask(parent, "pass_on", reference, child, group.named(child, "hold"), at_child)
        del reference
    group.checks.equal(name + ": owner", (is_owner, group.ask(child, "owner_of", at_child)), (child == owner, owner))
    group.checks.equal(name + ": used", group.ask(child, "held", at_child), value)
    group.ask(parent, "drop", at_parent)
    group.checks.equal(name + ": used after the parent let go", group.ask(child, "held", at_child), value)
    group.ask(child, "drop", at_child)


def chain(group, workers):
    """A reference goes around twice; every holder lets go as soon as the next one has it."""
    for owner in workers:
        group.ask(owner, "own", "chain0", ["around"])
        holder, steps = owner, 0
        for turn, worker in enumerate((workers * 3)[workers.index(owner) + 1 :][: 2 * len(workers)]):
            key, old = "chain%d" % (turn + 1), "chain%d" % turn
            group.ask(holder, "share", old, worker, group.named(worker, "hold"), key)
            group.ask(holder, "drop", old)
            holder, steps = worker, turn + 1
        group.checks.equal("around twice, owned by " + owner, group.ask(holder, "held", "chain%d" % steps), ["around"])
        group.ask(holder, "drop", "chain%d" % steps)


def crowd(group, workers):
    """Many references at once, each of several holders, let go in another order than they were made."""
    keys = []
    for number in range(30):
        owner = workers[number % len(workers)]
        group.ask(owner, "own", "crowd%d" % number, number)
        for other in workers:
            if other != owner:
                group.ask(owner, "share", "crowd%d" % number, other, group.named(other, "hold"), "crowd%d" % number)
                keys.append((other, "crowd%d" % number, number))
    for owner, number in [(workers[n % len(workers)], n) for n in range(30)]:
        group.ask(owner, "drop", "crowd%d" % number)
    for worker, key, number in reversed(keys):
        group.checks.equal("one of a crowd", group.ask(worker, "held", key), number)
        group.ask(worker, "drop", key)


def unmade(group):
    """The owner uses its own value, which a Rust worker has asked it to make, and hands it on, before it is made. (If a
    Python worker asks, PyTorch forgets the value with the first reference that is let go of, and waits for ever.)"""
    for owner, parent in itertools.product(group.pythons, group.peers):
        key = "unmade by " + owner
        group.ask(parent, "make_on", key, owner, group.named(owner, "sleep"), [1.5])
        group.ask(owner, "take", key, parent, group.named(parent, "give"), key)
        group.ask(owner, "share", key, parent, group.named(parent, "hold"), key + " again")
        group.ask(parent, "drop", key + " again")
        group.checks.equal(key, group.ask(owner, "held", key), 1.5)
        group.ask(parent, "drop", key)
        group.checks.equal(key + ", used after the parent let go", group.ask(owner, "held", key), 1.5)
        group.ask(owner, "drop", key)
