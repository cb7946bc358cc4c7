"""Take Gloo apart: rank blobs of the store and the messages between ranks."""

import struct

OPCODES = {1: "data", 2: "send ready", 3: "receive ready"}
ADDRESS = 136  # sockaddr_storage (128 bytes, mostly uninitialised) and an i64 that is -1


def address(raw):
    return {"family": struct.unpack_from("<H", raw)[0], "port": struct.unpack_from(">H", raw, 2)[0], "ip": ".".join(map(str, raw[4:8])), "tail": struct.unpack("<q", raw[-8:])[0]}


def rank_blob(raw):
    """What a rank publishes. Old: one address per peer. New: hostname, ONE address, a pair id per rank."""
    if len(raw) % ADDRESS == 0 and struct.unpack_from("<H", raw)[0] == 2:
        addresses = [address(raw[at : at + ADDRESS]) for at in range(0, len(raw), ADDRESS)]
        return {"form": "an address per peer", "addresses": addresses, "ports": [one["port"] for one in addresses]}
    length = struct.unpack_from("<Q", raw)[0]
    at = 8 + length
    size = struct.unpack_from("<Q", raw, at)[0]
    where = address(raw[at + 8 : at + 8 + size])
    rest = raw[at + 8 + size :]
    return {"form": "hostname, address, pair ids", "hostname": raw[8 : 8 + length].decode(), "address_length": size, "addresses": [where],
            "pair_ids": list(struct.unpack("<%dq" % (len(rest) // 8), rest)), "ports": [where["port"]]}  # fmt: skip


def conversation(connection):
    """(pair id as hex or None, messages in the order of the wire) of one connection between two ranks."""
    up, down = bytes(connection.up.data), bytes(connection.down.data)
    start = 0 if up[8:16] in (b"\1" + bytes(7), b"\2" + bytes(7), b"\3" + bytes(7)) and up[0] >= 48 else 8
    result = []
    for sender, data, stream, at in (("connector", up, connection.up, start), ("listener", down, connection.down, 0)):
        while at + 48 <= len(data):
            total, opcode, slot, offset, length, roffset = struct.unpack_from("<6Q", data, at)
            if opcode not in OPCODES or offset or roffset or total < 48:
                raise ValueError("an unknown Gloo message: %s" % data[at : at + 48].hex())
            result.append({"packet": stream.packet_of(at), "from": sender, "op": OPCODES[opcode], "slot": "%#018x" % slot, "length": length, "hex": data[at : at + total].hex()})
            at += total
        if at != len(data):
            raise ValueError("bytes left on a Gloo connection")
    result.sort(key=lambda message: message["packet"])
    return (up[:8].hex() if start else None), result
