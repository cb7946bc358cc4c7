"""A server that answers many callers at once: coroutines wait until a batch is full, and are answered together.

    python python/examples/batching_server.py

No thread waits for a batch: the server's coroutines are on its event loop, and so are those of the clients.
"""

import asyncio

import farref


class Batcher:
    """Squares numbers, as many as come together."""

    def __init__(self, size):
        self.size = size
        self.waiting = []
        self.batches = 0

    async def square(self, number):
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append((number, answer))
        if len(self.waiting) == self.size:
            self._run()
        return await answer

    def _run(self):
        batch, self.waiting = self.waiting, []
        self.batches += 1
        for number, answer in batch:
            answer.set_result(number * number)  # one matrix product, in a real one

    def count(self):
        return self.batches


async def ask(batcher, first, number):
    """A client: all of its questions are on their way at once."""
    return await asyncio.gather(*(batcher.start.square(question) for question in range(first, first + number)))


def main(me):
    if me.rank != 0:
        return
    server, *clients = [peer for peer in me.peers() if not peer.is_me]
    batcher = server.remote(Batcher, 8)
    asked = [client.start(ask, batcher, 100 * client.rank, 32) for client in clients]
    for client, answers in zip(clients, asked):
        assert answers.result() == [number * number for number in range(100 * client.rank, 100 * client.rank + 32)]
    print("64 questions were answered in", batcher.call.count(), "batches")


if __name__ == "__main__":
    farref.spawn(main, 4)
