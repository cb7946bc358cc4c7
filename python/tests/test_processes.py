"""Workers in processes of their own: ends of all kinds. Nothing hangs, nothing crashes."""

import sys

import pytest

SERVE = """
with join() as me:
    say("joined")
"""


def test_a_group_of_processes_calls_shares_and_ends(group):
    pair = group(3)
    main = pair.start("""
        with join() as me:
            b, c = me.peer("worker1"), me.peer("worker2")
            assert b.call(there.process) != os.getpid()
            counter = b.remote(there.Counter, 1)
            assert c.call(there.add_to, counter, 2) == 3
            assert me.snapshot()["worker"] == "worker0"
            del counter
        assert not me.is_member
    """)
    others = [pair.start(SERVE) for _ in range(2)]
    main.succeeds()
    [other.succeeds() for other in others]


def test_a_worker_that_is_killed_in_the_middle_of_a_call_is_lost_and_the_group_ends(group):
    pair = group(3)
    main = pair.start("""
        me = join()
        b, c = me.peer("worker1"), me.peer("worker2")
        held = b.remote(there.Counter)
        assert held.call() == 0
        pending = b.start(there.sleeps, 1000)
        say("calling")
        try:
            pending.result()
        except farref.PeerLost:
            say("lost")
        try:
            held.to_here()
        except farref.OwnerLost:
            say("owner lost")
        assert c.call(there.add, 1, 2) == 3
        del held
        me.shutdown()
    """)
    killed = pair.start(SERVE)
    other = pair.start("join().shutdown()")
    assert main.line() == "calling"
    killed.kill()
    assert main.succeeds().split("\n")[:2] == ["lost", "owner lost"]
    other.succeeds()


def test_what_a_dead_worker_held_is_freed(group):
    pair = group(2)
    main = pair.start("""
        me = join()
        say("joined")
        eventually(lambda: there.Counter.alive > 0)
        say("held")
        eventually(lambda: there.counters() == 0)
        say("freed")
        me.shutdown()
    """)
    holder = pair.start("""
        me = join()
        held = me.peer("worker0").remote(there.Counter)
        held.call()
        import time; time.sleep(1000)
    """)
    assert [main.line(), main.line()] == ["joined", "held"]
    holder.kill()
    assert "freed" in main.succeeds()


def test_ctrl_c_interrupts_a_waiting_call(group):
    pair = group(2)
    main = pair.start("""
        me = join()
        try:
            me.peer("worker1").call(there.waits_for_ever)
        except KeyboardInterrupt:
            say("interrupted")
        me.shutdown()
    """)
    other = pair.start("""
        me = join()
        there.begun.wait()
        say("begun")
        me.shutdown()
    """)
    assert other.line() == "begun"
    main.interrupt()
    assert "interrupted" in main.succeeds()
    other.succeeds()


def test_ctrl_c_interrupts_also_where_another_thread_has_imported_farref(group):
    alone = group(1)
    main = alone.start("""
        import threading
        threading.Thread(target=lambda: there.begun.wait() and say("begun")).start()
        me = join()
        try:
            me.me.call(there.waits_for_ever)
        except KeyboardInterrupt:
            say("interrupted")
        me.shutdown()
    """, imports="import threading; first = threading.Thread(target=lambda: __import__('farref')); first.start(); first.join()")
    assert main.line() == "begun"
    main.interrupt()
    assert "interrupted" in main.succeeds()


@pytest.mark.parametrize("waits", ["for_its_own_call", "for_the_same_call"])
def test_ctrl_c_interrupts_the_main_thread_and_no_other_that_waits(group, waits):
    pair = group(2)
    main = pair.start(f"""
        import threading
        me = join()
        peer, ends = me.peer("worker1").timeout(TEST_TIMEOUT), []
        far = peer.start(there.waits_to_be_released)
        mine = far if {waits == "for_the_same_call"} else peer.start(there.waits_for_ever)
        other = threading.Thread(target=lambda: ends.append(far.result()))
        other.start()
        eventually(lambda: peer.call(there.has_begun))
        try:
            say("waiting")
            mine.result()
        except KeyboardInterrupt:
            say("interrupted")
        assert other.is_alive() and not far.done() and not far.cancelled()
        peer.call(there.release)
        other.join()
        assert ends == ["made"], ends
        mine.cancel()
        me.shutdown()
    """)
    other = pair.start("""
        there.begun.set()
        join().shutdown()
    """)
    assert main.line() == "waiting"
    main.interrupt()
    assert "interrupted" in main.succeeds()
    other.succeeds()


