"""What is asked of the driver and of torch to share memory of CUDA devices: handles, events, tensors of others' memory.

torch allocates with ``cudaMalloc``, whose memory the driver gives handles of. Where it does not (``expandable_segments``), the driver
refuses, and tensors are copied.
"""

import collections
import contextlib
import ctypes
import os
import pathlib
import threading

import torch

# Which allocation a pointer is of: one that has the address of another before has another number.
_BUFFER_ID = 7
# Memory of other processes on other devices can be reached, too.
_PEER_ACCESS = 1
# How a thread has to do with graphs that others capture: not at all.
_RELAXED = 2
# The default stream.
_LEGACY = 1
# torch has no more streams than so many.
_SIDES = 32
# So many handles, of memory and of events, are remembered.
_MOST = 4096


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class _Signal:
    """An event that other processes are told of."""

    __slots__ = ("device", "event", "handle")

    def __init__(self, device):
        self.device = device
        self.event = torch.cuda.Event(interprocess=True)
        self.handle = None


class Platform:
    """This process's devices."""

    def __init__(self):
        self._driver = ctypes.CDLL("libcuda.so.1")
        torch.cuda.init()
        # Processes that do not see each other (containers have a host in common, and not its processes) get copies.
        booted = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.host = f"{booted} {os.readlink('/proc/self/ns/pid')}"
        self._uuids = [self._uuid(device) for device in range(torch.cuda.device_count())]
        self._visible = {uuid: device for device, uuid in enumerate(self._uuids)}
        self._contexts, self._handles = {}, {}
        # Streams that nobody uses just now, and what they are used beside.
        self._sides, self._outer, self._lock = {}, threading.local(), threading.Lock()
        # Events that nobody uses; all of this process, and of others, by their handles.
        self._signals, self._mine, self._theirs = {}, {}, {}

    def _ask(self, function, *args):
        status = getattr(self._driver, function)(*args)
        if status != 0:
            raise RuntimeError(f"{function} failed: error {status} of CUDA's driver")

    def _ordinal(self, device):
        ordinal = ctypes.c_int()
        self._ask("cuDeviceGet", ctypes.byref(ordinal), device)
        return ordinal

    def _context(self, device):
        """The context that torch uses, too. It takes memory: only of devices that are used."""
        context = self._contexts.get(device)
        if context is None:
            context = ctypes.c_void_p()
            self._ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._ordinal(device))
            self._contexts[device] = context
        return context

    def _uuid(self, device):
        uuid = (ctypes.c_ubyte * 16)()
        self._ask("cuDeviceGetUuid_v2", uuid, self._ordinal(device))
        return bytes(uuid)

    @contextlib.contextmanager
    def _on(self, device):
        self._ask("cuCtxPushCurrent_v2", self._context(device))
        try:
            yield
        finally:
            self._ask("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def uuid(self, device):
        """Which GPU a device is."""
        return self._uuids[device]

    def visible(self, uuid):
        """Which device that GPU is here, if any."""
        return self._visible.get(uuid)

    # Memory

    def export(self, device, pointer):
        """A handle of the memory that a pointer is in, where in it, and the number of the allocation."""
        base, size, number = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint64()
        with self._on(device):
            self._ask("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
            self._ask("cuPointerGetAttribute", ctypes.byref(number), _BUFFER_ID, ctypes.c_uint64(pointer))
            known = self._handles.get(base.value)
            if known is None or known[0] != number.value:
                handle = _Handle()
                self._ask("cuIpcGetMemHandle", ctypes.byref(handle), base)
                known = number.value, bytes(handle.bytes)
                if len(self._handles) >= _MOST:
                    self._handles.clear()
                self._handles[base.value] = known
        return known[1], pointer - base.value, known[0]

    def open(self, handle, device):
        """Maps the memory of a handle: where it is, and how large."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        with self._on(device):
            given = _Handle.from_buffer_copy(handle)
            self._ask("cuIpcOpenMemHandle_v2", ctypes.byref(base), given, ctypes.c_uint(_PEER_ACCESS))
            try:
                self._ask("cuMemGetAddressRange_v2", None, ctypes.byref(size), base)
            except RuntimeError:
                self._ask("cuIpcCloseMemHandle", base)
                raise
        return base.value, size.value

    def close(self, base, device):
        """Unmaps it."""
        with self._on(device):
            self._ask("cuIpcCloseMemHandle", ctypes.c_uint64(base))

    def alias(self, lease):
        """A tensor of bytes in memory that is mapped. It keeps the lease."""
        return torch.as_tensor(lease, device=torch.device("cuda", lease.device))

    # Order

    def record(self, device):
        """An event after all that this thread's stream has to do, for other processes. It is nobody else's until it is recycled."""
        try:
            signal = self._signals[device].pop()
        except (KeyError, IndexError):
            signal = _Signal(device)
        signal.event.record(torch.cuda.current_stream(device))
        if signal.handle is None:
            signal.handle = bytes(signal.event.ipc_handle())
            # No process opens what it has made itself.
            self._mine[signal.handle] = signal.event
        return signal

    def recycle(self, signal):
        """It is for others now."""
        self._signals.setdefault(signal.device, collections.deque()).append(signal)

    def wait(self, device, handle, process):
        """This thread's stream waits for an event: one of another process, or of this one (None)."""
        event = self._mine.get(handle) if process is None else self._theirs.get((process, handle))
        if event is None:
            if process is None:
                raise RuntimeError("this process has no such event")
            event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", device), handle)
            if len(self._theirs) >= _MOST:
                self._theirs.clear()
            self._theirs[process, handle] = event
        stream = torch.cuda.current_stream(device)
        if process is None or stream.cuda_stream:
            stream.wait_event(event)
        else:
            # By its other name: by that of torch's the driver was seen to crash, right after it had opened the event.
            with self._on(device):
                self._ask("cuStreamWaitEvent", ctypes.c_void_p(_LEGACY), ctypes.c_void_p(event.cuda_event), ctypes.c_uint(0))

    def done(self, device):
        """An event after all that this thread's stream has to do."""
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(device))
        return event

    @contextlib.contextmanager
    def aside(self, device):
        """Code that works on a stream which has nothing else to do: it waits for nothing that others have begun."""
        side = self._idle_side(device)
        self._outer.stream = torch.cuda.current_stream(device)
        try:
            with torch.cuda.stream(side):
                yield
        finally:
            self._sides[device].append(side)

    def _idle_side(self, device):
        # The one that was used last first: torch keeps memory for each.
        sides = self._sides.setdefault(device, [])
        with self._lock:
            for place in reversed(range(len(sides))):
                if sides[place].query():
                    return sides.pop(place)
            if len(sides) >= _SIDES:
                return sides.pop(0)
        return torch.cuda.Stream(device)

    def settle(self, done, tensor):
        """Waits until a tensor is there that was made aside. It is used on the stream that was current before."""
        done.synchronize()
        self._leaves(tensor)

    def follow(self, done, tensor):
        """Lets the stream that was current before wait for a tensor that was made aside."""
        self._leaves(tensor).wait_event(done)

    def _leaves(self, tensor):
        outer = self._outer.stream
        if outer.device != tensor.device:
            outer = torch.cuda.current_stream(tensor.device)
        tensor.record_stream(outer)
        return outer

    def used(self, tensor):
        """The current stream uses a tensor that is of another, maybe: its memory is not used for anything else meanwhile."""
        tensor.record_stream(torch.cuda.current_stream(tensor.device))

    # Its end

    def stream(self, device):
        """This thread's stream."""
        return torch.cuda.current_stream(device)

    def begin_thread(self):
        """Called by a thread that is to disturb nobody: graphs that others capture are none of its business."""
        mode = ctypes.c_int(_RELAXED)
        with contextlib.suppress(RuntimeError, AttributeError):  # old drivers capture nothing
            self._ask("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def marks(self, device, streams):
        """Events after all that these streams, and the default one, have to do; None if one of them is just being captured."""
        streams = {*streams, torch.cuda.default_stream(device)}
        with self._on(device):
            for stream in streams:
                status = ctypes.c_int()
                self._ask("cuStreamIsCapturing", ctypes.c_void_p(stream.cuda_stream), ctypes.byref(status))
                if status.value:
                    return None
        marks = []
        for stream in streams:
            marks.append(torch.cuda.Event())
            marks[-1].record(stream)
        return marks

    def is_broken(self, device):
        """Whether the device is out of order for this process, for good: nothing works any more then."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        try:
            with self._on(device):
                self._ask("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        except RuntimeError:
            return True
        return False
