"""Round trips of one client to a Python worker and to a peer, in turns, in one group.

    python3 latency.py --run [--peer-command "command of a peer"]

starts the three workers (the stand-in if no peer is named) and prints JSON: for each case the median and the 90th
percentile in microseconds for both, and the ratio of the medians, peer to Python. Both are asked alternately, so that
noise of the machine hits both alike. All workers have PyTorch's default transports; a peer may know fewer.

A Rust test can start the processes by itself: `latency.py --name python0 --rank 0 --master HOST:PORT`, the same with
python1 and 1, and the peer with `--name rust --rank 2 --world 3`.
"""

import argparse
import gc
import json
import os
import shlex
import statistics
import subprocess
import sys
import time

CLIENT, SERVER, PEER, WORLD = "python0", "python1", "rust", 3


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", action="store_true", help="start all three processes")
    parser.add_argument("--peer-command", help="with --run: the peer, if not the stand-in")
    parser.add_argument("--name", choices=[CLIENT, SERVER])
    parser.add_argument("--rank", type=int)
    parser.add_argument("--master")
    parser.add_argument("--calls", type=int, default=500, help="calls per case; cases with large tensors make fewer")
    return parser.parse_args()


def main():
    options = arguments()
    if options.run:
        return run(options)

    import harness
    import peer_api
    import torch.distributed.rpc as rpc
    import worker_api

    harness.watch()
    harness.start_rpc(options.name, options.rank, WORLD, options.master, "default")
    if options.name == CLIENT:
        report = measure(options.calls)
        rpc.rpc_sync(SERVER, worker_api.finish)
        rpc.rpc_sync(PEER, peer_api.stop)
        print(json.dumps(report), flush=True)
    else:
        worker_api.finished.wait()
    harness.stop_rpc(options.rank)
    if options.rank == 0:
        # The others still read the last barrier in its store.
        time.sleep(1.0)
    harness.end_now(0)


def measure(calls):
    import peer_api
    import torch
    import torch.distributed.rpc as rpc
    import worker_api

    def sync(value):
        return lambda to, echo: rpc.rpc_sync(to, echo, args=(value,))

    def remote(value):
        return lambda to, echo: rpc.remote(to, echo, args=(value,)).to_here()

    cases = [
        ("int", sync(7), calls),
        ("tensor, 1 KiB", sync(torch.ones(256)), calls),
        ("tensor, 1 MiB", sync(torch.ones(256 * 1024)), max(1, calls // 5)),
        ("tensor, 16 MiB", sync(torch.ones(4 * 1024 * 1024)), max(1, calls // 10)),
        ("remote and to_here", remote(7), calls),
    ]
    report = {"torch": torch.__version__, "unit": "microseconds", "cases": {}}
    for name, call, count in cases:
        targets = [("python", SERVER, worker_api.echo), ("rust", PEER, peer_api.echo)]
        times = {"python": [], "rust": []}
        # The first calls open pipes and fill caches.
        for _ in range(5):
            for _, to, echo in targets:
                call(to, echo)
        gc.disable()
        for turn in range(count):
            # Who goes first changes, too.
            for who, to, echo in targets if turn % 2 else targets[::-1]:
                started = time.perf_counter()
                call(to, echo)
                times[who].append((time.perf_counter() - started) * 1e6)
        gc.enable()
        row = {who: summary(values) for who, values in times.items()}
        row["ratio"] = round(row["rust"]["median"] / row["python"]["median"], 3)
        report["cases"][name] = row
    return report


def summary(values):
    values = sorted(values)
    return {
        "calls": len(values),
        "median": round(statistics.median(values), 1),
        "p90": round(values[min(len(values) - 1, len(values) * 9 // 10)], 1),
    }


def run(options):
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    from run_all import address

    master = address()
    peer = shlex.split(options.peer_command or "") or [sys.executable, os.path.join(here, "stand_in.py")]
    me = [sys.executable, os.path.abspath(__file__), "--calls", str(options.calls)]
    started = [
        subprocess.Popen(me + ["--name", CLIENT, "--rank", "0", "--master", master], stdout=subprocess.PIPE, text=True),
        subprocess.Popen(me + ["--name", SERVER, "--rank", "1", "--master", master]),
        subprocess.Popen(
            peer + ["--name", PEER, "--rank", "2", "--world", str(WORLD), "--master", master], stdout=subprocess.DEVNULL
        ),
    ]
    out, _ = started[0].communicate()
    codes = [process.wait() for process in started]
    if any(codes):
        print("exit codes: %s" % codes, file=sys.stderr)
        return 1
    print(json.dumps(json.loads(out), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
