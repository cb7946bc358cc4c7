"""Values as pickles, with large buffers beside them."""

import ctypes
import io
import pickle

from ._tensors import reducers

# Smaller ones are copied into the pickle: that is cheaper than sending them by themselves.
_SMALL = 4096


def dumps(value, is_plain=False):
    """A value's pickle, and the buffers beside it, each with the number of bytes that an element of it has.

    ``is_plain``: there are no tensors in it.
    """
    buffers = []

    def beside(buffer):
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous: copied by who pickles it
            return True
        if raw.nbytes < _SMALL:
            return True
        buffers.append((raw, memoryview(buffer).itemsize))
        return False

    own = None if is_plain else reducers()
    if own is None:
        return pickle.dumps(value, protocol=5, buffer_callback=beside), buffers
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5, buffer_callback=beside)
    pickler.dispatch_table = own
    pickler.dump(value)
    return file.getvalue(), buffers


def loads(pickled, received=None):
    """The value of a pickle, bytes or memory. ``received``: memory that came beside it, which belongs to the value from now on."""
    if not isinstance(pickled, bytes):
        pickled = _array(pickled)
    if received is None:
        return pickle.loads(pickled)
    return pickle.loads(pickled, buffers=[_array(memory) for memory in received])


def _array(memory):
    array = (ctypes.c_ubyte * memory.nbytes).from_address(memory.address)
    array._memory = memory  # kept as long as the array is, and it as long as any view of it
    return array