def test_a_program_that_ends_without_shutdown_ends_and_the_others_go_on(group):
    pair = group(2)
    main = pair.start("""
        me = join()
        peer = me.peer("worker1")
        peer.call(there.add, 1, 2)
        say("joined")
        try:
            peer.call(there.waits_for_ever)
        except farref.PeerLost:
            say("lost")
        me.shutdown()
    """)
    careless = pair.start("""
        me = join()
        held = me.peer("worker0").remote(there.Counter)
        held.call()
        there.begun.wait(TEST_TIMEOUT)
    """)
    assert main.line() == "joined"
    status, said, errors = careless.end()
    assert status == 0 and "Fatal" not in errors and "panicked" not in errors, errors
    assert "lost" in main.succeeds()


def test_a_program_that_ends_while_functions_run_does_not_crash(group):
    pair = group(2)
    main = pair.start("""
        me = join()
        peer = me.peer("worker1")
        calls = [peer.start(there.sleeps, 0.3) for _ in range(4)] + [peer.start(there.waits_for_ever)]
        say("calling")
        ends = set()
        for call in calls:
            try:
                ends.add(call.result())
            except farref.PeerLost:
                ends.add("lost")
        say(*sorted(ends))
        me.shutdown()
    """)
    careless = pair.start("""
        me = join()
        there.begun.wait(TEST_TIMEOUT)
    """)
    assert main.line() == "calling"
    status, said, errors = careless.end()
    assert status == 0 and "Fatal" not in errors and "panicked" not in errors, errors
    assert "lost" in main.succeeds()


@pytest.mark.parametrize("function, seconds, of_the_interpreter", [("fails_slowly", 0.2, 2), ("begins_and_sleeps", 4, 4)])
def test_a_function_or_coroutine_that_outlives_the_interpreter_does_not_crash_it(group, function, seconds, of_the_interpreter):
    pair = group(2)
    main = pair.start(f"""
        me = join()
        call = me.peer("worker1").start(there.{function}, {seconds})
        say("calling")
        try:
            call.result()
        except farref.Error:
            say("lost")
        me.shutdown()
    """)
    careless = pair.start(f"""
        class TakesItsTime:
            def __del__(self, sleep=there.time.sleep):
                sleep({of_the_interpreter})

        me = join()
        there.begun.wait(TEST_TIMEOUT)
        there.in_the_end = TakesItsTime()  # while the interpreter ends the function goes on, and cannot
    """)
    assert main.line() == "calling"
    status, said, errors = careless.end()
    assert status == 0 and "fatal" not in errors.lower() and "panicked" not in errors, errors
    assert "lost" in main.succeeds()


@pytest.mark.parametrize("function", ["busy", "busier"])
def test_a_program_that_ends_while_functions_run_for_ever_ends_with_its_own_exit_code(group, function):
    alone = group(1)
    careless = alone.start(f"""
        me = join()
        for _ in range(3):
            me.me.start(there.{function})
        assert there.begun.wait(TEST_TIMEOUT)
        sys.exit(5)
    """)
    status, said, errors = careless.end()
    assert status == 5 and "Fatal" not in errors and "panicked" not in errors, (status, errors)


def test_a_block_that_ends_by_an_exit_with_zero_ends_with_the_group(group):
    pair = group(2)
    main = pair.start("""
        with join() as me:
            peer = me.peer("worker1")
            eventually(lambda: peer.call(there.has_begun))
            for number in range(500):  # meanwhile it ends, in its way
                assert peer.call(there.add, number, 2) == number + 2
    """)
    other = pair.start("""
        with join() as me:
            there.begun.set()
            sys.exit(0)
    """)
    main.succeeds()
    other.succeeds()


