"""Read a pickle into plain JSON without running anything: globals stay names, calls stay calls.

A string of a jit pickle may hold raw bytes (for example a whole nested pickle), which Python's own readers refuse;
this one shows a nested pickle as {"pickle": ..} and other raw bytes as {"raw": hex}.

JSON form: null, true/false, numbers (integers that a double can hold), strings and arrays (lists) mean themselves;
{"int": text} {"float": text} {"bytes": hex} {"tuple": [..]} {"dict": [[key, value]..]} {"set": [..]} {"frozenset": [..]}
{"global": "module name"} {"call": f, "args": [..]} {"new": class, "args": [..]} {"persid": value}, where an object may also
carry "state" (BUILD), "items" (APPENDS) and "pairs" (SETITEMS).
"""

import struct

MARK = object()


class PickleError(Exception):
    pass


def load(data):
    """Returns (value as JSON, number of bytes used, names of the opcodes met)."""
    reader = Reader(data)
    return reader.run(), reader.at, reader.opcodes


class Reader:
    def __init__(self, data):
        self.data, self.at = bytes(data), 0
        self.stack, self.memo, self.opcodes = [], {}, set()

    def take(self, count):
        if self.at + count > len(self.data):
            raise PickleError("the pickle ends early")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self):
        end = self.data.index(b"\n", self.at)
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def to_mark(self):
        index = len(self.stack) - 1
        while self.stack[index] is not MARK:
            index -= 1
        items = self.stack[index + 1 :]
        del self.stack[index:]
        return items

    def push(self, value):
        self.stack.append(value)

    def run(self):
        while True:
            code = self.take(1)[0]
            name = NAMES.get(code)
            if name is None:
                raise PickleError("opcode %#x at %d is not known here" % (code, self.at - 1))
            self.opcodes.add(name)
            if name == "STOP":
                return self.stack.pop()
            getattr(self, "op_" + name)()

    def op_PROTO(self):
        self.take(1)

    def op_FRAME(self):
        self.take(8)

    def op_MARK(self):
        self.push(MARK)

    def op_POP(self):
        self.stack.pop()

    def op_NONE(self):
        self.push(None)

    def op_NEWTRUE(self):
        self.push(True)

    def op_NEWFALSE(self):
        self.push(False)

    def op_BININT(self):
        self.push(self.number("<i"))

    def op_BININT1(self):
        self.push(self.number("<B"))

    def op_BININT2(self):
        self.push(self.number("<H"))

    def op_LONG1(self):
        self.push(integer(self.take(self.number("<B"))))

    def op_LONG4(self):
        self.push(integer(self.take(self.number("<i"))))

    def op_BINFLOAT(self):
        self.push({"float": repr(self.number(">d"))})

    def op_SHORT_BINUNICODE(self):
        self.push(text(self.take(self.number("<B"))))

    def op_BINUNICODE(self):
        self.push(text(self.take(self.number("<I"))))

    def op_BINUNICODE8(self):
        self.push(text(self.take(self.number("<Q"))))

    def op_SHORT_BINBYTES(self):
        self.push({"bytes": self.take(self.number("<B")).hex()})

    def op_BINBYTES(self):
        self.push({"bytes": self.take(self.number("<I")).hex()})

    def op_BYTEARRAY8(self):
        self.push({"bytearray": self.take(self.number("<Q")).hex()})

    def op_EMPTY_TUPLE(self):
        self.push({"tuple": []})

    def op_TUPLE(self):
        self.push({"tuple": self.to_mark()})

    def op_TUPLE1(self):
        self.stack[-1:] = [{"tuple": self.stack[-1:]}]

    def op_TUPLE2(self):
        self.stack[-2:] = [{"tuple": self.stack[-2:]}]

    def op_TUPLE3(self):
        self.stack[-3:] = [{"tuple": self.stack[-3:]}]

    def op_EMPTY_LIST(self):
        self.push([])

    def op_EMPTY_DICT(self):
        self.push({"dict": []})

    def op_EMPTY_SET(self):
        self.push({"set": []})

    def op_FROZENSET(self):
        self.push({"frozenset": self.to_mark()})

    def op_APPEND(self):
        value = self.stack.pop()
        self.extend([value])

    def op_APPENDS(self):
        self.extend(self.to_mark())

    def extend(self, items):
        target = self.stack[-1]
        if not isinstance(target, list):
            target = target.setdefault("items", [])
        target.extend(items)

    def op_SETITEM(self):
        value, key = self.stack.pop(), self.stack.pop()
        self.put([key, value])

    def op_SETITEMS(self):
        self.put(self.to_mark())

    def put(self, flat):
        target = self.stack[-1]
        pairs = target["dict"] if "dict" in target else target.setdefault("pairs", [])
        pairs.extend([flat[i], flat[i + 1]] for i in range(0, len(flat), 2))

    def op_ADDITEMS(self):
        items = self.to_mark()
        self.stack[-1]["set"].extend(items)

    def op_GLOBAL(self):
        module = self.line()
        self.push({"global": module + " " + self.line()})

    def op_STACK_GLOBAL(self):
        name, module = self.stack.pop(), self.stack.pop()
        self.push({"global": module + " " + name})

    def op_REDUCE(self):
        args, function = self.stack.pop(), self.stack.pop()
        self.push({"call": function, "args": args["tuple"]})

    def op_NEWOBJ(self):
        args, kind = self.stack.pop(), self.stack.pop()
        self.push({"new": kind, "args": args["tuple"]})

    def op_BUILD(self):
        state = self.stack.pop()
        self.stack[-1]["state"] = state

    def op_BINPERSID(self):
        self.push({"persid": self.stack.pop()})

    def op_BINPUT(self):
        self.memo[self.number("<B")] = self.stack[-1]

    def op_LONG_BINPUT(self):
        self.memo[self.number("<I")] = self.stack[-1]

    def op_MEMOIZE(self):
        self.memo[len(self.memo)] = self.stack[-1]

    def op_BINGET(self):
        self.push(self.memo[self.number("<B")])

    def op_LONG_BINGET(self):
        self.push(self.memo[self.number("<I")])


