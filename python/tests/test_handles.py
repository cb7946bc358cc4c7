"""What handles look like, and what they say to who uses them in a way that cannot work."""

import asyncio
import inspect
import time
import weakref

import pytest
import remote_functions as there

import farref
from testkit import TEST_TIMEOUT, ended, started


@farref.remote
async def marked_coroutine():
    return 1


@farref.remote
def marked():
    return 1


def test_special_methods_of_containers_and_iterators_are_called_like_others(b):
    rows = b.remote(dict, a=1)
    assert rows.call.__len__() == 1
    rows.call.__setitem__("b", 2)
    assert (rows.call.__getitem__("b"), rows.call.__contains__("c")) == (2, False)
    numbers = b.remote(there.count_to, 2)
    assert [numbers.call.__next__(), numbers.call.__next__()] == [1, 2]
    with pytest.raises(StopIteration):
        numbers.call.__next__()
    with pytest.raises(AttributeError, match="local_value"):
        rows.call.__array__()


def test_references_and_their_methods_say_what_they_are(b):
    rref = b.remote(there.Counter, 1)
    assert repr(rref) == f"RRef({rref.id} on 'b')" or repr(rref) == f'RRef({rref.id} on "b")'
    assert repr(rref.call) == f"<call: methods of {rref!r}>"
    assert repr(rref.start.add) == f"<start.add: a method of {rref!r}>"
    assert weakref.ref(rref)() is rref


def test_marked_functions_say_what_they_are(b):
    assert repr(marked) == f"<farref.remote function {__name__}.marked>"
    assert asyncio.iscoroutinefunction(marked_coroutine) and not asyncio.iscoroutinefunction(marked)
    if hasattr(inspect, "markcoroutinefunction"):
        assert inspect.iscoroutinefunction(marked_coroutine) and not inspect.iscoroutinefunction(marked)
    assert marked_coroutine.on(b) == 1 and asyncio.run(marked_coroutine()) == 1


def test_marked_functions_are_called_on_peers(b):
    rref = b.remote(there.Counter, 1)
    for nobody in ["b", rref, None]:
        for way in [marked.on, marked.start_on, marked.remote_on]:
            with pytest.raises(TypeError, match="give a Peer"):
                way(nobody)
    with pytest.raises(ValueError, match="-1"):
        farref.remote(timeout=-1)


def test_workers_say_whether_they_have_ended():
    with farref.testing.Cluster("a") as cluster:
        worker = cluster["a"]
        assert repr(worker) == 'Worker("a", rank=0)'
        with pytest.raises(KeyError, match="no worker of the cluster is called 'z'"):
            cluster["z"]
    assert repr(worker) == 'Worker("a", rank=0, ended)'


def test_a_block_that_raises_ends_its_workers():
    with pytest.raises(LookupError), farref.testing.Cluster("a", "b") as cluster:
        worker = cluster["b"]
        raise LookupError
    assert not worker.is_member


def test_the_worker_of_a_process_is_one_that_has_not_ended(tmp_path):
    with pytest.raises(farref.NotMember, match="farref.join"):
        farref.worker()
    settings = dict(rank=0, world_size=1)
    with farref.join(name="a", rendezvous=f"file://{tmp_path}/a", **settings) as a:
        with farref.join(name="b", rendezvous=f"file://{tmp_path}/b", **settings) as b:
            assert farref.worker().name == "b"
        assert farref.worker().name == "a"
    assert not a.is_member and not b.is_member


@pytest.mark.parametrize(
    "setting, text",
    [(dict(rank=-1), "the first is 0"), (dict(threads=0), "one or more"), (dict(tls="cert.pem"), "certificate, key, authority")],
)
def test_settings_that_make_no_sense_are_refused_by_name(tmp_path, setting, text):
    with pytest.raises(farref.ConfigError, match=text):
        farref.join(**{"name": "a", "rank": 0, "world_size": 1, "rendezvous": f"file://{tmp_path}/a", **setting})


def test_errors_advise_to_what_python_has(cluster):
    with pytest.raises(farref.NoSuchPeer, match="wait=seconds"):
        cluster["a"].peer("nobody")
    with pytest.raises(farref.Timeout, match="timeout=.."):
        cluster["a"].lookup("nothing", timeout=0.01)


def joined(folder, **settings):
    """Two workers of this process that join at the same time: `settings` are a pair of each. What came of it, by rank."""
    came = [None, None]

    def join(rank):
        own = {name: pair[rank] for name, pair in settings.items()}
        try:
            came[rank] = farref.join(
                name=f"worker{rank}", rank=rank, world_size=2, rendezvous=f"file://{folder}/store", join_timeout=TEST_TIMEOUT, **own
            )
        except farref.Error as error:
            came[rank] = error

    ended(*started(lambda: join(0), lambda: join(1)))
    return came


def test_workers_with_another_secret_do_not_meet(tmp_path):
    for error in joined(tmp_path, token=("one", "two")):
        assert isinstance(error, farref.RendezvousError) and "token" in str(error), error


def test_certificates_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ValueError, match="no.crt"):
        files = tuple(str(tmp_path / name) for name in ("no.crt", "no.key", "no.ca"))
        farref.join(name="a", rank=0, world_size=1, rendezvous=f"file://{tmp_path}/a", tls=files)


def test_settings_of_a_worker_are_its_own(tmp_path):
    limited, other = joined(tmp_path, call_timeout=(0.05, None), fail_on_leaks=(True, None), token=("same", "same"))
    there.released.clear()
    try:
        with pytest.raises(farref.Timeout, match="50ms"):
            limited.peer("worker1").call(there.waits_to_be_released)
        # None is no limit, and not that of the worker.
        call = limited.peer("worker1").timeout(None).start(there.waits_to_be_released)
        time.sleep(0.1)
        assert not call.done()
    finally:
        there.released.set()
    assert call.result(TEST_TIMEOUT) == "made"
    # Peers of different groups that have the same rank are different.
    with farref.testing.Cluster("elsewhere") as cluster:
        assert cluster["elsewhere"].me != limited.me and limited.me == other.peer("worker0")
    kept = limited.peer("worker1").remote(there.Counter).timeout(TEST_TIMEOUT)
    assert kept.call() == 0
    ends = started(other.shutdown)
    with pytest.raises(farref.Leaked, match="Counter"):
        limited.shutdown()
    ended(*ends)
    del kept
