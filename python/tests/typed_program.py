"""A program with types, as type checkers see it: they are to find no error in it, and those errors that are marked."""

from __future__ import annotations

import asyncio
import collections
import operator
import time

import farref


@farref.remote(timeout=5)
def add(a: int, b: int = 0) -> int:
    return a + b


@farref.remote
async def add_later(a: int, b: int) -> int:
    return a + b


async def plain_async(a: int) -> int:
    return a


@farref.remote
class Table:
    def __init__(self, rows: int) -> None:
        self.rows = [0.0] * rows

    def add(self, row: int, number: float) -> float:
        self.rows[row] += number
        return self.rows[row]

    async def total(self) -> float:
        return sum(self.rows)


def total(table: farref.RRef[Table]) -> float:
    return sum(table.to_here().rows)


def calls(peer: farref.Peer) -> None:
    number: int = peer.call(add, 1, 2)
    number = peer.call(add, 1, b=2)
    number = peer.call(plain_async, 1)
    number = peer.call(add_later, 1, 2)
    number = add.on(peer, 1, 2)
    number = add_later.on(peer, 1, 2)
    number = add(1, 2)
    both: tuple[int, int] = peer.call(divmod, 7, 2)
    most: int = peer.call(max, 3, 5)
    length: int = peer.call(len, "four")
    peer.call(operator.add, 1, 2)
    peer.call(time.sleep, 0.1)
    root: float = peer.call("math.sqrt", 2)
    waiting: farref.Future[int] = peer.start(add, 1, 2)
    waiting = peer.start(plain_async, 1)
    waiting = add.start_on(peer, 1, 2)
    number = waiting.result(timeout=5)
    waiting.add_done_callback(lambda future: print(future.result() + 1))
    words: farref.RRef[collections.Counter[str]] = peer.remote(collections.Counter, "banana")
    words.call.most_common(1)
    print(number, both, most, length, root)


def references(peer: farref.Peer, me: farref.Worker) -> float:
    table = peer.remote(Table, 3)
    far: farref.RRef[int] = add.remote_on(peer, 1, 2)
    copy: Table = table.to_here()
    table.timeout(5).start.add(1, 2.0).result()
    me.publish("table", table)
    me.rref([1, 2]).local_value().append(3)
    print(copy.rows, far.owner.name, farref.caller())
    with farref.context(me) as context:
        name: str = context.id
        assert farref.context_id() == name
    return peer.timeout(None).call(total, table)


async def coroutines(peers: list[farref.Peer], table: farref.RRef[Table]) -> int:
    numbers: list[int] = await asyncio.gather(*(peer.start(add, 1, 2) for peer in peers))
    copy: Table = await table.owner.start(farref.RRef.to_here, table)
    first: int = await peers[0].start(add_later, 1, 2)
    return len(copy.rows) + first + sum(numbers) + await add_later(1, 2)


def main(worker: farref.Worker, text: str, times: int = 1) -> None:
    for peer in worker.peers():
        peer.call(print, text * times)


def joins() -> float:
    with farref.join(name="a", rank=0, world_size=1, rendezvous="tcp://host:29500") as me:
        try:
            return references(me.me, me)
        except (farref.PeerLost, farref.RemoteError) as error:
            print(error)
    with farref.testing.Cluster("a", "b") as cluster:
        calls(cluster["a"].peer("b"))
    farref.spawn(main, 2, "hello", times=2)
    return 0.0


def mistakes(peer: farref.Peer) -> None:
    text: str = peer.call(add, 1, 2)  # error
    farref.join(nam="a")  # error
    peer.cal(add, 1, 2)  # error
    add.on(peer, "one", 2)  # error
    peer.call(add, "one")  # error
    farref.spawn(main, 2, 7)  # error
    print(text)
