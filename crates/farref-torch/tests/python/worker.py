"""One Python worker of one scenario.

    python3 worker.py --scenario calls --name python0 --rank 0 --world 2 --master 127.0.0.1:29500 --peers rust \
        --pythons python0 --scratch some/folder

The first of `--pythons` is the main worker: it drives, the others answer until it tells them to leave. The last line
on stdout is JSON about what was checked; the exit code is 0 if all of it held. `--plans` prints, as JSON, the
combinations that try everything once, and with `--all` every one that is worth running: see `plans.py`.
"""

import argparse
import importlib
import json
import sys
import traceback


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plans", action="store_true", help="print plans and end")
    parser.add_argument("--all", action="store_true", help="with --plans: all of them, not only one for each thing")
    parser.add_argument("--scenario")
    parser.add_argument("--name")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--world", help="the number of workers, or dynamic")
    parser.add_argument("--master", help="host:port of the store, which rank 0 hosts")
    parser.add_argument("--second-master", help="host:port of the store of a second group (scenario again)")
    parser.add_argument("--pythons", help="names of the Python workers, main worker first")
    parser.add_argument("--peers", help="names of the peers")
    parser.add_argument("--transports", choices=["default", "uv"], default="default")
    parser.add_argument("--scratch", default=".", help="a folder for signals between the processes of one run")
    parser.add_argument("--start-when", help="join only when this file is there")
    parser.add_argument("--then", help="a file to write when it begins to join (scenario arrivals)")
    parser.add_argument("--end-first", help="a file to write when the group may begin to end")
    parser.add_argument("--end-when", help="end only when this file is there, and a moment later")
    parser.add_argument("--end-then", help="a file to write when it begins to end")
    parser.add_argument("--rounds", type=int, help="how often workers come and go (scenario churn)")
    parser.add_argument("--killed", default="", help="peers that are killed in the middle of it")
    parser.add_argument("--outlives", help="processes that end before this one, which hosts their store")
    parser.add_argument("--program", help="which of the tutorials (scenario tutorial)")
    parser.add_argument("--results-to", help="a file for what the program returned")
    parser.add_argument("--results-like", help="a file that another run has written or will write, to compare")
    return parser.parse_args()


def main():
    options = arguments()
    if options.plans:
        import plans

        print(json.dumps(plans.all_plans() if options.all else plans.smoke_plans(), indent=1))
        return

    import harness
    import worker_api

    harness.watch()
    group = harness.Group(options)
    scenario = importlib.import_module("scenarios." + options.scenario)
    try:
        harness.wait_for_file(options.start_when)
        if hasattr(scenario, "run"):
            # Scenarios that join and leave in their own way.
            scenario.run(group)
        else:
            group.join()
            if group.name == group.main:
                group.meet(group.pythons + group.peers)
                scenario.main(group)
                group.settle(group.pythons + group.peers)
                group.finish([name for name in group.pythons if name != group.name], group.peers)
            else:
                worker_api.finished.wait()
            group.leave()
    except BaseException as error:
        traceback.print_exc()
        group.report(False, "%s: %s" % (type(error).__name__, str(error)[:2000]))
        harness.end_now(1)
    group.report(True)
    harness.outlive(options.scratch, options.outlives.split(",") if options.outlives else [])
    harness.end_now(0)


if __name__ == "__main__":
    sys.exit(main())
