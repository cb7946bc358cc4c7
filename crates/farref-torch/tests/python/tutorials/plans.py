"""The programs as plans: each runs twice at the same time, once in Python only and once with a peer in one place."""

# The program, its workers in the order of their ranks, and which of them knows the results.
PROGRAMS = {
    "parameter_server": ("parameter_server trainer_1", "trainer_1"),
    "actor_learner": ("agent observer1 observer2", "agent"),
    "rnn": ("ps trainer", "trainer"),
    "pipeline": ("master worker1 worker2", "master"),
    "batch": ("ps trainer1 trainer2", "ps"),
}


def plan(name, program, peer, smoke=True):
    """`peer` is the worker that is not Python, in the run that counts."""
    workers, drives = PROGRAMS[program]
    workers = workers.split()
    assert peer in workers and peer != drives
    alone = [process(program, workers, worker, "{second_master}", "no_main", "--results-to") for worker in workers]
    mixed = [
        peer_process(program, workers, worker) if worker == peer else process(program, workers, worker, "{master}", drives, "--results-like")
        for worker in workers
    ]  # fmt: skip
    return {"name": name, "scenario": "tutorial", "smoke": smoke, "processes": mixed + alone}


def process(program, workers, worker, master, main, results):
    args = ["--name", worker, "--rank", str(workers.index(worker)), "--world", str(len(workers)), "--master", master]
    args += ["--pythons", main, "--peers", "", "--scratch", "{scratch}"]
    args += ["--scenario", "tutorial", "--program", program, results, "{scratch}/expected"]
    reference = "" if results == "--results-like" else "reference_"
    args += ["--outlives", ",".join(reference + other for other in workers[1:])] if worker == workers[0] else []
    name = reference + worker
    return {"name": name, "kind": "python", "main": worker == main, "args": args, "end": "ok"}


def peer_process(program, workers, worker):
    args = ["--name", worker, "--rank", str(workers.index(worker)), "--world", str(len(workers)), "--master", "{master}"]
    return {"name": worker, "kind": "peer", "main": False, "args": args + ["--program", program], "end": "ok"}


def all_plans():
    return [
        plan("tutorial_parameter_server", "parameter_server", "parameter_server"),
        plan("tutorial_actor_learner", "actor_learner", "observer1"),
        plan("tutorial_rnn", "rnn", "ps"),
        plan("tutorial_pipeline_first", "pipeline", "worker1"),
        plan("tutorial_pipeline_second", "pipeline", "worker2", smoke=False),
        plan("tutorial_batch", "batch", "trainer1"),
    ]
