"""Turn recordings into the JSON files of one torch version's folder."""

import json
import os
import re
import struct
import sys

import gloowire
import rpcmsg
import storewire
import wire

# Kinds kept only so many times: their fields are in flows.json for the rest.
FEW = {"RREF_USER_DELETE": 4, "REMOTE_RET": 4, "RREF_CHILD_ACCEPT": 3, "CLEANUP_AUTOGRAD_CONTEXT_REQ": 3, "BACKWARD_AUTOGRAD_REQ": 7, "SCRIPT_RREF_FETCH_CALL": 2, "PYTHON_RREF_FETCH_CALL": 2}
# The values of value_* steps are kept as answers; as arguments only these.
VALUE_CALLS = {"value_dict_mixed", "value_functions", "value_big_ints"}
FLOWS = ("init", "remote_", "rref_", "proxy_", "autograd_", "all_gather", "shutdown")
LONG_TEXT = 300
TOO_LONG = {("python_error_nested", "PYTHON_RET"), ("profiled_builtin", "RUN_WITH_PROFILING_RESP"), ("autograd_error", "FORWARD_AUTOGRAD_REQ"), ("rref_backward_retain", "FORWARD_AUTOGRAD_REQ"), ("python_error_async_raise", "PYTHON_RET")}
# Messages that say nothing new, left out to keep the files small.
DROP = tuple("static/" + name for name in (
    "barrier/", "init/PYTHON_CALL/2", "shutdown/PYTHON_CALL/2", "all_gather/PYTHON_CALL/3", "python_error_picky/", "python_error_key/", "proxy_error/",
    "autograd_nested/", "autograd_python_error/", "autograd_error/", "rref_backward_retain/FORWARD", "rref_backward_error/PYTHON", "builtin_mul/", "builtin_matmul/",
    "builtin_to_self/", "python_to_self/", "remote_builtin_error/SCRIPT", "remote_python_error/PYTHON_REMOTE_CALL", "remote_script/SCRIPT_RREF", "dtype_float8_e4m3fnuz/",
    "dtype_float8_e5m2fnuz/", "tensor_same_twice/", "tensor_two_storages/", "proxy_rpc_async/", "rref_user_to_user/PYTHON_CALL", "autograd_builtin_no_grad/",
    "autograd_from_worker1/FORWARD", "autograd_from_worker1/BACKWARD", "tensor_empty_between/PYTHON_RET", "python_tensors_nested/PYTHON_RET", "profiled_builtin/", "tensor_sparse_coalesced/", "value_long_string/",
))  # fmt: skip
# Steps whose bytes differ between versions or runs only in tracebacks, times or the order of a set: kept for the base version only.
BASE_ONLY = ("python_error_odd", "python_error_picky", "python_error_key", "python_error_unknown", "python_error_async_raise", "proxy_error", "remote_python_error", "all_gather", "barrier", "init", "shutdown", "profiled")
BASE = "2.15.0"
STORE_PORTS = (29500, 29501)


def write(folder, torch, recordings):
    os.makedirs(folder, exist_ok=True)
    clean = Cleaner(torch)
    lines, seen, order = [], {}, []
    for scenario in ("static", "dynamic"):
        if scenario in recordings:
            found = collect(recordings[scenario], clean)
            lines += messages(scenario, found, seen)
            order += flows(scenario, found)
    summary = about(torch, recordings, lines)
    lines, order = leave_out_what_is_the_same(folder, lines, order, summary)
    store = [row for name in ("store", "static", "dynamic", "again") if name in recordings for row in store_traffic(name, recordings[name])]
    files = {
        "messages.jsonl": "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines),
        "flows.json": table(order),
        "handshakes.json": table(handshakes(recordings, clean)),
        "store.json": table(store),
        "gloo.json": table(gloo(recordings["static"])) if "static" in recordings else "[]\n",
        "about.json": json.dumps(summary, indent=1) + "\n",
    }
    here = os.path.dirname(os.path.abspath(__file__))
    for name, text in files.items():
        for path in (here, here.encode().hex()):
            if path in text:
                raise RuntimeError("%s names a path of this machine" % name)
        with open(os.path.join(folder, name), "w") as out:
            out.write(text)
        print("  %s: %d bytes" % (name, len(text)))


