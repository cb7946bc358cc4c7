"""Connections that greet the peer and say nothing more take no member's place."""

import resource
import socket

import torch.distributed as dist
import torch.distributed.rpc as rpc

import peer_api
import worker_api

# As many as a peer has places for pipes, and some more.
MANY = 1100


def main(group):
    check, peer, other = group.checks, group.peer, group.pythons[1]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    host, port = group.options.master.rsplit(":", 1)
    store = dist.TCPStore(host, int(port), None, False, wait_for_workers=False)
    address = store.get("rpc_prefix_0/addrs/" + peer).decode().replace("uv://", "")
    ip, port = address.rsplit(":", 1)
    # TensorPipe's first words: a new pipe, by a worker of this name.
    name = other.encode()
    words = b"\xb8\x00\xb9\x01\xbd" + bytes([len(name)]) + name
    greeting = len(words).to_bytes(8, "little") + words
    strangers = [socket.create_connection((ip, int(port))) for _ in range(MANY)]
    for stranger in strangers:
        stranger.sendall(greeting)
    check.equal("a pipe of long ago", group.ask(peer, "echo", "here"), "here")
    # The other has had nothing to say to the peer so far, and makes a pipe now.
    got = rpc.rpc_sync(other, worker_api.call_back, args=(peer, "peer_api.echo", ["there"]))
    check.equal("a pipe that is new", got, "there")
    for stranger in strangers:
        stranger.close()
    check.equal("they have gone, and nobody with them", group.ask(peer, "workers"), sorted(group.pythons + group.peers))
    check.equal("and it goes on", rpc.rpc_sync(other, worker_api.call_back, args=(peer, "peer_api.echo", [1])), 1)


def run(group):
    group.join()
    if group.name == group.main:
        main(group)
        group.settle(group.pythons + group.peers)
        group.finish(group.pythons[1:], group.peers)
    else:
        worker_api.finished.wait()
    group.leave()
