"""What calls, references and large arrays cost from Python, beside ``torch.distributed.rpc`` where there is a torch.

``python -m farref.bench`` starts two processes of its own on this host, for torch, for farref and for the same program of torch's on
farref (``farref.torch``), in turns, and prints the medians of all turns in one table, with the medians of the ratios to torch. Figures
differ from minute to minute on a machine that does other things: only what is side by side is worth comparing.
"""

import argparse
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

# What is measured: its name, its unit, whether less is better.
MEASURES = [
    ("empty call", "us", True),
    ("empty call, 99th of 100", "us", True),
    ("256 calls at once", "calls/s", False),
    ("create, fetch, drop a reference", "us", True),
    ("16 MiB there and back", "ms", True),
    ("autograd step, a remote layer", "us", True),
]
# On a GPU, where there is one: tensors that the other worker takes, or hands back.
SIZES = [("1 KiB", 1 << 10), ("1 MiB", 1 << 20), ("64 MiB", 64 << 20), ("1 GiB", 1 << 30)]
ON_A_GPU = [(f"GPU: {what} {size}", "us", True) for what in ("take", "echo") for size, _ in SIZES]


def nothing():
    """An empty function."""


def same(value):
    """Hands its argument back."""
    return value


def take(value):
    """Takes its argument."""


def layer(tensor):
    """The layer that this worker has, of a model that is spread over two."""
    return _layer()(tensor)


@functools.lru_cache(maxsize=None)
def _layer():
    import torch

    return torch.nn.Linear(64, 64)


