"""Record loopback TCP inside a private network namespace and put the streams together again.

The namespace keeps the traffic of other programs out. Every byte knows the number of the packet that
carried it, so bytes of different connections can be put in one order. A step of the scenario is marked by
a UDP datagram to port 9, which the recorder sees in the same order as the TCP packets.
"""

import ctypes
import fcntl
import json
import os
import socket
import struct
import threading
from bisect import bisect_right

MARK_PORT = 9
ETH_P_ALL = 3
PACKET_OUTGOING = 4
CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
SO_RCVBUFFORCE = 33


def enter_private_network():
    """Move this process (and its later children) into a network namespace that has only loopback."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET) needs root")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        flags = struct.unpack("16sH14s", fcntl.ioctl(control, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", flags | IFF_UP, b""))


def mark(step, note=""):
    """Called by workers: everything on the wire from here on belongs to `step`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.sendto(json.dumps({"step": step, "note": note}).encode(), ("127.0.0.1", MARK_PORT))


class Stream:
    """One direction of one TCP connection."""

    def __init__(self):
        self.data = bytearray()
        self.starts = []  # stream offset of the first byte of each accepted packet
        self.packets = []  # the number of that packet
        self.next_seq = None
        self.early = {}  # segments that came before their turn
        self.closed = None  # packet number of FIN or RST

    def add(self, seq, payload, packet):
        if self.next_seq is None:
            self.next_seq = seq
        ahead = (seq - self.next_seq) & 0xFFFFFFFF
        if 0 < ahead < 0x80000000:
            self.early[seq] = (payload, packet)
            return
        skip = (self.next_seq - seq) & 0xFFFFFFFF
        fresh = payload[skip:]
        if fresh:
            self.starts.append(len(self.data))
            self.packets.append(packet)
            self.data += fresh
            self.next_seq = (self.next_seq + len(fresh)) & 0xFFFFFFFF
        for other in list(self.early):
            if ((other - self.next_seq) & 0xFFFFFFFF) == 0 or ((self.next_seq - other) & 0xFFFFFFFF) < 0x80000000:
                later, number = self.early.pop(other)
                self.add(other, later, number)
                return

    def packet_of(self, offset):
        """The number of the packet that carried the byte at `offset`."""
        return self.packets[bisect_right(self.starts, offset) - 1]


class Connection:
    """`up` is what the side that connected sent, `down` what the listening side sent."""

    def __init__(self, client, server, packet):
        self.client, self.server, self.opened = client, server, packet
        self.up, self.down = Stream(), Stream()


class Recorder:
    """Collects packets in a thread between start() and stop()."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
        self.socket.bind(("lo", ETH_P_ALL))
        self.packets = []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self.thread.start()

    def _run(self):
        self.socket.settimeout(0.3)
        while True:
            try:
                data, address = self.socket.recvfrom(1 << 18)
            except socket.timeout:
                if self.stopping.is_set():
                    return
                continue
            if address[2] == PACKET_OUTGOING:
                self.packets.append(data)

    def stop(self):
        """Returns (connections in the order they were opened, marks as (packet number, step, note))."""
        self.stopping.set()
        self.thread.join()
        received, dropped = struct.unpack("II", self.socket.getsockopt(263, 6, 8))
        if dropped:
            raise RuntimeError("the kernel dropped %d of %d packets: capture again" % (dropped, received))
        return assemble(self.packets)


def assemble(packets):
    live, done, marks = {}, [], []
    for number, frame in enumerate(packets):
        ethertype = struct.unpack_from(">H", frame, 12)[0]
        if ethertype != 0x0800:
            if ethertype == 0x86DD and frame[20] == 6:
                raise RuntimeError("TCP over IPv6 seen: the recorder reads IPv4 only")
            continue
        ip = frame[14:]
        ip = ip[: struct.unpack_from(">H", ip, 2)[0]]
        body = ip[(ip[0] & 15) * 4 :]
        source, target = socket.inet_ntoa(ip[12:16]), socket.inet_ntoa(ip[16:20])
        if ip[9] == 17 and struct.unpack_from(">H", body, 2)[0] == MARK_PORT:
            text = json.loads(body[8:])
            marks.append((number, text["step"], text["note"]))
        if ip[9] != 6:
            continue
        sport, dport, seq, _, offset, flags = struct.unpack_from(">HHIIBB", body)
        payload = body[(offset >> 4) * 4 :]
        here, there = (source, sport), (target, dport)
        syn, ack, end = flags & 2, flags & 16, flags & 5
        if syn and not ack:
            connection = Connection(here, there, number)
            live[(here, there)] = connection
            done.append(connection)
            connection.up.next_seq = (seq + 1) & 0xFFFFFFFF
            continue
        if (here, there) in live:
            stream = live[(here, there)].up
        elif (there, here) in live:
            stream = live[(there, here)].down
        else:
            continue
        if syn:
            stream.next_seq = (seq + 1) & 0xFFFFFFFF
            continue
        if payload:
            stream.add(seq, payload, number)
        if end and stream.closed is None:
            stream.closed = number
    for connection in done:
        for stream in (connection.up, connection.down):
            if stream.early:
                raise RuntimeError("a hole in %s -> %s: capture again" % (connection.client, connection.server))
    return done, marks


if __name__ == "__main__":
    enter_private_network()
    recorder = Recorder()
    recorder.start()
    os.system("ip addr show lo 2>/dev/null")
    mark("check")
    print(recorder.stop())
