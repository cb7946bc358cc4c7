"""Say what an RPC message means: the tensor list of payload 3 and the body of payload 2 as JSON."""

import struct

import pickles
from wire import MESSAGE_TYPES

NO_TENSORS = bytes.fromhex("8002") + b"ctorch.jit._pickle\nbuild_tensorlist\n" + bytes.fromhex("7100285d286574522e")
PICKLER = {"global": "torch.distributed.rpc.internal _InternalRPCPickler"}
EMPTY = {"RREF_ACK", "BACKWARD_AUTOGRAD_RESP", "CLEANUP_AUTOGRAD_CONTEXT_RESP", "RREF_BACKWARD_RESP"}


def tensor_list(payload):
    """Payload 3: the tensors in order. `storage` is the index of the tensor bytes of the message."""
    value, used, _ = pickles.load(payload)
    if used != len(payload) or value["call"] != {"global": "torch.jit._pickle build_tensorlist"}:
        raise ValueError("payload 3 is not a tensor list")
    return [tensor(item) for item in value["args"][0]]


def tensor(item):
    name = item["call"]["global"]
    args = item["args"]
    if name == "torch._utils _rebuild_tensor_v2":
        _, storage_class, key, device, count = args[0]["persid"]["tuple"]
        result = {
            "class": storage_class["global"], "storage": int(key), "elements": count, "offset": args[1],
            "shape": args[2]["tuple"], "stride": args[3]["tuple"], "grad": args[4],
        }  # fmt: skip
        if device != "cpu":
            result["device"] = device
        if len(args) > 6:
            result["more"] = args[6:]
        return result
    if name == "torch._utils _rebuild_sparse_tensor":
        # layout 1 (COO): indices, values; layout 2 (CSR): row starts, columns, values
        return {"sparse": args[0], "shape": args[1]["tuple"], "grad": args[2], "parts": [tensor(part) for part in args[3:-1]]}
    return item


def body(kind, payload):
    """Payload 2 by message type name."""
    if kind in EMPTY:
        if payload:
            raise ValueError("%s with a body" % kind)
        return None
    if kind == "EXCEPTION":
        return payload.decode("utf-8", "backslashreplace")
    if kind == "PYTHON_CALL":
        return {"is_async": payload[0], "udf": whole(payload[1:])}
    if kind.startswith(("FORWARD_AUTOGRAD", "RUN_WITH_PROFILING")):
        length = struct.unpack(">Q", payload[-8:])[0]
        wrapper = whole(payload[-8 - length : -8])
        inner = MESSAGE_TYPES[wrapper["tuple"][0]]
        return {"inner_type": inner, "inner": body(inner, payload[: -8 - length]), "wrapper": wrapper}
    return whole(payload)


def whole(payload):
    value, used, _ = pickles.load(payload)
    if used != len(payload):
        raise ValueError("%d bytes left after a pickle" % (len(payload) - used))
    return plain(value)


def plain(value):
    """Shortens three forms: {"func", "args", "kwargs"} for a PythonUDF, {"tensor": i} and {"rref": [7 fields]} for what the RPC pickler writes."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("new") == {"global": "torch.distributed.rpc.internal PythonUDF"} and len(value) == 2:
        function, args, kwargs = value["args"]
        if "global" in function:
            return {"func": function["global"], "args": plain(args["tuple"]), "kwargs": plain(kwargs["dict"])}
    if "call" in value and value["call"] == {"call": {"global": "builtins getattr"}, "args": [PICKLER, "_tensor_receiver"]}:
        return {"tensor": value["args"][0]}
    if "call" in value and value["call"] == {"call": {"global": "builtins getattr"}, "args": [PICKLER, "_py_rref_receiver"]}:
        return {"rref": value["args"][0]["tuple"]}
    if value.get("call") == {"global": "torch.jit._pickle build_tensor_from_id"}:
        return {"tensor": value["args"][0]}
    return {key: plain(item) for key, item in value.items()}