def leave_out_what_is_the_same(folder, lines, order, summary):
    """A version that is not the base keeps only the messages that differ from the base; the names of the others go to about.json."""
    base = os.path.join(os.path.dirname(folder), BASE)
    if os.path.basename(folder) == BASE or not os.path.exists(base):
        return lines, order
    with open(os.path.join(base, "messages.jsonl")) as text:
        known = {}
        for line in map(json.loads, text):
            known[line["name"]] = line
    bytes_of = lambda line: (line.get("descriptor"), line["payloads"][0], line["payloads"][2:], line.get("tensor_bytes"))
    same = [line["name"] for line in lines if line["name"] in known and bytes_of(known[line["name"]]) == bytes_of(line)]
    summary["byte_for_byte_as_in_" + BASE] = len(same)
    summary["different_bytes"] = [line["name"] for line in lines if line["name"] in known and line["name"] not in same]
    summary["only_in_" + BASE] = sorted(set(known) - {line["name"] for line in lines})
    summary["only_here"] = [line["name"] for line in lines if line["name"] not in known]
    with open(os.path.join(base, "flows.json")) as text:
        flows_known = json.load(text)
    kinds = lambda flow: sorted(re.sub("#.*", "", message) for message in flow["messages"])
    counts = {(flow["scenario"], flow["step"]): kinds(flow) for flow in flows_known}
    order = [flow for flow in order if counts.get((flow["scenario"], flow["step"])) != kinds(flow)]
    summary["flows_that_differ"] = [flow["step"] for flow in order]
    return [line for line in lines if line["name"] not in same and not line["name"].split("/")[1].startswith(BASE_ONLY)], order


def table(rows):
    """A JSON array with one row per line."""
    return "[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n"


class Cleaner:
    """Replaces what names this machine by text of the SAME LENGTH, so that every length field stays right."""

    def __init__(self, torch):
        self.pairs = []
        for path in (os.path.dirname(os.path.dirname(torch.__file__)), sys.base_prefix):
            if not path.startswith("/usr"):
                self.pairs.append((path.encode(), ("/opt/torch" + "/x" * len(path))[: len(path)].encode()))
        with open("/proc/sys/kernel/random/boot_id") as boot:
            text = boot.read().strip()
        self.pairs.append((text.encode(), re.sub("[0-9a-f]", "0", text).encode()))

    def __call__(self, data):
        for old, new in self.pairs:
            data = data.replace(old, new)
        return data


def step_at(marks, packet):
    found = ("", "")
    for number, step, note in marks:
        if number > packet:
            break
        found = (step, note)
    return found


def addresses(connections):
    """Listening port -> worker name, from the addrs/ keys of the store."""
    result = {}
    for connection in connections:
        if connection.server[1] not in STORE_PORTS:
            continue
        for exchange in storewire.conversation(connection):
            if exchange["op"] == "SET" and "/addrs/" in str(exchange["args"][0]):
                key, url = exchange["args"]
                result[int(url.rsplit(":", 1)[1])] = key.rsplit("/", 1)[1]
    return result


def collect(recording, clean):
    """Every RPC message of a recording in the order of the wire."""
    connections, marks, _ = recording
    names = addresses(connections)
    found = []
    for pipe in wire.pipes(connections):
        server = names[pipe.connection.server[1]]
        for packet, direction, descriptor, payloads, tensors in wire.messages(pipe):
            source, target = (pipe.client, server) if direction == "request" else (server, pipe.client)
            number, identity = struct.unpack("<i", payloads[0])[0], struct.unpack("<q", payloads[1])[0]
            payloads = [clean(payload) for payload in payloads]
            kind = wire.MESSAGE_TYPES[number]
            step, note = step_at(marks, packet)
            found.append({"packet": packet, "step": step, "note": note, "type": kind, "id": identity, "direction": direction, "from": source, "to": target,
                          "descriptor": descriptor, "payloads": payloads, "tensors": tensors, "body": rpcmsg.body(kind, payloads[2])})  # fmt: skip
    return sorted(found, key=lambda message: message["packet"])


