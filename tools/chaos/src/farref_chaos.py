"""A Python worker of `farref-chaos`: joins the group, calls the Rust workers and is called by them, and does what the driver says.

`worker.rs`, beside this file, says what the driver and a worker say to each other, and `history.rs` what a worker writes down: this writes
the same records.
"""

import gc
import json
import os
import queue
import random
import re
import sys
import threading
import time

import farref

LANES = 3
MOST = 24
SETTLING = 40
SAMPLING = 0.5
EVICTED, IN_MINORITY, ALONE = 70, 71, 73
U64 = (1 << 64) - 1

# Of which kind an error is, in the histories. Any other may not come.
KINDS = [
    (farref.PeerLost, "peer_lost"),
    (farref.OwnerLost, "owner_lost"),
    (farref.CreatorLost, "creator_lost"),
    (farref.ContextLost, "context_lost"),
    (farref.Timeout, "timeout"),
    (farref.Cancelled, "cancelled"),
    (farref.Evicted, "evicted"),
    (farref.Minority, "minority"),
    (farref.NotMember, "not_member"),
]


class History:
    """A file to which records are only appended, each with one call of the system."""

    def __init__(self, folder, life):
        self.life = life
        path = os.path.join(folder, f"life-{life}.jsonl")
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.lock = threading.Lock()
        self.count = 0

    def note(self, event):
        with self.lock:
            # The same clock as in `history.rs`.
            at = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            record = {"at": at, "life": self.life, "event": event}
            os.write(self.file, (json.dumps(record) + "\n").encode())

    def number(self):
        with self.lock:
            self.count += 1
            return (self.life << 32) | self.count


history = None


def mixed(one, other):
    """As in `functions.rs`."""
    number = ((one * 0x9E3779B97F4A7C15) & U64) ^ other
    number ^= number >> 29
    number = (number * 0xBF58476D1CE4E5B9) & U64
    return (number ^ (number >> 32)) & ((1 << 52) - 1)


def total(call, a, b):
    """What others call this worker for."""
    history.note({"ran": {"call": call, "function": "total"}})
    return a + b


class Pool:
    """The references that this worker keeps."""

    def __init__(self):
        self.lock = threading.Lock()
        self.kept = []
        self.closed = False

    def keep(self, value, probe):
        hold = history.number()
        with self.lock:
            if self.closed:
                return
            history.note({"kept": {"hold": hold, "value": value}})
            self.kept.append((hold, value, probe))
            old = self.kept.pop(0) if len(self.kept) > MOST else None
        release(old)

    def look(self, random):
        with self.lock:
            return random.choice(self.kept)[1:] if self.kept else None

    def let_go(self, random):
        with self.lock:
            old = self.kept.pop(random.randrange(len(self.kept))) if self.kept else None
        release(old)

    def close(self):
        with self.lock:
            self.closed = True
            kept, self.kept = self.kept, []
        while kept:
            release(kept.pop())


def release(old):
    """Notes it; it goes with the caller's variable."""
    if old is not None:
        history.note({"released": {"hold": old[0]}})


