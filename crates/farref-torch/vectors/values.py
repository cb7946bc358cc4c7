"""Values as Python pickles them, for the tests of src/value.

Writes values.txt: a line for each protocol and each value, with its name and its pickle. Again, with any Python
from 3.10 on, in this folder:

    python3 -c "import values; values.write()"
"""

import collections
import enum
import pickle
from dataclasses import dataclass


@dataclass
class Point:
    x: int
    y: float


@dataclass(slots=True)
class SlotPoint:
    x: int
    y: float


@dataclass(slots=True, frozen=True)
class FrozenPoint:
    x: int
    y: float


class Slots:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x = x
        self.y = y


class Plain:
    pass


class SlotsAndMore(Plain):
    __slots__ = ("y",)

    def __init__(self, x, y):
        self.x = x
        self.y = y


NamedPoint = collections.namedtuple("NamedPoint", "x y")


class Colour(enum.Enum):
    RED = 1


def values():
    shared = [1, 2]
    return {
        "plain": {"a": 1, "b": [1, 2.5, None, True], "c": "é", "d": (1, 2, 3)},
        "point": Point(1, 2.5),
        "slot point": SlotPoint(1, 2.5),
        "frozen point": FrozenPoint(1, 2.5),
        "slots": Slots(1, 2.5),
        "slots and more": SlotsAndMore(1, 2.5),
        "named point": NamedPoint(1, 2.5),
        "ordered": collections.OrderedDict(x=1, y=2.5),
        "empty ordered": collections.OrderedDict(),
        "default": collections.defaultdict(int, {"x": 1, "y": 2}),
        "counter": collections.Counter("aab"),
        "set": {1},
        "frozenset": frozenset({1}),
        "empty set": set(),
        "deque": collections.deque([1, 2]),
        "bounded deque": collections.deque([1, 2], 5),
        "empty deque": collections.deque(),
        "big": [2**63, 2**64 - 1, 2**127 - 1],
        "negative": [-(2**63), -(2**63) - 1, -(2**127)],
        "largest": 2**128 - 1,
        "too large": 2**128,
        "floats": [float("inf"), -0.0, 1e-300],
        "shared": [shared, shared],
        "nested": [[[{"x": (1, [Point(1, 2.5)])}]]],
        "colour": Colour.RED,
        "bytes": b"\x00\xff",
        "bytearray": bytearray(b"\x00\xff"),
        "class": Point,
        "complex": 1j,
        "many": list(range(1100)),
    }


def write():
    with open("values.txt", "w") as file:
        for protocol in (2, 3, 4, 5):
            for name, value in values().items():
                print(protocol, pickle.dumps(value, protocol).hex(), name, file=file)