def messages(scenario, found, seen):
    """One line per different message. To keep the files small, some kinds are kept only a few times and long C++ stack traces are cut."""
    lines, used, kept, noted, described = [], {}, {}, set(), {}
    for message in found:
        kind, step, payloads, tensors = message["type"], message["step"], message["payloads"], message["tensors"]
        content = (kind, payloads[2], payloads[3], tuple(tensors))
        if content in seen:
            seen[content]["seen"] += 1
            continue
        kept[kind] = kept.get(kind, 0) + 1
        if step == "debug" or kept[kind] > FEW.get(kind, 1000) or (step, kind) in TOO_LONG:
            continue
        if kind == "PYTHON_CALL" and step.startswith("value_") and step not in VALUE_CALLS:
            continue
        name = "%s/%s/%s" % (scenario, step, kind)
        used[name] = used.get(name, 0) + 1
        line = {
            "name": name if used[name] == 1 else "%s/%d" % (name, used[name]), "note": "" if (scenario, step) in noted else message["note"], "type": kind,
            "id": message["id"], "direction": message["direction"], "from": message["from"], "to": message["to"], "seen": 1,
            "descriptor": message["descriptor"].hex(), "payloads": [payload.hex() for payload in payloads],
            "tensor_bytes": [tensor.hex() for tensor in tensors], "tensors": rpcmsg.tensor_list(payloads[3]), "body": message["body"],
        }  # fmt: skip
        if payloads[3] == rpcmsg.NO_TENSORS:
            line["payloads"][3] = "no tensors"
        if message["descriptor"] != wire.descriptor(payloads, tensors):
            line["odd_descriptor"] = True
        described[len(tensors)] = described.get(len(tensors), 0) + 1
        if described[len(tensors)] > 5 and "odd_descriptor" not in line:
            del line["descriptor"]
        for empty in ("note", "tensor_bytes", "tensors"):
            if not line[empty]:
                del line[empty]
        if kind == "EXCEPTION" and len(payloads[2]) > LONG_TEXT:
            line["cut"] = len(payloads[2])
            line["payloads"][2] = payloads[2][:LONG_TEXT].hex()
            line["body"] = line["body"][:LONG_TEXT]
        noted.add((scenario, step))
        seen[content] = line
        lines.append(line)
    return [line for line in lines if not line["name"].startswith(DROP)]


def flows(scenario, found):
    """Short lines that say who sent what in which order, with nothing left out, for the steps where the order matters."""
    rows = {}
    for message in found:
        step = message["step"]
        if scenario == "static" and not step.startswith(FLOWS):
            continue
        text = "%s > %s %s #%d" % (message["from"][-1], message["to"][-1], message["type"], message["id"])
        body = message["body"]
        if isinstance(body, dict) and "inner_type" in body:
            text += " (%s)" % body["inner_type"]
            body = body["inner"]
        if isinstance(body, dict) and "func" in body.get("udf", {}):
            text += " " + body["udf"]["func"]
        if message["type"].startswith(("RREF_", "CLEANUP", "REMOTE_RET")) and body is not None:
            text += " " + re.sub(r'[^0-9,()\[\]a-z-]|tuple', "", json.dumps(body))
        rows.setdefault(step, []).append(text)
    return [{"scenario": scenario, "step": step, "messages": lines} for step, lines in rows.items()]


def handshakes(recordings, clean):
    rows = []
    for scenario in ("static", "defaults"):
        if scenario not in recordings:
            continue
        connections, _, _ = recordings[scenario]
        names = addresses(connections)
        shown = set()
        for pipe in wire.pipes(connections):
            server = names[pipe.connection.server[1]]
            if pipe.client == server or pipe.client in shown:
                continue
            shown.add(pipe.client)
            for what, data in (("hello", pipe.hello), ("brochure", pipe.brochure), ("answer", pipe.answer)):
                data = clean(data)
                sender, receiver = (server, pipe.client) if what == "answer" else (pipe.client, server)
                rows.append({"scenario": scenario, "what": what, "from": sender, "to": receiver, "frame": (struct.pack("<Q", len(data)) + data).hex(), "means": wire.nop(data)})
            for role, number, hello, _ in pipe.others:
                rows.append({"scenario": scenario, "what": "registration", "from": pipe.client, "to": server, "frame": (struct.pack("<Q", len(hello)) + hello).hex(), "means": wire.nop(hello), "role": {0: "descriptor", 1: "descriptor-reply"}.get(role, role)})
    return rows


