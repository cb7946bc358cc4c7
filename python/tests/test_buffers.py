"""Large buffers travel beside their values, without copies on the way."""

import copyreg
import gc
import pickle
import threading
import weakref

import pytest
import remote_functions as there

from testkit import TEST_TIMEOUT, eventually

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
    assert event.wait(TEST_TIMEOUT)
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
    eventually(lambda: gone() is None)


def test_plain_buffers_travel_out_of_band_too(b):
    data = bytes(range(256)) * 1000
    assert b.call(bytes, pickle.PickleBuffer(data)) == data
    assert b.call(there.same, data) == data
    assert b.call(there.same, bytearray(data)) == data


class Registered:
    def __init__(self, how="by itself"):
        self.how = how


def test_what_a_program_says_of_how_to_pickle_things_counts_whenever_it_says_it(b):
    array = np.ones(10_000)
    assert b.call(there.same, [Registered(), array])[0].how == "by itself"
    copyreg.pickle(Registered, lambda _: (Registered, ("as registered",)))
    try:
        assert b.call(there.same, [Registered(), array])[0].how == "as registered"
    finally:
        del copyreg.dispatch_table[Registered]


def view_of_kept_array(size):
    return kept_array(size)["of somebody's"][0][1:]


def test_a_view_of_what_somebody_else_has_is_copied(b):
    call = ended(b.start(view_of_kept_array, 100_000))
    kept.clear()
    assert made and made[0]() is None
    assert call.result().sum() == 99_999


def test_tensors_arrive_as_what_they_are(b):
    torch = pytest.importorskip("torch")
    whole = torch.arange(240_000.0, dtype=torch.float64).reshape(400, 600)
    numbers = torch.view_as_complex(whole.reshape(-1, 2))
    small = torch.view_as_complex(torch.ones(3, 2))
    parameter = torch.nn.Parameter(whole[:2].clone())
    for sent in [
        whole, whole.t(), whole[::3, 1:], whole.expand(2, 400, 600), whole[:0], torch.tensor(True), parameter,
        numbers.conj(), numbers.conj().imag, small.conj(), small.conj().imag, whole.to_sparse(),
    ]:
        # Nobody keeps what is made for the message.
        back = b.call(there.same, sent)
        assert type(back) is type(sent) and (back.dtype, back.shape) == (sent.dtype, sent.shape)
        assert back.requires_grad == sent.requires_grad and torch.equal(back.to_dense(), sent.to_dense())
    noted = torch.ones(3)
    noted.note = "kept"
    # As torch does it: some versions keep that.
    assert vars(b.call(there.same, noted)) == vars(pickle.loads(pickle.dumps(noted)))
    # One that is in a value twice arrives as one, with memory of its own.
    first, second = b.call(there.same, [whole, whole])
    first += 1
    assert first is second and whole[0, 0] == 0
