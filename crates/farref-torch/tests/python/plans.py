"""Every combination of scenario, group and transports that is worth running, with the command line of each process.

A plan: {"name", "scenario", "smoke": bool, "processes": [{"name", "kind": "python" or "peer", "main": bool,
"args": [..], "end": "ok" or "killed"}]}. Those with "smoke" are run by default: together they try everything once. The
others repeat it at other ranks, over other transports, with other members. Arguments have the placeholders {master}, {second_master} (two free ports, as host:port), {master6} (the first of
them at [::1]) and {scratch} (an empty folder). Start all processes of a plan at once, in any order: who must wait for something waits
for a file.
"""

import group_plans
import tutorials.plans

# One plan for each thing that a peer has to be able to do.
SMOKE = {
    "join_rank0",  # a static group, whose store the peer hosts
    "join_rank0_ipv6",  # the same, where the group is told an address of IPv6
    "join_rank1_leader",  # and one whose store PyTorch hosts; the peer leads the all-gather
    "come_and_go",  # a dynamic group
    "again",  # a second group of the same Python processes
    "calls",
    "errors",
    "tensors",
    "builtins",
    "crowd",
    "generic",
    "threads",
    "sharing",
    "refusals",
    "objects",
    "ending",
    "autograd",
    "training",
    "late_calls",
    "leave_busy",
    "looked_after",
    "leave_held",
    "given_up",
    "impatient",
    "greetings",
    "kill_python",
    "kill_ending",
    "kill_dynamic",
    "kill_peer",
}

# What a peer writes when it has waited for the others in vain for the first time.
IMPATIENT = ["--impatient", "{scratch}/gave-up"]


def plan(
    name, scenario, group, workers, transports="default", late=(), killed=(), prefix=0, master="{master}", peer_args=()
):
    """`workers` in the order of their ranks, peers with a star: "python0 rust* python1"."""
    named = [(word.rstrip("*"), word.endswith("*")) for word in workers.split()]
    # The main worker is the Python worker with the smallest name that is not to be killed.
    pythons = sorted((n for n, is_peer in named if not is_peer), key=lambda n: (n in killed, n))
    peers = [n for n, is_peer in named if is_peer]
    processes = []
    for rank, (worker, is_peer) in enumerate(named):
        args = ["--name", worker, "--rank", str(rank), "--world", "dynamic" if group == "dynamic" else str(len(named))]
        args += ["--transports", transports]
        if worker in late:
            args += ["--start-when", "{scratch}/start-" + worker]
        if is_peer:
            args += ["--master", "{second_master}" if prefix else master]
            args += ["--prefix", str(prefix), "--first-barrier", str(3 * prefix + 1), *peer_args]
        else:
            args += ["--master", master, "--second-master", "{second_master}", "--scratch", "{scratch}"]
            args += ["--scenario", scenario, "--pythons", ",".join(pythons), "--peers", ",".join(peers)]
            args += ["--outlives", ",".join(name for name, _ in named[1:])] if rank == 0 else []
        processes.append(
            {
                "name": worker,
                "kind": "peer" if is_peer else "python",
                "main": worker == pythons[0],
                "args": args,
                "end": "killed" if worker in killed else "ok",
            }
        )
    return {"name": name, "scenario": scenario, "smoke": name in SMOKE, "processes": processes}


def smoke_plans():
    """Those that try everything once."""
    chosen = [plan for plan in all_plans() if plan["smoke"]]
    assert {plan["name"] for plan in chosen} >= SMOKE, "a plan of SMOKE is not there"
    return chosen


