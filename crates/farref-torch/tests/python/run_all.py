"""Runs every plan with the stand-in in place of the Rust peer, and prints a table.

    python3 run_all.py [--python python3] [--peer "command of a peer"] [--times 3] [plan..]
"""

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

import forks

HERE = os.path.dirname(os.path.abspath(__file__))
# A plan that takes longer hangs. Its processes give up before, and print what their threads do.
PATIENCE = 720


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch")
    parser.add_argument("--peer", help="the command of another peer than the stand-in")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("plans", nargs="*", help="names of plans; all if none is given")
    options = parser.parse_args()
    peer = shlex.split(options.peer) if options.peer else [options.python, os.path.join(HERE, "stand_in.py")]
    import plans

    known = plans.all_plans()
    if not options.peer:
        # A process of PyTorch's cannot join a dynamic group twice.
        known = [p for p in known if not any("--lives" in process["args"] for process in p["processes"])]
    chosen = [p for p in known if not options.plans or p["name"] in options.plans]
    assert not options.plans or len(chosen) == len(set(options.plans)), "there are: %s" % [p["name"] for p in known]
    failures = 0
    print("%-30s %-7s %7s %7s  %s" % ("plan", "result", "seconds", "checks", "problem"), flush=True)
    with forks.Forks(options.python) as server:
        for plan in chosen * options.times:
            started = time.monotonic()
            problems, checks = run(plan, server, peer)
            failures += bool(problems)
            row = (plan["name"], "FAILED" if problems else "ok", time.monotonic() - started, checks)
            print("%-30s %-7s %7.1f %7d  %s" % (row + ("; ".join(problems)[:300],)), flush=True)
    print("%d failed" % failures)
    return 1 if failures else 0


def run(plan, server, peer):
    """Starts all processes of a plan and compares how they end with what the plan says."""
    fill = {"{master}": address(), "{second_master}": address()}
    fill["{master6}"] = fill["{master}"].replace("127.0.0.1", "[::1]")
    with tempfile.TemporaryDirectory() as scratch:
        fill["{scratch}"] = scratch
        running = []
        for process in plan["processes"]:
            args = process["args"]
            for key, value in fill.items():
                args = [arg.replace(key, value) for arg in args]
            out, err = (open(os.path.join(scratch, process["name"] + end), "w+") for end in (".out", ".err"))
            if process["kind"] == "peer":
                child = subprocess.Popen(peer + args, stdout=out, stderr=err, cwd=HERE)
            else:
                child = forks.Forked(args, out.name, err.name, server.socket)
            running.append((process, child, out, err))
        wait_for([(process, child) for process, child, _, _ in running], scratch)
        problems, checks = [], 0
        for process, child, out, _ in running:
            problem, count = judge(process, child.returncode, out)
            checks += count
            if problem:
                problems.append(problem)
        if problems:
            for process, _, _, err in running:
                err.seek(0)
                print("---- %s: %s\n%s" % (plan["name"], process["name"], err.read()[-6000:]), file=sys.stderr)
    return problems, checks


def wait_for(children, scratch):
    """Waits for all, and says who has ended. Once one has failed, the others get a few seconds."""
    end = time.monotonic() + PATIENCE
    left = list(children)
    while left and time.monotonic() < end:
        for process, child in [(process, child) for process, child in left if child.poll() is not None]:
            left.remove((process, child))
            if child.returncode != (-signal.SIGKILL if process["end"] == "killed" else 0):
                end = min(end, time.monotonic() + 5)
            open(os.path.join(scratch, "ended-" + process["name"]), "w").close()
        time.sleep(0.02)
    for process, child in left:
        child.kill()
        if process["kind"] == "peer":
            child.wait()


def judge(process, code, out):
    """What is wrong with the end of a process, if anything, and the number of its checks."""
    name = process["name"]
    if process["end"] == "killed":
        return (None if code == -signal.SIGKILL else "%s: expected to be killed, ended with %s" % (name, code)), 0
    out.seek(0)
    lines = out.read().strip().split("\n")
    try:
        report = json.loads(lines[-1])
    except ValueError:
        return "%s: %s" % (name, "did not end" if code == -signal.SIGKILL else "no report, exit code %s" % code), 0
    if code != 0 or not report["ok"]:
        return "%s: exit code %s: %s" % (name, code, report.get("error")), 0
    if process["kind"] == "python" and report["checks"] == 0:
        return "%s: checked nothing" % name, 0
    return None, report.get("checks", 0)


def address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
