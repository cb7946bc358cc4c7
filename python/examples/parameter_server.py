"""A parameter server: one worker has the parameters, the others improve them together.

    python python/examples/parameter_server.py

Each trainer fits y = 3x + 2 on data of its own. The parameters stay with the server: trainers hold a reference to them, fetch
a copy, and send back gradients. When the last trainer is done, nobody holds them, and they are freed.
"""

import random
import threading

import farref


class Parameters:
    """The weights, and how often they were changed."""

    def __init__(self):
        self.weights = [0.0, 0.0]
        self.steps = 0
        self._lock = threading.Lock()  # methods run on threads, several at once

    def read(self):
        return list(self.weights)

    def descend(self, gradient, rate):
        with self._lock:
            self.weights = [weight - rate * part for weight, part in zip(self.weights, gradient)]
            self.steps += 1


def train(parameters, seed, steps):
    """What a trainer does: called on it, with a reference to the parameters."""
    noise = random.Random(seed)
    for _ in range(steps):
        slope, offset = parameters.call.read()
        x = noise.uniform(-1, 1)
        error = slope * x + offset - (3 * x + 2)
        parameters.call.descend([2 * error * x, 2 * error], rate=0.05)
    return farref.worker().name


def main(me):
    if me.rank != 0:
        return  # serves the others until all are done
    server, *trainers = [peer for peer in me.peers() if not peer.is_me]
    parameters = server.remote(Parameters)
    runs = [trainer.start(train, parameters, seed, 200) for seed, trainer in enumerate(trainers)]
    for run in runs:
        print(run.result(), "is done")
    slope, offset = parameters.call.read()
    print(f"y = {slope:.1f} x + {offset:.1f}")
    assert abs(slope - 3) < 0.2 and abs(offset - 2) < 0.2


if __name__ == "__main__":
    farref.spawn(main, 4)
