"""Plans about who comes and goes when: in what order workers arrive at a group, and at its end, and how many do."""


def arrival(name, ranks, start, end, smoke):
    """`ranks`, `start` and `end` name the same workers, the peer with a star: in the order of their ranks, in which they
    come, and in which they go to the end."""
    workers, start, end = ranks.split(), start.split(), end.split()
    assert sorted(workers) == sorted(start) == sorted(end)
    pythons = sorted(worker for worker in workers if not worker.endswith("*"))
    peers = [worker.rstrip("*") for worker in workers if worker.endswith("*")]

    def signal(kind, worker):
        return "{scratch}/%s-%s" % (kind, worker.rstrip("*"))

    processes = []
    for rank, worker in enumerate(workers):
        is_peer, bare = worker.endswith("*"), worker.rstrip("*")
        args = ["--name", bare, "--rank", str(rank), "--world", str(len(workers)), "--master", "{master}"]
        place = start.index(worker)
        args += ["--start-when", signal("start", worker)] if place > 0 else []
        # The last one has nobody to let go, and is told so all the same: a peer waits a moment only if it is in line.
        args += ["--then", signal("start", start[place + 1]) if place + 1 < len(start) else "{scratch}/all-began"]
        place = end.index(worker)
        args += ["--end-when", signal("end", worker)]
        args += ["--end-then", signal("end", end[place + 1])] if place + 1 < len(end) else []
        if not is_peer:
            args += ["--scenario", "arrivals", "--pythons", ",".join(pythons), "--peers", ",".join(peers)]
            args += ["--scratch", "{scratch}", "--end-first", signal("end", end[0])]
            args += ["--outlives", ",".join(worker.rstrip("*") for worker in workers[1:])] if rank == 0 else []
        kind, main = "peer" if is_peer else "python", worker == pythons[0]
        processes.append({"name": bare, "kind": kind, "main": main, "args": args, "end": "ok"})
    return {"name": name, "scenario": "arrivals", "smoke": smoke, "processes": processes}


def churn(name, rounds, smoke, transports="default", killed=()):
    """A Python worker that stays, two peers that come and go in each round with a Python worker, and some that are killed."""
    common = ["--world", "dynamic", "--master", "{master}", "--transports", transports]
    main = ["--name", "python0", "--rank", "0", "--scenario", "churn", "--pythons", "python0", "--scratch", "{scratch}"]
    main += ["--peers", ",".join(["rust1", "rust2", *killed]), "--killed", ",".join(killed), "--rounds", str(rounds)]
    main += ["--outlives", ",".join(["rust1", "rust2", *killed])]
    processes = [{"name": "python0", "kind": "python", "main": True, "args": common + main, "end": "ok"}]
    for place, peer in enumerate(["rust1", "rust2"]):
        args = ["--name", peer, "--rank", str(1 + place * rounds), "--lives", str(rounds)]
        args += common + ["--start-when", "{scratch}/start-" + peer]
        processes.append({"name": peer, "kind": "peer", "main": False, "args": args, "end": "ok"})
    for place, peer in enumerate(killed):
        args = ["--name", peer, "--rank", str(1 + 2 * rounds + place), "--start-when", "{scratch}/start-" + peer]
        processes.append({"name": peer, "kind": "peer", "main": False, "args": common + args, "end": "killed"})
    return {"name": name, "scenario": "churn", "smoke": smoke, "processes": processes}


def all_plans():
    return [
        # The peer first, in the middle and last, at the start and at the end. PyTorch has the store.
        arrival("arrives_first_ends_last", "python0 rust* python1", "rust* python0 python1", "python0 python1 rust*", True),
        arrival("arrives_in_between_ends_first", "python0 rust* python1", "python0 rust* python1", "rust* python0 python1", True),
        arrival("arrives_last_ends_in_between", "python0 rust* python1", "python0 python1 rust*", "python1 rust* python0", True),
        # The same where the peer has the store, and leads when all gather.
        arrival("host_arrives_first_ends_first", "a_rust* python0 python1", "a_rust* python0 python1", "a_rust* python0 python1", True),
        arrival("host_arrives_in_between", "a_rust* python0 python1", "python0 a_rust* python1", "python0 a_rust* python1", False),
        arrival("host_arrives_last_ends_last", "a_rust* python0 python1", "python1 python0 a_rust*", "python0 python1 a_rust*", False),
        # Members of a dynamic group that come and go all the time: three in each round.
        churn("churn", 4, True),
        churn("churn_long", 17, False, "uv"),
        # The same, in the middle of which a peer and a Python worker are killed.
        churn("churn_kill", 4, True, killed=["victim"]),
        churn("churn_kill_long", 17, False, "uv", killed=["victim"]),
    ]  # fmt: skip
