"""Values as pickles, with large buffers beside them."""

import ctypes
import pickle

# Smaller ones are copied into the pickle: that is cheaper than sending them by themselves.
_SMALL = 4096


def dumps(value):
    """A value's pickle, and the buffers beside it."""
    buffers = []

    def beside(buffer):
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous: copied by who pickles it
            return True
        if raw.nbytes < _SMALL:
            return True
        buffers.append(raw)
        return False

    return pickle.dumps(value, protocol=5, buffer_callback=beside), buffers


def loads(pickled, received=None):
    """The value of a pickle. ``received``: memory that came beside it, which belongs to the value from now on."""
    if received is None:
        return pickle.loads(pickled)
    return pickle.loads(pickled, buffers=[_array(memory) for memory in received])


def _array(memory):
    array = (ctypes.c_ubyte * memory.nbytes).from_address(memory.address)
    array._memory = memory  # kept as long as the array is, and it as long as any view of it
    return array
