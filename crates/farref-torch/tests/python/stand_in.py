"""The peer, played by Python: what the test executable written in Rust does, to check the scripts without it.

The real tests do not use this file. Its arguments are those of the Rust peer; what it serves is `peer_api`.

* `--rank 0` hosts the store. It goes last: in a dynamic group it leaves when it is alone; in a static one it keeps
  the store open until the others have read the last barrier.
* `--prefix N --first-barrier B`: the group is the (N+1)-th that its other processes join, so the store's prefix is
  `rpc_prefix_N` and the rounds of the shutdown count from B. PyTorch keeps both counters itself, so the stand-in gets
  there by groups that have no other use; a static group counts three rounds.
* `--start-when PATH`: it joins only when the file is there.
* `--then PATH`, `--end-when PATH`, `--end-then PATH`: files by which workers come and go one after the other.
* `--program NAME`: it is the worker of that rank of a program of `tutorials`.
* It ends with code 0 after a graceful `stop()`, and with another one if anything failed or leaked. It does not outlive
  its test by more than some minutes.

The last line on stdout is JSON: {"peer": name, "ok": true, "debug": the counters before it left}.
"""

import argparse
import importlib
import json
import os
import socket
import subprocess
import sys
import time
import traceback

import harness
import peer_api
import references
import torch.distributed.rpc as rpc


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", required=True, help="the number of workers, or dynamic")
    parser.add_argument("--master", required=True, help="host:port of the store")
    parser.add_argument("--prefix", type=int, default=0)
    parser.add_argument("--first-barrier", type=int, default=1)
    parser.add_argument("--start-when")
    parser.add_argument("--then")
    parser.add_argument("--end-when")
    parser.add_argument("--end-then")
    parser.add_argument("--program")
    parser.add_argument("--max-calls", type=int, help="PyTorch has no such limit")
    parser.add_argument("--transports", choices=["default", "uv"], default="default")
    return parser.parse_args()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def count_up(prefix, first_barrier, rank):
    """Joins and leaves groups that have no other use, to bring PyTorch's counters to where those of the others are.
    A process has to keep its rank in all its groups, so the lower ranks are filled with processes that do the same."""
    assert first_barrier == 3 * prefix + 1, "the stand-in can only follow static groups with a quiet shutdown"
    for turn in range(prefix):
        master = "127.0.0.1:%d" % free_port()
        me = [sys.executable, __file__, "--fill", master]
        fillers = [subprocess.Popen(me + [str(lower), str(rank + 1)]) for lower in range(rank)]
        fill(master, rank, rank + 1)
        for filler in fillers:
            filler.wait()


def fill(master, rank, world):
    harness.start_rpc("filler%d" % rank, rank, world, master, "uv")
    harness.stop_rpc(rank)


def main():
    harness.watch()
    if sys.argv[1] == "--fill":
        return fill(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    options = arguments()
    # A peer does not have these; the scripts do, so that they can ask for them.
    del peer_api.not_served, peer_api.Counter.not_served
    line = {"peer": options.name, "ok": False, "debug": None}
    try:
        harness.wait_for_file(options.start_when)
        if options.program:
            os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = options.master.rsplit(":", 1)
            importlib.import_module("tutorials." + options.program).run_worker(options.rank, int(options.world))
            print(json.dumps(dict(line, ok=True)), flush=True)
            harness.end_now(0)
        harness.wait_for_turn(options.start_when if options.then else None)
        harness.let_go(options.then)
        count_up(options.prefix, options.first_barrier, options.rank)
        harness.start_rpc(options.name, options.rank, options.world, options.master, options.transports)
        if options.end_when:
            harness.wait_for_turn(options.end_when)
            harness.let_go(options.end_then)
            references.drop_all()
        else:
            peer_api._stopping.wait()
        line["debug"] = references.snapshot()
        harness.stop_rpc(options.rank, peer_api._graceful)
        if options.rank == 0:
            # The others still read the last barrier in its store.
            time.sleep(1.0)
        line["ok"] = True
    except BaseException as error:
        traceback.print_exc()
        line["error"] = "%s: %s" % (type(error).__name__, str(error)[:2000])
    print(json.dumps(line), flush=True)
    harness.end_now(0 if line["ok"] else 1)


if __name__ == "__main__":
    main()
