"""Take TensorPipe streams apart: uv frames, libnop objects, pipes made of three connections, RPC messages."""

import struct

MESSAGE_TYPES = {
    0x100: "SCRIPT_CALL", 0x201: "SCRIPT_RET", 0x102: "PYTHON_CALL", 0x203: "PYTHON_RET", 0x104: "SCRIPT_REMOTE_CALL",
    0x105: "PYTHON_REMOTE_CALL", 0x206: "REMOTE_RET", 0x107: "SCRIPT_RREF_FETCH_CALL", 0x108: "PYTHON_RREF_FETCH_CALL",
    0x209: "SCRIPT_RREF_FETCH_RET", 0x20A: "PYTHON_RREF_FETCH_RET", 0x10B: "RREF_USER_DELETE", 0x10C: "RREF_FORK_REQUEST",
    0x10D: "RREF_CHILD_ACCEPT", 0x20E: "RREF_ACK", 0x10F: "FORWARD_AUTOGRAD_REQ", 0x210: "FORWARD_AUTOGRAD_RESP",
    0x111: "BACKWARD_AUTOGRAD_REQ", 0x212: "BACKWARD_AUTOGRAD_RESP", 0x113: "CLEANUP_AUTOGRAD_CONTEXT_REQ",
    0x214: "CLEANUP_AUTOGRAD_CONTEXT_RESP", 0x115: "RUN_WITH_PROFILING_REQ", 0x216: "RUN_WITH_PROFILING_RESP",
    0x117: "RREF_BACKWARD_REQ", 0x218: "RREF_BACKWARD_RESP", 0x237: "EXCEPTION",
}  # fmt: skip


def frames(data):
    """Yields (offset, frame) of a uv stream; a frame cut off by the end of the stream is an error."""
    at = 0
    while at < len(data):
        length = struct.unpack_from("<Q", data, at)[0]
        if at + 8 + length > len(data):
            raise ValueError("a frame of %d bytes at %d is cut off" % (length, at))
        yield at, bytes(data[at + 8 : at + 8 + length])
        at += 8 + length


class Nop:
    """A libnop reader. Structs become tuples, arrays lists, maps lists of pairs, variants (index, value)."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def unpack(self, form):
        value = struct.unpack_from(form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def take(self, count):
        self.at += count
        return self.data[self.at - count : self.at]

    def value(self):
        prefix = self.unpack("<B")
        if prefix < 0x80:
            return prefix
        if prefix >= 0xC0:
            return prefix - 256
        if 0x80 <= prefix <= 0x87:
            return self.unpack("<" + "BHIQbhiq"[prefix - 0x80])
        if prefix == 0xB8:
            return (self.value(), self.value())
        if prefix == 0xB9:
            return tuple(self.value() for _ in range(self.value()))
        if prefix == 0xBA:
            return [self.value() for _ in range(self.value())]
        if prefix == 0xBB:
            return [[self.value(), self.value()] for _ in range(self.value())]
        if prefix == 0xBC:
            raw = self.take(self.value())
            return list(struct.unpack("<%dQ" % (len(raw) // 8), raw))
        if prefix == 0xBD:
            return bytes(self.take(self.value())).decode()
        if prefix == 0xBE:
            return None
        raise ValueError("libnop prefix %#x at %d" % (prefix, self.at - 1))


def nop(data):
    reader = Nop(data)
    value = reader.value()
    if reader.at != len(data):
        raise ValueError("%d bytes left after a libnop object" % (len(data) - reader.at))
    return value


def nop_number(value):
    if value < 0x80:
        return bytes([value])
    for prefix, form in ((0x80, "<B"), (0x81, "<H"), (0x82, "<I"), (0x83, "<Q")):
        if value < 1 << (8 * struct.calcsize(form)):
            return bytes([prefix]) + struct.pack(form, value)
    raise ValueError(value)


def descriptor(payloads, tensors):
    """The descriptor PyTorch sends for these payloads and CPU tensors."""
    cpu = b"\xb9\x02\xbd\x03cpu\x00"
    parts = [b"\xb9\x03\xbd\x00\xba", nop_number(len(payloads))]
    parts += [b"\xb9\x02" + nop_number(len(payload)) + b"\xbd\x00" for payload in payloads]
    parts += [b"\xba", nop_number(len(tensors))]
    parts += [b"\xb9\x04" + nop_number(len(tensor)) + cpu + cpu + b"\xbd\x00" for tensor in tensors]
    return b"".join(parts)


def is_tensorpipe(connection):
    """A TensorPipe connection begins with a frame that holds a hello: variant 0 or 1 of a struct with one member."""
    up = connection.up.data
    return len(up) > 12 and up[8:9] == b"\xb8" and up[9] in (0, 1) and up[10:12] == b"\xb9\x01"


class Pipe:
    """One pipe: `client` is the worker that opened it and sends requests, `server` the one that answers."""

    def __init__(self, connection):
        self.connection = connection
        up, down = list(frames(connection.up.data)), list(frames(connection.down.data))
        self.hello, self.brochure = up[0][1], up[1][1]
        self.client = nop(self.hello)[1][0]
        self.answer = down[0][1] if down else None
        self.up, self.down = up[2:], down[1:]
        self.ids = {}
        if self.answer:
            transport, address, roles, domain, channels, _, _ = nop(self.answer)
            self.port = int(address.rsplit(":", 1)[1]) if ":" in address else None
            self.ids = {number: role for role, number in roles}
            for channel, numbers in channels:
                self.ids.update({number: channel for number in numbers})
            self.transport = transport
        self.channel = None
        self.others = []


def pipes(connections):
    """Groups the TensorPipe connections of a recording."""
    found, extra = [], []
    for connection in connections:
        if is_tensorpipe(connection):
            first = next(frames(connection.up.data))[1]
            variant, body = nop(first)
            if variant == 0:
                found.append(Pipe(connection))
            else:
                extra.append((connection, first, body[0]))
    for pipe in found:
        for connection, hello, number in extra:
            if number in pipe.ids and connection.server[1] == pipe.port:
                pipe.others.append((pipe.ids[number], number, hello, connection))
                if pipe.ids[number] == "basic":
                    pipe.channel = connection
    return found


def messages(pipe):
    """Yields (packet number, "request" or "response", descriptor, payloads, tensor bytes) of a uv + basic pipe."""
    for direction in ("up", "down"):
        queue = list(getattr(pipe, direction))
        stream = getattr(pipe.connection, direction)
        chunks = []
        if pipe.channel is not None:
            chunks = [frame for _, frame in frames(getattr(pipe.channel, direction).data)]
            if direction == "up":
                chunks = chunks[1:]
        while queue:
            offset, descriptor = queue.pop(0)
            _, payload_specs, tensor_specs = nop(descriptor)
            payloads = [queue.pop(0)[1] for _ in payload_specs]
            if [len(payload) for payload in payloads] != [spec[0] for spec in payload_specs]:
                raise ValueError("payload lengths differ from the descriptor")
            tensors = [chunks.pop(0) if spec[0] else b"" for spec in tensor_specs]
            if [len(tensor) for tensor in tensors] != [spec[0] for spec in tensor_specs]:
                raise ValueError("tensor lengths differ from the descriptor")
            yield stream.packet_of(offset), "request" if direction == "up" else "response", descriptor, payloads, tensors
        if chunks:
            raise ValueError("%d frames left on the channel" % len(chunks))
