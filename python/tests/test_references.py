"""Far references: a value lives as long as somebody holds it."""

import gc
import pickle

import pytest
import remote_functions as there

import farref
from testkit import TEST_TIMEOUT, eventually


@pytest.fixture(autouse=True)
def nothing_left():
    gc.collect()
    before = there.counters()
    yield
    gc.collect()
    eventually(lambda: there.counters() == before)


def test_a_value_stays_where_it_was_made_and_its_methods_are_called_there(b):
    counter = b.remote(there.Counter, 40)
    assert counter.call.add(2) == 42
    assert counter.start.add(1).result() == 43
    assert counter.call.add_later(1) == 44
    assert counter.call() == 44
    assert counter.owner == b and not counter.is_owner


def test_objects_of_marked_classes_and_of_their_subclasses_are_made_there(b):
    assert Marked.remote_on(b).call.who() == "Marked"
    assert Derived.remote_on(b).call.who() == "Derived"


@farref.remote(timeout=TEST_TIMEOUT)
class Marked:
    def who(self):
        return type(self).__name__


class Derived(Marked):
    pass


def test_a_copy_comes_here_and_the_value_stays(b):
    counter = b.remote(there.Counter, 1)
    copy = counter.to_here()
    counter.call.add(1)
    assert (copy.value, counter.to_here().value) == (1, 2)


def test_results_of_methods_can_stay_too(b):
    counter = b.remote(there.Counter, 1)
    same = counter.remote.itself()
    same.call.add(1)
    assert counter.call() == 2


def test_a_reference_is_handed_to_a_third_worker_and_used_there(cluster, b):
    counter = b.remote(there.Counter, 1)
    assert cluster["a"].peer("c").call(there.add_to, counter, 5) == 6
    assert counter.call() == 6


def test_a_reference_comes_back_as_a_result_and_inside_of_others(b):
    counter = b.call(there.make_here, 3)
    assert counter.owner == b and counter.call.add(1) == 4
    [again] = b.call(there.same, {"all": [counter]})["all"]
    assert again == counter and hash(again) == hash(counter)


def test_whoever_owns_the_value_has_it_and_not_a_copy(cluster, b):
    mine = cluster["a"].rref(there.Counter(5))
    assert mine.local_value() is mine.to_here()
    assert b.call(there.add_to, mine, 1) == 6
    assert mine.local_value().value == 6
    theirs = b.remote(there.Counter)
    with pytest.raises(farref.NotOwner):
        theirs.local_value()


def test_a_value_of_ones_own_that_is_not_there_yet_is_waited_for_within_the_limit(cluster):
    me = cluster["a"].me
    there.released.clear()
    value = me.remote(there.waits_to_be_released)
    try:
        for wait in (value.timeout(0).local_value, value.timeout(0.01).to_here):
            with pytest.raises(farref.Timeout, match="still being made"):
                wait()
    finally:
        there.released.set()
    assert value.timeout(TEST_TIMEOUT).local_value() == "made"
    ready = cluster["a"].rref(there.Counter(5))
    assert ready.timeout(0).local_value().value == 5


def test_a_value_whose_constructor_failed_fails_all_its_uses(b):
    broken = b.remote(there.fails, "no")
    with pytest.raises(ValueError, match="no"):
        broken.to_here()
    with pytest.raises(ValueError, match="no"):
        broken.call.anything()


def test_a_reference_cannot_be_pickled_by_itself(b):
    counter = b.remote(there.Counter)
    with pytest.raises(ValueError, match="only sent"):
        pickle.dumps(counter)


def test_exceptions_in_destructors_harm_nobody(b):
    bad = b.remote(there.raises_in_destructor)
    del bad
    gc.collect()
    assert b.call(there.add, 1, 1) == 2


def test_a_value_whose_owner_died_is_lost(cluster, b):
    counter = b.remote(there.Counter)
    assert counter.call() == 0
    cluster["b"].crash()
    with pytest.raises(farref.OwnerLost):
        counter.to_here()


def test_published_references_are_found_by_their_names(cluster):
    counter = cluster["b"].rref(there.Counter(9))
    cluster["b"].publish("counter", counter)
    found = cluster["c"].lookup("counter", timeout=TEST_TIMEOUT)
    assert found.call() == 9
    assert cluster["b"].unpublish("counter")


def test_many_references_leave_nothing_behind(b):
    for _ in range(1000):
        counter = b.remote(there.Counter)
        counter.call.add(1)
    del counter