def integer(raw):
    value = int.from_bytes(raw, "little", signed=True)
    return value if abs(value) <= 1 << 53 else {"int": str(value)}


def text(raw):
    try:
        return raw.decode("utf-8", "strict")
    except UnicodeDecodeError:
        pass
    if raw[:1] == b"\x80":
        try:
            value, used, _ = load(raw)
            if used == len(raw):
                return {"pickle": value}
        except (PickleError, ValueError, IndexError, KeyError):
            pass
    try:
        return raw.decode("utf-8", "surrogatepass").encode("ascii", "backslashreplace").decode()
    except UnicodeDecodeError:
        return {"raw": raw.hex()}


NAMES = {
    0x80: "PROTO", 0x95: "FRAME", 0x28: "MARK", 0x30: "POP", 0x2E: "STOP", 0x4E: "NONE", 0x88: "NEWTRUE", 0x89: "NEWFALSE",
    0x4A: "BININT", 0x4B: "BININT1", 0x4D: "BININT2", 0x8A: "LONG1", 0x8B: "LONG4", 0x47: "BINFLOAT",
    0x8C: "SHORT_BINUNICODE", 0x58: "BINUNICODE", 0x8D: "BINUNICODE8", 0x43: "SHORT_BINBYTES", 0x42: "BINBYTES",
    0x96: "BYTEARRAY8", 0x29: "EMPTY_TUPLE", 0x74: "TUPLE", 0x85: "TUPLE1", 0x86: "TUPLE2", 0x87: "TUPLE3",
    0x5D: "EMPTY_LIST", 0x7D: "EMPTY_DICT", 0x8F: "EMPTY_SET", 0x91: "FROZENSET", 0x61: "APPEND", 0x65: "APPENDS",
    0x73: "SETITEM", 0x75: "SETITEMS", 0x90: "ADDITEMS", 0x63: "GLOBAL", 0x93: "STACK_GLOBAL", 0x52: "REDUCE",
    0x81: "NEWOBJ", 0x62: "BUILD", 0x51: "BINPERSID", 0x71: "BINPUT", 0x72: "LONG_BINPUT", 0x94: "MEMOIZE",
    0x68: "BINGET", 0x6A: "LONG_BINGET",
}  # fmt: skip