def all_plans():
    return [
        # The peer at each rank; named so that it is, or is not, the leader of the all-gather (the smallest name is).
        plan("join_rank0", "join", "static", "rust* python0 python1"),
        plan("join_rank0_leader", "join", "static", "a_rust* python0 python1", "uv"),
        plan("join_rank1_leader", "join", "static", "python0 a_rust* python1"),
        plan("join_rank2", "join", "static", "python0 python1 rust*", "uv"),
        plan("join_rank0_ipv6", "join", "static", "rust* python0", master="{master6}"),
        plan("join_two_peers", "join", "static", "rust* python0 rust2*"),
        plan("join_dynamic", "join", "dynamic", "python0 rust*"),
        plan("join_dynamic_rank0", "join", "dynamic", "rust* python0", "uv"),
        # Members that come and go.
        plan("come_and_go", "come_and_go", "dynamic", "python0 rust* python1 rust2*", late=["rust", "python1", "rust2"]),
        plan("come_and_go_rank0", "come_and_go", "dynamic", "rust* python0 python1 rust2*", "uv", ["python1", "rust2"]),
        plan("again", "again", "static", "python0 python1 rust*", prefix=1),
        # Calls, values, errors.
        plan("calls", "calls", "static", "python0 rust*"),
        plan("calls_uv", "calls", "static", "rust* python0", "uv"),
        plan("errors", "errors", "static", "python0 rust*"),
        plan("tensors", "tensors", "static", "python0 rust*"),
        plan("tensors_uv", "tensors", "static", "python0 rust*", "uv"),
        plan("builtins", "builtins", "static", "python0 rust*"),
        plan("crowd", "crowd", "static", "python0 rust*", peer_args=["--max-calls", "64"]),
        plan("generic", "generic", "static", "python0 rust*"),
        plan("threads", "threads", "static", "python0 python1 rust*"),
        plan("threads_uv", "threads", "static", "python0 python1 rust*", "uv"),
        # References.
        plan("sharing", "sharing", "static", "python0 python1 rust*"),
        plan("sharing_two_peers", "sharing", "static", "python0 rust* rust2*"),
        plan("sharing_dynamic", "sharing", "dynamic", "rust* python0 python1", "uv"),
        plan("refusals", "refusals", "static", "python0 python1 rust*"),
        plan("objects", "objects", "static", "python0 python1 rust*"),
        plan("ending", "ending", "static", "python0 python1 rust*"),
        plan("late_calls", "late_calls", "static", "python0 python1 rust*"),
        plan("late_calls_rank0", "late_calls", "static", "rust* python0 python1", "uv"),
        plan("leave_busy", "leave_busy", "dynamic", "python0 python1 rust*"),
        plan("looked_after", "looked_after", "dynamic", "python0 python1 rust*", late=["rust"]),
        plan("leave_busy_rank0", "leave_busy", "dynamic", "rust* python0 python1", "uv"),
        plan("leave_held", "leave_held", "dynamic", "python0 python1 rust*"),
        plan("given_up", "given_up", "static", "python0 python1 rust*"),
        plan("given_up_rank0", "given_up", "static", "rust* python0 python1", "uv"),
        plan("impatient", "impatient", "static", "python0 python1 rust*", peer_args=IMPATIENT),
        plan("impatient_leader", "impatient", "static", "a_rust* python0 python1", "uv", peer_args=IMPATIENT),
        # Strangers. The main worker leads the all-gather, so the other has no pipe to the peer before.
        plan("greetings", "greetings", "static", "python0 python1 rust*"),
        # Distributed autograd.
        plan("autograd", "autograd", "static", "python0 python1 rust*"),
        plan("autograd_two_peers", "autograd", "static", "rust* python0 rust2*", "uv"),
        plan("training", "training", "static", "python0 python1 rust*"),
        # Processes that die.
        plan("kill_python", "kill_python", "static", "python0 python1 rust*", killed=["python1"]),
        plan("kill_python_rank0", "kill_python", "static", "python0 python1 rust*", "uv", killed=["python0"]),
        plan("kill_ending", "kill_ending", "static", "python0 python1 rust*", killed=["python1"]),
        plan("kill_ending_leader", "kill_ending", "static", "python0 a_rust* python1", killed=["python1"]),
        plan("kill_ending_pair", "kill_ending", "static", "python1 rust* python2 python3", "uv", killed=["python3"]),
        plan(
            "kill_dynamic", "kill_dynamic", "dynamic", "python0 rust* python1 python2", late=["python2"], killed=["python1"]
        ),
        plan("kill_peer", "kill_peer", "static", "python0 python1 rust*", killed=["rust"]),
        plan("kill_peer_rank0", "kill_peer", "static", "rust* python0 python1", "uv", killed=["rust"]),
        plan("kill_peer_dynamic", "kill_peer", "dynamic", "python0 rust* python1", killed=["rust"]),
        # Who comes and goes when.
        *group_plans.all_plans(),
        # Whole programs.
        *tutorials.plans.all_plans(),
    ]