def test_a_forked_process_gets_a_clear_error_and_harms_nobody(group):
    pair = group(2)
    main = pair.start("""
        me = join()
        peer = me.peer("worker1")
        held = peer.remote(there.Counter, 3)
        assert held.call() == 3
        faulthandler.cancel_dump_traceback_later()  # its thread is not in the other process either
        pid = os.fork()
        if pid == 0:
            try:
                peer.call(there.add, 1, 2)
            except farref.Forked as error:
                assert "spawn" in str(error)
                del held, peer, me
                sys.exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert held.call() == 3 and peer.call(there.add, 1, 2) == 3
        del held
        me.shutdown()
    """)
    other = pair.start(SERVE)
    main.succeeds()
    other.succeeds()


def test_references_in_a_forked_process_say_so_and_release_nothing_of_their_owners(group):
    pair = group(2)
    main = pair.start("""
        import gc
        me = join()
        peer = me.peer("worker1")
        held, mine, future = peer.remote(there.Counter, 3), me.rref(there.Counter(4)), peer.start(there.waits_to_be_released)
        assert held.call() == 3 and peer.call(there.add_to, mine, 1) == 5
        faulthandler.cancel_dump_traceback_later()  # its thread is not in the other process either
        pid = os.fork()
        if pid == 0:
            signal.alarm(TEST_TIMEOUT)  # what waits for a thread that is not there is ended
            uses = [held.call, held.to_here, held.confirmed, held.start.itself, held.remote.itself, mine.local_value, mine.to_here]
            uses += [lambda: peer.remote(there.Counter), lambda: me.rref(1), lambda: me.publish("mine", mine), future.result]
            for use in uses:
                try:
                    use()
                except farref.Forked as error:
                    assert "spawn" in str(error)
                else:
                    os._exit(1)
            assert held.owner.name == "worker1" and held != mine and hash(held) == hash(held.timeout(1))
            del uses, use, held, mine, future, peer, me
            gc.collect()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        # Whatever the other process had sent would have come before this.
        assert peer.call(there.counters) == 1 and there.counters() == 1
        assert held.call.add(1) == 4 and peer.call(there.add_to, mine, 1) == 6
        peer.call(there.release)
        assert future.result() == "made"
        del held, mine, future
        me.shutdown()
    """)
    other = pair.start(SERVE)
    main.succeeds()
    other.succeeds()


def test_references_go_in_forked_processes_whatever_the_worker_was_doing_when_it_forked(group):
    main = group(1).start("""
        import gc, threading, time
        cluster = farref.testing.Cluster("a", "b")
        peer, goes_on = cluster["a"].peer("b"), True
        def works():
            while goes_on:
                made = [peer.remote(there.Counter) for _ in range(20)]
                time.sleep(0.001)
        threads = [threading.Thread(target=works, daemon=True) for _ in range(3)]
        [thread.start() for thread in threads]
        faulthandler.cancel_dump_traceback_later()  # its thread is not in the other process either
        for _ in range(60):
            held = [peer.remote(there.Counter, 1) for _ in range(30)]
            pid = os.fork()
            if pid == 0:
                signal.alarm(TEST_TIMEOUT)  # one that waits for a thread that it does not have is ended
                del held
                gc.collect()
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        goes_on = False
        [thread.join() for thread in threads]
        assert [counter.call() for counter in held] == [1] * 30
        del held
        cluster.shutdown()
    """)
    main.succeeds()


def test_two_groups_one_after_the_other_in_one_process(group):
    script = """
        for round in range(2):
            place_of_round = place + str(round)
            with farref.join(name=name, rank=rank, world_size=workers, rendezvous=place_of_round) as me:
                other = me.peer("worker1" if rank == 0 else "worker0")
                assert other.call(there.add, round, 1) == round + 1
        say("done")
    """
    pair = group(2)
    both = [pair.start(script), pair.start(script)]
    assert all("done" in process.succeeds() for process in both)


def test_a_block_that_raises_ends_its_worker_at_once(group):
    pair = group(2)
    main = pair.start("""
        me = join()
        say("joined")
        try:
            me.peer("worker1").call(there.waits_for_ever)
        except farref.PeerLost:
            say("lost")
        me.shutdown()
    """)
    failing = pair.start("""
        with join() as me:
            there.begun.wait(TEST_TIMEOUT)
            raise LookupError("of the program's")
    """)
    status, _, errors = failing.end()
    assert status == 1 and "of the program's" in errors
    assert "lost" in main.succeeds()


