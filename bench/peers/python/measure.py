"""Measures one system from Python and prints the figures as JSON: the same work as `src/measure.rs` does.

    measure.py {torch,ray,monarch} [--transport {tcp,shm}] [--seconds 1]
"""

import argparse
import collections
import json
import math
import time

from parent import end_with_parent

IN_FLIGHT = (1, 16, 256, 4096)
PAYLOADS = {"1mib": 1 << 20, "64mib": 64 << 20}
WARM_UP = 20


def repeat(something, seconds, least, warm_up=0):
    """Sorted times, in seconds, of something done again and again."""
    for _ in range(warm_up):
        something()
    times = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        began = time.perf_counter()
        something()
        times.append(time.perf_counter() - began)
    return sorted(times)


def percentile(times, percent):
    return times[min(len(times) * percent // 100, len(times) - 1)]


def pipelined(caller, window, seconds):
    """Calls per second with so many in flight.

    The older half is awaited at once and made up for, because awaiting many costs these systems less than
    awaiting each.
    """
    half = math.ceil(window / 2)
    began = time.perf_counter()
    pending = collections.deque(caller.start() for _ in range(window))
    calls = 0
    while True:
        caller.finish([pending.popleft() for _ in range(half)])
        calls += half
        if time.perf_counter() - began >= seconds:
            break
        pending.extend(caller.start() for _ in range(half))
    calls += len(pending)
    caller.finish(list(pending))
    return calls / (time.perf_counter() - began)


def measure(caller, seconds):
    measures = {}
    times = repeat(caller.call, seconds, least=10, warm_up=WARM_UP)
    measures["empty_p50_us"] = percentile(times, 50) * 1e6
    measures["empty_p99_us"] = percentile(times, 99) * 1e6
    for window in IN_FLIGHT:
        measures[f"calls_per_second_{window}"] = pipelined(caller, window, seconds)
    for name, size in PAYLOADS.items():
        payload = caller.payload(size)

        def send():
            if caller.send(payload) != size:
                raise RuntimeError("bytes were lost")

        times = repeat(send, seconds, least=2, warm_up=1)
        measures[f"send_{name}_gb_per_second"] = size / 1e9 / percentile(times, 50)
    return measures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("system", choices=["torch", "ray", "monarch"])
    parser.add_argument("--transport", choices=["tcp", "shm"], default="tcp")
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    end_with_parent()
    if arguments.system == "torch":
        import torch_rpc

        connected = torch_rpc.connected(arguments.transport)
    elif arguments.system == "ray":
        import ray_actors

        connected = ray_actors.connected()
    else:
        import monarch_actors

        connected = monarch_actors.connected()
    with connected as (caller, version):
        results = {"version": version, "measures": measure(caller, arguments.seconds)}
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