class Lane(threading.Thread):
    """Does one thing after the other until it is told to stop."""

    def __init__(self, me, settings, pool, lane, stop):
        super().__init__(name=f"lane{lane}", daemon=True)
        self.me, self.pool, self.stop = me, pool, stop
        self.limit = settings["limit_ms"] / 1000
        self.pause = settings["pause_us"] / 1e6
        self.random = random.Random(f"{settings['seed']} {settings['life']} {lane}")

    def run(self):
        operations = [self.sum, self.total, self.make, self.use, self.use, self.give, self.let_go]
        while not self.stop.wait(self.random.uniform(0, 2 * self.pause)):
            self.random.choice(operations)()

    def peer(self, kind):
        try:
            peers = [peer for peer in self.me.peers() if peer.name.startswith(kind)]
        except farref.Error:
            return None  # it is out of the group
        return self.random.choice(peers) if peers else None

    def call(self, function, to, expects, make, value=None):
        call = history.number()
        history.note({
            "begun": {
                "call": call,
                "function": function,
                "to": to,
                "through": [],
                "values": [] if value is None else [value],
                "expects": {"value": expects(call)},
                "limit_ms": int(self.limit * 1000),
                "limits": 1,
            }
        })
        try:
            outcome = {"value": make(call)}
        except Exception as error:  # whatever it is, it is noted, and the checker judges it
            kinds = (kind for kinds, kind in KINDS if isinstance(error, kinds))
            text = f"{type(error).__name__}: {error}"
            # Whom it names, which is not always the one that was called: the owner of a value that was to be handed on.
            named = re.search("worker `([^`]+)`", text)
            worker = named.group(1) if named else to
            outcome = {"failed": {"kind": next(kinds, "unexpected"), "worker": worker, "text": text}}
        history.note({"ended": {"call": call, "outcome": outcome}})

    def sum(self):
        peer = self.peer("worker")
        if peer is not None:
            a, b = self.random.getrandbits(32), self.random.getrandbits(32)
            self.call(
                "sum", peer.name, lambda _: a + b, lambda call: peer.timeout(self.limit).call("chaos.sum", call, a, b)
            )

    def total(self):
        peer = self.peer("python")
        if peer is not None:
            a, b = self.random.getrandbits(32), self.random.getrandbits(32)
            self.call("total", peer.name, lambda _: a + b, lambda call: peer.timeout(self.limit).call(total, call, a, b))

    def make(self):
        peer = self.peer("worker")
        if peer is not None:
            value = history.number()
            try:
                probe = peer.remote("chaos.Probe", value)
            except farref.Error:
                return  # it is out of the group
            self.pool.keep(value, probe)

    def use(self):
        kept = self.pool.look(self.random)
        if kept is not None:
            value, probe = kept
            self.call(
                "use",
                probe.owner.name,
                lambda call: mixed(value, call),
                lambda call: probe.timeout(self.limit).call.mark(call),
                value,
            )

    def give(self):
        kept, peer = self.pool.look(self.random), self.peer("worker")
        if kept is not None and peer is not None:
            value, probe = kept
            far = {"value": value, "probe": probe}
            self.call(
                "give",
                peer.name,
                lambda call: mixed(value, call),
                lambda call: peer.timeout(self.limit).call("chaos.keep", call, far),
                value,
            )

    def let_go(self):
        self.pool.let_go(self.random)


def memory():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


def sample(me):
    snapshot = me.snapshot()
    return {
        "memory": memory(),
        "references": snapshot["references_in_all"],
        "open_calls": snapshot["open_calls"],
        "contexts": snapshot["contexts"],
        "values": 0,
    }


def keep_sampling(me, over):
    while not over.wait(SAMPLING):
        try:
            history.note({"sampled": sample(me)})
        except farref.Error:
            return  # it is out of the group


def settle(me):
    """Waits until nothing is left. What is left then."""
    deadline = time.monotonic() + SETTLING
    while True:
        gc.collect()
        left = sample(me)
        if not any(left[what] for what in ("references", "open_calls", "contexts")):
            return left
        if time.monotonic() > deadline or not me.is_member:
            return left
        time.sleep(0.05)


def listen(orders):
    for line in sys.stdin:
        orders.put(line.strip())
    os._exit(ALONE)


def say(word):
    print(word, flush=True)


def live(me, settings):
    orders = queue.Queue()
    threading.Thread(target=listen, args=(orders,), daemon=True).start()
    stop, over, pool = threading.Event(), threading.Event(), Pool()
    lanes = [Lane(me, settings, pool, lane, stop) for lane in range(LANES)]
    for lane in lanes:
        lane.start()
    threading.Thread(target=keep_sampling, args=(me, over), daemon=True).start()

    def end_lanes():
        stop.set()
        for lane in lanes:
            lane.join()

    while True:
        try:
            order = orders.get(timeout=0.2)
        except queue.Empty:
            if me.is_member:
                continue
            order = "end"  # which says how it came to be out of the group
        if order == "quiet":
            end_lanes()
            history.note("quiet")
            say("quiet")
        elif order == "let-go":
            pool.close()
            history.note({"settled": settle(me)})
            say("settled")
        elif order == "leave":
            end_lanes()
            pool.close()
            history.note("leaving")
            over.set()
            return me.leave()
        elif order == "end":
            end_lanes()
            over.set()
            return me.shutdown()


def main():
    global history
    settings = json.loads(sys.argv[1])
    history = History(settings["folder"], settings["life"])
    me = farref.join(
        name=settings["worker"],
        rendezvous=settings["rendezvous"],
        peer_timeout=settings["peer_timeout_ms"] / 1000,
        call_timeout=settings["limit_ms"] / 1000,
        require_majority=True,
        fail_on_leaks=True,
    )
    history.note({"joined": {"worker": settings["worker"]}})
    say("joined")
    how, code = "well", 0
    try:
        live(me, settings)
    except farref.Evicted as error:
        how, code = str(error), EVICTED
    except farref.Minority as error:
        how, code = str(error), IN_MINORITY
    except farref.Error as error:
        how, code = str(error), 1
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    history.note({"over": {"how": how}})
    sys.stderr.flush()
    os._exit(code)
