"""What PyTorch pickles for its calls, in a shorter form where there is nothing special about it.

Most calls are of a function that can be imported, with tensors and plain values; most answers are a tensor, a plain value or nothing.
PyTorch's pickler spends most of its time on the names of classes and functions in them. Here a function's name goes before the
pickle of its arguments, and tensors that are arguments themselves are counted and not pickled. Everything else is pickled as before,
and so is everything as soon as a program has registered picklers of its own.

A pickle begins with ``\\x80``; the shorter forms with one of these:

- ``\\x01`` module, name, arguments: a call. Arguments are plain values, or tensors, which have their places in the tables.
- ``\\x02`` the same. The arguments were pickled by PyTorch's pickler.
- ``\\x03`` a tensor by itself.
- ``\\x04`` module, name: a call whose arguments are tensors, and all of those that have come.
"""

import itertools
import pickle
import sys
import types

import torch

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_NONE = pickle.dumps(None)
_END = b"\n"
_CALL, _CALL_WITH_MORE, _TENSOR, _CALL_WITH_TENSORS = b"\x01", b"\x02", b"\x03", b"\x04"
_SHORT = frozenset({_CALL[0], _CALL_WITH_MORE[0], _TENSOR[0], _CALL_WITH_TENSORS[0]})
# Names that have come, and where they are found. So many, for whoever sends them may send any number.
_names = {}
_NAMES = 1 << 12


def install(internal):
    """``internal`` is torch.distributed.rpc.internal."""
    pickler = internal._InternalRPCPickler
    if hasattr(pickler, "_farref"):
        return
    whole, whole_back, udf = pickler.serialize, pickler.deserialize, internal.PythonUDF

    def serialize(self, value):
        """A value as bytes, and its tensors."""
        kind = type(value)
        if kind in _PLAIN:
            return (_NONE if value is None else pickle.dumps(value)), []
        if type(self) is not pickler or self._class_reducer_dict or internal._pickler is not pickle.Pickler:
            return whole(self, value)
        if kind is torch.Tensor:
            return _TENSOR, [value]
        name = _name_of(value.func) if kind is udf else None
        if name is None:
            return whole(self, value)
        _, args, kwargs = value
        if not args and not kwargs:
            return _CALL + name, []
        if len(args) == 1 and not kwargs and type(args[0]) is torch.Tensor:
            return _CALL_WITH_TENSORS + name, [args[0]]
        places, own = [], []
        for place, argument in itertools.chain(enumerate(args), kwargs.items()):
            kind = type(argument)
            if kind is torch.Tensor:
                places.append(place)
                own.append(argument)
            elif kind not in _PLAIN:
                break
        else:
            # One that is there twice is to arrive as one.
            if len(own) < 2 or len(set(map(id, own))) == len(own):
                if own:
                    args, kwargs = list(args), dict(kwargs)
                for place in places:
                    (args if type(place) is int else kwargs)[place] = None
                return _CALL + name + pickle.dumps((args, kwargs, places)), own
        pickled, tensors = whole(self, (args, kwargs))
        return _CALL_WITH_MORE + name + pickled, tensors

    def deserialize(self, pickled, tensors):
        """The value again."""
        kind = pickled[0] if pickled else None
        if kind not in _SHORT:
            return None if pickled == _NONE else whole_back(self, pickled, tensors)
        if kind == _TENSOR[0]:
            return tensors[0]
        module, name, rest = pickled[1:].split(_END, 2)
        function = _find(module, name)
        if function is None:
            function = whole_back(self, b"\x80\x03c" + module + _END + name + _END + b".", tensors)
            if isinstance(function, AttributeError):
                return function
        if not rest:
            return udf(function, tuple(tensors) if kind == _CALL_WITH_TENSORS[0] else (), {})
        if kind == _CALL_WITH_MORE[0]:
            told = whole_back(self, rest, tensors)
            return told if isinstance(told, AttributeError) else udf(function, *told)
        args, kwargs, places = pickle.loads(rest)
        for place, tensor in zip(places, tensors):
            (args if type(place) is int else kwargs)[place] = tensor
        return udf(function, args, kwargs)

    pickler.serialize, pickler.deserialize, pickler._farref = serialize, deserialize, True


def _name_of(function):
    """Module and name of what can be imported by them; None of anything else."""
    if type(function) is not types.FunctionType and type(function) is not type:
        return None
    module, name = function.__module__, function.__qualname__
    found = sys.modules.get(module)
    if found is None or vars(found).get(name) is not function:
        return None
    return f"{module}\n{name}\n".encode()


def _find(module, name):
    known = _names.get((module, name))
    if known is None:
        known = module.decode(), name.decode()
        if len(_names) < _NAMES:
            _names[module, name] = known
    found = sys.modules.get(known[0])
    return None if found is None else vars(found).get(known[1])