def _median(of, rounds):
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        of()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _measure(calls, pipelined, reference, large, step, rounds):
    """The figures, of functions that do what is measured once; None where there is nothing to be measured."""
    for _ in range(100):
        calls()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        calls()
        times.append(time.perf_counter() - began)
    times.sort()
    figures = {
        "empty call": statistics.median(times) * 1e6,
        "empty call, 99th of 100": times[len(times) * 99 // 100] * 1e6,
    }
    pipelined(256)
    began = time.perf_counter()
    batches = max(rounds // 200, 2)
    for _ in range(batches):
        pipelined(256)
    figures["256 calls at once"] = batches * 256 / (time.perf_counter() - began)
    figures["create, fetch, drop a reference"] = _median(reference, max(rounds // 5, 20)) * 1e6
    if large is not None:
        large()
        figures["16 MiB there and back"] = _median(large, 10) * 1e3
    if step is not None:
        step()
        figures["autograd step, a remote layer"] = _median(step, max(rounds // 5, 20)) * 1e6
    return figures


def _has_gpu():
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _on_a_gpu(call):
    """Calls with tensors on a GPU. ``call``: a function, and its argument."""
    if not _has_gpu():
        return {}
    import torch
    from farref import bench as there

    figures = {}
    for size, nbytes in SIZES:
        tensor = torch.ones(nbytes // 4, device="cuda")
        for what, function in (("take", there.take), ("echo", there.same)):

            def once():
                call(function, tensor)
                torch.cuda.synchronize()

            for _ in range(5):
                once()
            figures[f"GPU: {what} {size}"] = _median(once, 30) * 1e6
    return figures


def _of_farref(rank, place, rounds):
    import farref
    from farref import bench as there

    with farref.join(name=f"worker{rank}", rank=rank, world_size=2, rendezvous=place) as me:
        if rank != 0:
            return None
        peer = me.peer("worker1")
        try:
            import numpy

            array = numpy.ones(2 << 20)
        except ImportError:
            array = None

        def pipelined(number):
            for pending in [peer.start(there.nothing) for _ in range(number)]:
                pending.result()

        figures = _measure(
            lambda: peer.call(there.nothing),
            pipelined,
            lambda: peer.remote(there.nothing).to_here(),
            None if array is None else lambda: peer.call(there.same, array),
            None,
            rounds,
        )
        # At last: without a GPU, too, torch would be there for the rest.
        return {**figures, **_on_a_gpu(peer.call)}


def _of_torch(rank, place, rounds):
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc
    from farref import bench as there

    host, port = place.removeprefix("tcp://").split(":")
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = host, port
    options = rpc.TensorPipeRpcBackendOptions(init_method="env://")
    if _has_gpu():
        options.set_device_map(f"worker{1 - rank}", {0: 0})
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    figures = None
    if rank == 0:
        tensor = torch.ones(2 << 20, dtype=torch.float64)

        def pipelined(number):
            for pending in [rpc.rpc_async("worker1", there.nothing) for _ in range(number)]:
                pending.wait()

        head, batch = torch.nn.Linear(64, 1), torch.ones(8, 64)

        def step():
            with dist_autograd.context() as context:
                loss = head(rpc.rpc_sync("worker1", there.layer, args=(batch,))).sum()
                dist_autograd.backward(context, [loss])
                dist_autograd.get_gradients(context)

        figures = _measure(
            lambda: rpc.rpc_sync("worker1", there.nothing),
            pipelined,
            lambda: rpc.remote("worker1", there.nothing).to_here(),
            lambda: rpc.rpc_sync("worker1", there.same, args=(tensor,)),
            step,
            rounds,
        )
        figures.update(_on_a_gpu(lambda function, tensor: rpc.rpc_sync("worker1", function, args=(tensor,))))
    rpc.shutdown()
    return figures


def _run(what, rounds):
    """The figures of a pair of processes, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        if what != "farref":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                place = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        else:
            place = f"file://{folder}/store"
        command = [sys.executable, "-m", "farref.bench", "--rounds", str(rounds), "--place", place, "--role", what]
        processes = [
            subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)
        ]
        said = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit(f"a process of {what} failed: its error is above")
        return json.loads(said[0].splitlines()[-1])


def _figure(turns, system, name):
    """The median of all turns."""
    figures = [turn[system][name] for turn in turns if turn.get(system, {}).get(name) is not None]
    return f"{statistics.median(figures):,.1f}" if figures else "-"


def _ratio(turns, system, name):
    """The median of the ratios to torch in the same turn: what disturbs a turn disturbs both."""
    ratios = [
        turn[system][name] / turn["torch"][name]
        for turn in turns
        if "torch" in turn and turn[system].get(name) is not None and turn["torch"].get(name)
    ]
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def _at_least_one(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too few: at least 1")
    return number


def main():
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m farref.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=_at_least_one, default=2000, help="how many calls are timed in a turn (2000)")
    parser.add_argument("--turns", type=_at_least_one, default=3, help="how often each system has its turn (3)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    for hidden in ("--role", "--place"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role is not None:
        if arguments.role == "farref.torch":
            import farref.torch  # before torch's own is set up
        of = _of_farref if arguments.role == "farref" else _of_torch
        print(json.dumps(of(arguments.rank, arguments.place, arguments.rounds)))
        return
    try:
        import torch.distributed.rpc as rpc

        has_torch = hasattr(rpc, "init_rpc")
    except ImportError:
        has_torch = False
    systems = ["torch", "farref", "farref.torch"] if has_torch else ["farref"]
    turns = []
    for turn in range(1, arguments.turns + 1):
        print(f"turn {turn} of {arguments.turns}", file=sys.stderr)
        turns.append({system: _run(system, arguments.rounds) for system in systems})
    if arguments.json:
        print(json.dumps(turns))
        return
    print(f"{'':40}{'torch':>12}{'farref':>12}{'ratio':>8}{'farref.torch':>14}{'ratio':>8}")
    on_a_gpu = [measure for measure in ON_A_GPU if measure[0] in turns[0]["farref"]]
    for name, unit, _ in MEASURES + on_a_gpu:
        theirs, ours, under = (_figure(turns, system, name) for system in ("torch", "farref", "farref.torch"))
        row = f"{name + ', ' + unit:40}{theirs:>12}{ours:>12}{_ratio(turns, 'farref', name):>8}"
        print(f"{row}{under:>14}{_ratio(turns, 'farref.torch', name):>8}")
    if not has_torch:
        print("there is no torch with RPC in this Python: nothing to compare with")


if __name__ == "__main__":
    main()