def store_traffic(scenario, recording):
    """The exchanges of each client; the bytes are given in the scenario "store" only, elsewhere the fields say it all.
    Polling of the init counter is kept only where the answer changes."""
    connections, marks, _ = recording
    rows, silent = [], 0
    for connection in connections:
        if connection.server[1] not in STORE_PORTS:
            continue
        if not connection.up.data:
            silent += connection.down.next_seq is not None  # else it was refused: the server was not there yet
            continue
        exchanges = storewire.conversation(connection)
        client = "client"
        for exchange in exchanges:
            if exchange["op"] == "SET" and "/addrs/" in str(exchange["args"][0]):
                client = exchange["args"][0].rsplit("/", 1)[1]
        if scenario != "store" and client not in ("worker0", "worker1"):
            continue
        last = {}
        for exchange in exchanges:
            step, _ = step_at(marks, exchange.pop("packet"))
            what = (exchange["op"], str(exchange["args"]))
            if "init/" in what[1]:
                if last.get(what) == exchange.get("answer"):
                    continue
                last[what] = exchange["answer"]
            if scenario == "store" or "problem" in exchange:
                rows.append({"scenario": scenario, "step": step, **exchange})
                continue
            if scenario == "again" and exchange["op"] in ("WAIT", "GET"):
                continue
            if re.search(r"/rpc_prefix_\d/\d/\d", what[1]):  # Gloo rank blobs: in gloo.json
                exchange["args"], exchange["answer"] = exchange["args"][:1], []
            text = "%s %s" % (exchange["op"], " ".join(json.dumps(arg) for arg in exchange["args"]))
            if exchange["answer"]:
                text += " -> " + json.dumps(exchange["answer"][0])
            if not rows or (rows[-1]["scenario"], rows[-1]["client"], rows[-1]["step"]) != (scenario, client, step):
                rows.append({"scenario": scenario, "client": client, "step": step, "exchanges": []})
            rows[-1]["exchanges"].append(text)
    rows.append({"scenario": scenario, "client": "all", "step": "", "connections on which nothing was ever sent": silent})
    return rows


def gloo(recording):
    connections, _, _ = recording
    """The rank blobs, and the messages of ONE of the three connections (all three are checked)."""
    rows, ports, shown = [], {}, False
    for connection in connections:
        if connection.server[1] == STORE_PORTS[0]:
            for exchange in storewire.conversation(connection):
                key = str(exchange["args"][0]) if exchange.get("args") else ""
                if exchange["op"] == "SET" and re.search(r"/rpc_prefix_0/0/(rank_)?\d+$", key):
                    raw = bytes.fromhex(exchange["request_hex"])
                    raw = raw[1 + 8 + len(key) + 8 :]
                    means = gloowire.rank_blob(raw) if "rank_" not in key else {"hostname": raw.decode()}
                    rows.append({"what": "store value", "key": key, "hex": raw.hex(), "means": means})
                    for peer, port in enumerate(means.get("ports", [])):
                        ports[port] = int(key.rsplit("/", 1)[1])
    for connection in connections:
        if connection.server[1] in ports and not wire.is_tensorpipe(connection):
            pair, exchange = gloowire.conversation(connection)
            if shown:
                continue
            shown = True
            listener = ports[connection.server[1]]
            for message in exchange:
                message.pop("packet")
                rows.append({"what": "message", "listener_rank": listener, "port": connection.server[1], "pair_id": pair, **message})
    return rows


def about(torch, recordings, lines):
    counts = {}
    for line in lines:
        key = line["type"]
        if isinstance(line["body"], dict) and "inner_type" in line["body"]:
            key += " of " + line["body"]["inner_type"]
        counts[key] = counts.get(key, 0) + 1
    return {
        "torch": torch.__version__, "python": sys.version.split()[0], "messages": counts,
        "failed_steps": [problem for _, _, facts in recordings.values() for problem in facts.get("problems", [])],
        "debug_info": recordings["static"][2].get("debug_info") if "static" in recordings else None,
    }  # fmt: skip
