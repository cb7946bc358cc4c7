"""Large buffers travel beside their values, without copies on the way."""

import gc
import pickle
import threading
import weakref

import pytest
import remote_functions as there

np = pytest.importorskip("numpy")


def test_arrays_arrive_as_what_they_are(b):
    for array in [
        np.arange(100_000, dtype=np.float32).reshape(100, 1000),
        np.arange(12),
        np.array(3.5),
        np.zeros((0, 4)),
        np.arange(1_000_000, dtype=np.int16)[::3],
        np.asfortranarray(np.random.rand(300, 400)),
        np.frombuffer(b"odd" * 3333, dtype=np.uint8),
    ]:
        back = b.call(there.same, array)
        assert back.dtype == array.dtype and back.shape == array.shape
        assert (back == array).all()


def test_an_array_that_arrived_belongs_to_who_got_it(b):
    array = np.ones(100_000)
    back = b.call(there.same, array)
    back += 1
    assert (back == 2).all() and (array == 1).all()


def ended(call):
    """The call, which has ended; nobody has read its result."""
    event = threading.Event()
    call.add_done_callback(lambda _: event.set())
    assert event.wait(60)
    return call


kept, made = [], []


def kept_array(size):
    kept[:] = [np.ones(size)]
    made[:] = [weakref.ref(kept[0])]
    return {"of somebody's": kept}


def test_a_result_that_somebody_else_has_is_copied(b):
    call = ended(b.start(kept_array, 100_000))
    kept.clear()
    # Nothing of it is lent to the message.
    assert made and made[0]() is None
    assert call.result()["of somebody's"][0].sum() == 100_000


def test_several_arrays_of_one_value_arrive(b):
    arrays = [np.full(5000 + size, size) for size in range(20)]
    back = b.call(there.same, {"arrays": arrays})["arrays"]
    assert all((one == other).all() for one, other in zip(arrays, back))


def test_the_memory_of_a_sent_array_is_given_back(b):
    array = np.ones(1_000_000)
    gone = weakref.ref(array)
    assert b.call(np.sum, array) == 1_000_000
    del array
    gc.collect()
    from test_references import wait_until

    wait_until(lambda: gone() is None)


def test_plain_buffers_travel_out_of_band_too(b):
    data = bytes(range(256)) * 1000
    assert b.call(bytes, pickle.PickleBuffer(data)) == data
    assert b.call(there.same, data) == data
    assert b.call(there.same, bytearray(data)) == data