def test_ten_thousand_calls_and_references_leave_no_object_and_no_value_behind(group):
    pair = group(2)
    main = pair.start("""
        import gc
        with join() as me:
            peer = me.peer("worker1")
            def rounds(number):
                for _ in range(number // 10):
                    held = [peer.remote(there.Counter) for _ in range(5)]
                    calls = [counter.start.add(1) for counter in held] + [peer.start(there.same, held) for _ in range(5)]
                    for call in calls:
                        call.result()
            rounds(100)
            gc.collect()
            before = len(gc.get_objects())
            rounds(10_000)
            gc.collect()
            assert len(gc.get_objects()) - before < 50, len(gc.get_objects()) - before
            eventually(lambda: peer.call(there.counters) == 0)
            eventually(lambda: me.snapshot()["references_in_all"] == 0)
    """)
    other = pair.start(SERVE)
    main.succeeds()
    other.succeeds()


def test_a_result_that_its_owner_goes_on_changing_arrives_as_it_was_returned(group):
    pytest.importorskip("numpy")
    pair = group(2)
    main = pair.start("""
        with join() as me:
            weights = me.peer("worker1").remote(there.Weights, 4_000_000)
            for number in range(10):
                # It is on its way, or is being read by this process, when it is changed.
                reads = [weights.start.read(part) for part in ("array", "view", "list")]
                weights.call.step()
                for read in reads:
                    array = there.first_of(read.result())
                    assert (array == array[0]).all(), (number, set(array))
            copy = weights.start.step() and weights.to_here()
            assert (copy.array == copy.array[0]).all()
            del weights
    """)
    # On one thread what is returned has been copied when the next function begins; on two it may be changed meanwhile.
    other = pair.start("""
        with join(threads=1):
            pass
    """)
    main.succeeds()
    other.succeeds()


def test_a_worker_that_nobody_joins_says_who_is_missing(group):
    pair = group(2)
    status, _, errors = pair.start('join(join_timeout=1)').end()
    assert status == 1
    assert "RendezvousError" in errors and "1" in errors, errors


def test_a_worker_waits_at_its_end_for_no_longer_than_its_setting_says(group):
    pair = group(2)
    main = pair.start("""
        me = join()
        try:
            me.peer("worker1").call(there.begins_and_sleeps, 1000)
        except farref.PeerLost:
            say("lost")
        me.shutdown()
    """)
    other = pair.start("""
        me = join(shutdown_timeout=0.3)
        assert there.begun.wait(TEST_TIMEOUT)
        try:
            me.leave()
        except farref.ShutdownTimeout as error:
            say(error)
        os._exit(0)  # the function sleeps
    """)
    assert "after 300ms" in other.line()
    other.succeeds()
    assert "lost" in main.succeeds()


def test_so_many_plain_functions_run_at_once_as_the_setting_says(group):
    pair = group(2)
    main = pair.start("""
        with join() as me:
            peer = me.peer("worker1").timeout(TEST_TIMEOUT)
            first = [peer.start(there.waits_to_be_released) for _ in range(2)]
            last = peer.start(there.same, "last")
            try:
                say(last.result(0.5))
            except TimeoutError:
                say("no thread for it")
            peer.call(there.release_in_a_coroutine)
            say(last.result(), *(call.result() for call in first))
    """)
    other = pair.start("""
        with join(threads=2):
            pass
    """)
    assert main.succeeds().splitlines() == ["no thread for it", "last made made"]
    other.succeeds()


@pytest.mark.parametrize("require_majority", [True, False])
def test_a_worker_that_sees_less_than_half_of_its_group_gives_it_up_if_that_is_set(group, require_majority):
    three = group(3)
    main = three.start(f"""
        me = join(require_majority={require_majority})
        say("joined")
        for other in ("worker1", "worker2"):
            try:
                me.peer(other).call(there.waits_for_ever)
            except farref.Error as error:
                ended = type(error).__name__
        say(ended, me.is_member)
        me.crash()
    """)
    others = [three.start("join().serve()") for _ in range(2)]
    assert main.line() == "joined"
    [other.kill() for other in others]
    assert main.line() == ("Minority False" if require_majority else "PeerLost True")
    main.succeeds()


def test_settings_that_make_no_sense_are_told(group):
    alone = group(1)
    status, _, errors = alone.start('join(bind="nowhere")').end()
    assert status == 1 and "IP address" in errors
    assert sys.version_info >= (3, 10)
