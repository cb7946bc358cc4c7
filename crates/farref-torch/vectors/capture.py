"""Capture real torch.distributed.rpc traffic and write it as test vectors.

Run as root with the Python that has the torch version to capture:

    python3 capture.py

It writes to a folder beside this file named after the torch version. With names of scenarios as arguments it
only runs those, as a check, and writes nothing. See README.md.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SCENARIOS = {"store": 1, "static": 3, "dynamic": 3, "again": 2, "defaults": 2}
PORTS = {"CAPTURE_PORT": "29500", "CAPTURE_PORT_2": "29501", "CAPTURE_SIDE_PORT": "29502"}


def worker(scenario, rank):
    """Runs in a child. The scenario is compiled under its bare file name, so no path of this machine gets into a traceback."""
    import types

    sys.path.insert(0, HERE)
    with open(os.path.join(HERE, "scenario.py")) as source:
        text = source.read()
    import linecache

    linecache.cache["scenario.py"] = (len(text), None, text.splitlines(True), "scenario.py")
    module = types.ModuleType("scenario")
    sys.modules["scenario"] = module
    exec(compile(text, "scenario.py", "exec"), module.__dict__)
    getattr(module, scenario)(rank)


def run(scenario):
    """Runs one scenario under the recorder. Returns (connections, marks, report of worker 0)."""
    import sniff

    recorder = sniff.Recorder()
    recorder.start()
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, PYTHONHASHSEED="0", OMP_NUM_THREADS="1", CAPTURE_REPORT=os.path.join(folder, "report"), **PORTS)
        sniff.mark("init", "the group starts")
        started = time.time()
        children = []
        for rank in range(SCENARIOS[scenario]):
            command = [sys.executable, os.path.abspath(__file__), "--worker", scenario, str(rank)]
            children.append(subprocess.Popen(command, env=env, stderr=open(os.path.join(folder, "stderr%d" % rank), "w")))
        try:
            wait_for(scenario, children, folder)
        finally:
            for child in children:
                child.kill()
        print("%s: %.1f s" % (scenario, time.time() - started), flush=True)
        with open(env["CAPTURE_REPORT"]) as report:
            facts = json.load(report)
    for problem in facts.get("problems", []):
        print("  step failed:", problem)
    connections, marks = recorder.stop()
    return connections, marks, facts


def wait_for(scenario, children, folder, limit=90):
    deadline = time.time() + limit
    while any(child.poll() is None for child in children):
        if time.time() > deadline or any(child.poll() for child in children):
            break
        time.sleep(0.05)
    for rank, child in enumerate(children):
        if child.poll() != 0:
            with open(os.path.join(folder, "stderr%d" % rank)) as errors:
                print("%s: worker %d: exit %s\n%s" % (scenario, rank, child.poll(), errors.read()[-3000:]), flush=True)
    if any(child.poll() != 0 for child in children):
        raise RuntimeError("%s did not end well" % scenario)


def main():
    import sniff

    sniff.enter_private_network()
    import torch

    version = re.match(r"\d+\.\d+(\.\d+)?", torch.__version__).group(0)
    chosen = sys.argv[1:] or list(SCENARIOS)
    recordings = {name: run(name) for name in chosen}
    if set(chosen) != set(SCENARIOS):
        print("only a part was run: nothing is written")
        return
    import write

    write.write(os.path.join(HERE, version), torch, recordings)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--worker":
        worker(sys.argv[2], int(sys.argv[3]))
    else:
        main()
