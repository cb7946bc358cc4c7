"""Take TCPStore conversations apart into requests and answers, in the dialect of the torch version at hand."""

import struct

MODERN = ["VALIDATE", "SET", "COMPARE_SET", "GET", "ADD", "CHECK", "WAIT", "GETNUMKEYS", "DELETE_KEY", "APPEND", "MULTI_GET", "MULTI_SET", "CANCEL_WAIT", "PING", "QUEUE_PUSH", "QUEUE_POP", "QUEUE_LEN", "LIST_KEYS", "BARRIER"]
OLD = ["SET", "COMPARE_SET", "GET", "ADD", "CHECK", "WAIT", "GETNUMKEYS", "WATCH_KEY", "DELETE_KEY"]


class Cursor:
    def __init__(self, stream):
        self.stream, self.data, self.at = stream, stream.data, 0

    def left(self):
        return len(self.data) - self.at

    def take(self, count):
        if self.at + count > len(self.data):
            raise EOFError
        self.at += count
        return bytes(self.data[self.at - count : self.at])

    def u8(self):
        return self.take(1)[0]

    def u32(self):
        return struct.unpack("<I", self.take(4))[0]

    def i64(self):
        return struct.unpack("<q", self.take(8))[0]

    def blob(self):
        return self.take(self.i64())

    def blobs(self):
        return [self.blob() for _ in range(self.i64())]


def show(raw):
    """Bytes for a reader: text where it is text, else hex."""
    if isinstance(raw, list):
        return [show(item) for item in raw]
    if not isinstance(raw, bytes):
        return raw
    if all(32 <= byte < 127 for byte in raw):
        return raw.decode()
    return {"hex": raw.hex()}


REQUESTS = {
    "VALIDATE": "m", "SET": "kb", "COMPARE_SET": "kbb", "GET": "k", "ADD": "ki", "CHECK": "l", "WAIT": "l", "GETNUMKEYS": "",
    "DELETE_KEY": "k", "APPEND": "kb", "MULTI_GET": "l", "MULTI_SET": "p", "CANCEL_WAIT": "", "PING": "m", "QUEUE_PUSH": "kb",
    "QUEUE_POP": "k", "QUEUE_LEN": "k", "LIST_KEYS": "", "BARRIER": "ki", "WATCH_KEY": "k",
}  # fmt: skip
ANSWERS = {
    "COMPARE_SET": "b", "GET": "b", "ADD": "i", "CHECK": "1", "WAIT": "1", "GETNUMKEYS": "i", "DELETE_KEY": "i", "MULTI_GET": "n",
    "PING": "m", "CANCEL_WAIT": "1", "QUEUE_POP": "ib", "QUEUE_LEN": "i", "LIST_KEYS": "l", "BARRIER": "1",
}  # fmt: skip


def fields(cursor, form, count=0):
    result = []
    for code in form:
        if code in "kb":
            result.append(cursor.blob())
        elif code == "i":
            result.append(cursor.i64())
        elif code == "1":
            result.append(cursor.u8())
        elif code == "m":
            result.append(cursor.u32())
        elif code == "l":
            result.append(cursor.blobs())
        elif code == "n":
            result.append([cursor.blob() for _ in range(count)])
        elif code == "p":
            result.append([[cursor.blob(), cursor.blob()] for _ in range(cursor.i64())])
    return result


def answered(connection, up, down):
    """Whether the next answer bytes came before the client's next request: a client that gave up waiting has none."""
    if not down.left():
        return False
    return not up.left() or connection.down.packet_of(down.at) < connection.up.packet_of(up.at)


def conversation(connection):
    """The exchanges of one client connection, in order."""
    up, down = Cursor(connection.up), Cursor(connection.down)
    names = MODERN if bytes(up.data[:5]) == bytes.fromhex("00cef7853c") else OLD
    exchanges = []
    try:
        while up.left():
            start = up.at
            packet = connection.up.packet_of(start)
            name = names[up.u8()]
            args = fields(up, REQUESTS[name])
            answer_start = down.at
            answer = []
            if name in ANSWERS and not answered(connection, up, down):
                answer = ["no answer"]
            elif name in ANSWERS:
                answer = fields(down, ANSWERS[name], len(args[0]) if args and isinstance(args[0], list) else 0)
            exchanges.append(
                {"packet": packet, "op": name, "args": [show(a) for a in args], "answer": [show(a) for a in answer],
                 "request_hex": bytes(up.data[start : up.at]).hex(), "answer_hex": bytes(down.data[answer_start : down.at]).hex()}
            )  # fmt: skip
    except (EOFError, IndexError, KeyError) as error:
        exchanges.append({"packet": connection.opened, "op": "?", "args": [], "problem": repr(error), "rest_hex": bytes(up.data[start:]).hex(), "answer_hex": bytes(down.data[down.at :]).hex()})
    if down.left() and exchanges[-1]["op"] != "?":
        exchanges.append({"packet": connection.opened, "op": "pushed by the server", "args": [], "answer_hex": bytes(down.data[down.at :]).hex()})
    return exchanges
