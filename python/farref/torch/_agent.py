"""The agent: this process's worker of farref's, as torch.distributed.rpc sees it."""

import json
import logging
import os
import secrets
import socket
import threading
import time
from urllib.parse import urlparse

import torch
from farref import _core, _errors

from . import _pickles, _shortcut
from ._options import UNSET_RPC_TIMEOUT, RpcBackendOptions, WorkerInfo

_log = logging.getLogger("farref.torch")
_current = None
# The one that is joining, or has joined.
_newest = None
# Stores that others meet in: there as long as the process is, since somebody may be late.
_hosted = []
_MEETING = "farref"
# Seconds in which a group that is joined and left has to be found, before it is looked for again.
_A_TRY = 5.0
# Functions of PyTorch's programs may wait for each other: so many at a time, more than any program has use for.
_THREADS = 1 << 14


class NotSent(Exception):
    """A call that is not made. ``error``: what it ends with; None if it returns None."""

    def __init__(self, error):
        super().__init__(error)
        self.error = error


def _security(token):
    """What the environment says of secrets, certificates and addresses, as it says it to all workers of farref's."""
    say = os.environ.get
    settings = {"token": say("FARREF_TOKEN") or token, "insecure": say("FARREF_INSECURE", "0") not in ("", "0")}
    files = tuple(say(f"FARREF_TLS_{what}") for what in ("CERT", "KEY", "CA"))
    if all(files):
        settings["tls"] = files
    elif any(files):
        raise RuntimeError("FARREF_TLS_CERT, FARREF_TLS_KEY and FARREF_TLS_CA go together: set all of them, or none")
    if say("FARREF_ADVERTISE"):
        settings["advertise"] = say("FARREF_ADVERTISE")
    return settings


class RpcAgent:
    """What all agents have in common."""


class TensorPipeAgent(RpcAgent):
    """The agent that PyTorch calls TensorPipe's. It is a worker of a group of farref's."""

    _is_faulty = False
    # Whether calls are to be looked at before they are sent.
    _looks = False

    def __init__(self, store, name, worker_id, world_size, opts, reverse_device_maps=None, devices=None):
        self._store = store
        self._info = WorkerInfo(name, worker_id)
        self._options = opts
        # Which devices tensors go to, by worker: those of calls, and those of answers. None: there are no maps.
        self._maps = {to: known for to, known in opts.device_maps.items() if known} or None
        self._maps_back = {to: known for to, known in (reverse_device_maps or {}).items() if known} or None
        self._devices = list(devices or ())
        self._timeout = opts.rpc_timeout
        self._is_static = bool(world_size)
        self._lock = threading.Lock()
        self._served_later = 0
        # Values that others refer to at the end, and who.
        self._leaks = {}
        self._dead = set()
        self._started = threading.Event()
        if self._is_static:
            self._check_kind("true")
            self._infos = self._gather_names(world_size)
        else:
            self._check_kind("false")
            store.set(f"ids/{name}", str(worker_id))
            self._infos = {}
        global _newest
        _newest = self
        self._worker = self._join(world_size)
        if not self._is_static:
            self._infos = {peer.name: WorkerInfo(peer.name, self._id_of(peer.name)) for peer in self._worker.peers()}
        self._ids = {info.id: info for info in self._infos.values()}
        _core.watch_departures(self._worker, self._departed)

    # Joining

    def _check_kind(self, static):
        kind = self._store.compare_set("rpcIsStaticGroup", "", static).decode()
        if kind != static:
            raise RuntimeError(
                "RPC group mixes statically and dynamically initialized members which is not supported. "
                f"Static group property is initialized as {kind} and is trying to be set as {static}"
            )

    def _gather_names(self, world_size):
        """All members of a group whose size is known, by their names."""
        name, mine = self._info.name, self._info.id
        self._store.set(f"names/{mine}", name)
        infos = {}
        for rank in range(world_size):
            other = name if rank == mine else self._store.get(f"names/{rank}").decode()
            if other in infos:
                raise RuntimeError(
                    f"RPC worker name {other} is not unique. Workers {infos[other].id} and {rank} share the same name."
                )
            infos[other] = WorkerInfo(other, rank)
        return infos

    def _id_of(self, name):
        return int(self._store.get(f"ids/{name}").decode())

    def _join(self, world_size):
        place = self._meeting_place()
        settings = _security(place["token"])
        if self._is_static:
            settings.update(rank=self._info.id, world_size=world_size)
        if not self._is_static:
            settings["join_timeout"] = _A_TRY
        until = time.monotonic() + (self._timeout or 60.0)
        while True:
            try:
                return _core.join(
                    name=self._info.name,
                    rendezvous=place["rendezvous"],
                    store_is_hosted_elsewhere=self._is_static,
                    # What a launcher says of ranks is for torch to read.
                    environment=False,
                    threads=_THREADS,
                    **settings,
                )
            except _errors.Error as error:
                # Who hosted the store may have left just now: in the next try it is hosted here, or by somebody else.
                is_over = self._is_static or time.monotonic() >= until
                if is_over or not isinstance(error, _errors.RendezvousError):
                    raise RuntimeError(f"{self._info.name} could not join the group: {error}") from error

    def _meeting_place(self):
        """Where the workers of farref's meet, and their secret: told through PyTorch's store."""
        here = _address(self._options.init_method)
        if not self._is_static:
            # Whoever joins is alone with the store. Who comes first on that host hosts farref's, or who is left there.
            told = self._store.compare_set(_MEETING, "", "").decode()
            if told:
                return json.loads(told)
            if here != "127.0.0.1" and self._info.id != 0:
                here = socket.gethostbyname(socket.gethostname())
            with socket.create_server(("127.0.0.1" if here == "127.0.0.1" else "0.0.0.0", 0)) as free:
                port = free.getsockname()[1]
        elif self._info.id != 0:
            return json.loads(self._store.get(_MEETING))
        else:
            host = _core.StoreHost("127.0.0.1" if here == "127.0.0.1" else "0.0.0.0")
            _hosted.append(host)
            port = host.port
        place = {"rendezvous": f"tcp://{here}:{port}", "token": secrets.token_hex(16)}
        # Not compare_set: those who wait for a key are not told of that.
        self._store.set(_MEETING, json.dumps(place))
        return place

    # Members

    def _departed(self, name, died):
        """Told by the group: a worker is gone."""
        info = self._infos.get(name)
        if not self._is_static:
            self._forget(name)
        if died:
            _let_gatherings_end(self, name)
        if info is not None:
            from . import _grad

            _grad.departed(self, info.id)

    def _forget(self, name):
        with self._lock:
            info = self._infos.pop(name, None)
            if info is not None:
                self._ids.pop(info.id, None)

    def get_worker_info(self, worker=None):
        """This worker, or the one of that name or id."""
        if worker is None:
            return self._info
        found = self._infos.get(worker) if isinstance(worker, str) else self._ids.get(int(worker))
        if found is None:
            what = f"name:{self._info.name},rank:{self._info.id} could not find destination"
            kind = "name" if isinstance(worker, str) else "id"
            raise RuntimeError(f"Unknown destination worker {worker}: {what} {kind} {worker}")
        return found

    def get_worker_infos(self):
        """All workers."""
        with self._lock:
            return list(self._infos.values())

    def _update_group_membership(self, worker_info, my_devices, reverse_device_map, is_join):
        if is_join:
            with self._lock:
                self._infos[worker_info.name] = worker_info
                self._ids[worker_info.id] = worker_info
                # As PyTorch has it: what is known already stays.
                maps = {**{to: known for to, known in reverse_device_map.items() if known}, **(self._maps_back or {})}
                self._maps_back = maps or None
                self._devices += [device for device in my_devices if device not in self._devices]
            self._worker.peer(worker_info.name, wait=self._timeout or 60.0)
        else:
            self._forget(worker_info.name)

    def _peer(self, info):
        return self._worker.peer(info.name)

    @property
    def is_static_group(self):
        """Whether all members were known at the beginning."""
        return self._is_static

    @property
    def store(self):
        """The store that the workers met in."""
        return self._store

    def _get_backend_options(self):
        return self._options

    def _get_device_map(self, dst):
        return self._options.device_maps.get(dst.name, {})

    # Calls under way

    def _before_sending(self, to, kind, pickle):
        """Called for each call. Raises NotSent if there is nobody to send it to. ``kind``: what PyTorch would call the message."""
        if self._dead and to._name in self._dead and BARRIERS_END in pickle:
            _log.warning("%s goes on without %s, which has died", self._info.name, to.name)
            raise NotSent(None)

    # Seconds by which a message of a kind is late; None: none ever is.
    _late = None

    def _seconds(self, timeout):
        """What farref is told: none to wait for ever."""
        if timeout == UNSET_RPC_TIMEOUT:
            timeout = self._timeout
        return timeout if timeout > 0 else None

    def _count_later(self, by):
        with self._lock:
            self._served_later += by

    def get_debug_info(self):
        """Numbers of calls, as PyTorch names them."""
        threads, served = self._options.num_worker_threads, _core.torch_served()
        info = {
            "agent.thread_pool_size": threads,
            "agent.num_idle_threads": max(threads - served, 0),
            "agent.client_active_calls": _core.calls_under_way(),
            "agent.server_active_calls": served,
            "agent.server_active_async_calls": self._served_later,
        }
        if _gil_profiling:
            info["agent.gil_average_wait_time_us"] = 0.0
        return {key: str(value) for key, value in info.items()}

    def get_metrics(self):
        """The same."""
        return self.get_debug_info()

    # Its end

    def sync(self):
        """Waits until the calls of this worker are answered."""
        _core.wait_until_answered()

    def join(self, shutdown=False, timeout=0):
        """Waits until the calls of this worker are answered; and with ``shutdown``, until all workers are done."""
        _core.wait_until_answered()
        if not shutdown:
            return
        from . import _rref

        if self._is_static:
            _rref.look_for_leaks()
            _rref.tell_owners(self)
        _rref.release_all(self)
        try:
            if self._is_static:
                self._worker.shutdown()
            else:
                self._worker.leave()
        except _errors.Error as error:
            raise RuntimeError(f"the shutdown of {self._info.name} is not complete: {error}") from error

    def shutdown(self):
        """Ends this worker, with or without the others. Who has called it gets an answer that is on its way, if that does not take long."""
        from . import _rref

        self._started.set()
        _rref.release_all(self)
        if self._worker.is_member:
            self._worker.crash(patience=_LAST_ANSWERS)


# Seconds. PyTorch waits for the functions that others have called for as long as they take.
_LAST_ANSWERS = 1.0


def _address(init_method):
    """Where others reach this process, if they are to meet here."""
    place = urlparse(init_method)
    if place.scheme == "env":
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    else:
        host = place.hostname or "127.0.0.1"
    return "127.0.0.1" if host in ("localhost", "127.0.0.1", "::1") else host


BARRIERS_END = b"_broadcast_to_followers"


def _gatherings(agent):
    """PyTorch's barriers wait for a message of every worker, and one that is dead sends none. Barriers of the whole group do
    not wait for those."""
    import collections

    from torch.distributed.rpc import api

    class Gatherings(collections.defaultdict):
        def __missing__(self, sequence):
            states = super().__missing__(sequence)
            self.without(sequence, states, agent._dead)
            return states

        @staticmethod
        def without(sequence, states, dead):
            everybody = api._ALL_WORKER_NAMES
            if dead and sequence.startswith("".join(sorted(everybody))) and not states.proceed_signal.is_set():
                for name in dead:
                    states.gathered_objects.setdefault(name, None)
                if everybody == set(states.gathered_objects):
                    states.proceed_signal.set()

    with api._all_gather_dict_lock:
        former = api._all_gather_sequence_id_to_states
        api._all_gather_sequence_id_to_states = Gatherings(api.AllGatherStates, former)


def _let_gatherings_end(agent, name):
    from torch.distributed.rpc import api

    with api._all_gather_dict_lock:
        agent._dead.add(name)
        agent._looks = True
        gatherings = api._all_gather_sequence_id_to_states
        for sequence, states in list(gatherings.items()):
            leader = min(api._ALL_WORKER_NAMES, default=None)
            if leader == name:
                states.proceed_signal.set()
            elif leader == agent._info.name:
                gatherings.without(sequence, states, {name})


def unless_dead(future, to):
    """The future of a message that ends a barrier. A worker that has come to the barrier and died then does not get it: the others
    go on without it."""
    ended = torch.futures.Future()

    def done(answered):
        try:
            ended.set_result(answered.value())
        except Exception as error:
            if isinstance(error.__cause__, _errors.PeerLost):
                _log.warning("a barrier ends without %s, which has died", to.name)
                ended.set_result(None)
            else:
                ended.set_exception(error)

    future.add_done_callback(done)
    return ended


_gil_profiling = False


def is_current_rpc_agent_set():
    """Whether this process is a member of a group."""
    return _current is not None


def get_current_rpc_agent():
    """The agent of this process."""
    if _current is None:
        raise RuntimeError("Current RPC agent is not set! Did you initialize the RPC framework (e.g. by calling `rpc.init_rpc`)?")
    return _current


def devices():
    """The devices that results may be on; None: none but the CPU."""
    return None if _current is None else _current._devices or None


def maps_back():
    """Which devices tensors of answers go to, by worker; None: there are no maps."""
    return None if _newest is None else _newest._maps_back


def started():
    """The agent, for a call that has come: it may have come before this process was ready for it."""
    agent = _newest
    if not agent._started.is_set():
        agent._started.wait()
    return agent


def set_and_start_rpc_agent(agent):
    """From now on calls of others are carried out."""
    global _current
    if not isinstance(agent, RpcAgent):
        raise TypeError(f"{agent!r} is no RpcAgent")
    _current = agent
    from torch.distributed.rpc import api, internal

    _pickles.install(internal)
    _shortcut.install(api, internal)
    _gatherings(agent)
    agent._started.set()


def reset_current_rpc_agent():
    """The process is in no group any more."""
    global _current
    _current = None


def get_rpc_timeout():
    """Seconds that a call may take if nothing else is said."""
    return get_current_rpc_agent()._timeout


def set_rpc_timeout(seconds):
    """Sets them."""
    get_current_rpc_agent()._timeout = float(seconds)


def enable_gil_profiling(flag):
    """Kept for programs that call it: farref does not measure how long threads wait for the interpreter."""
    global _gil_profiling
    _gil_profiling = bool(flag)


__all__ = ["RpcAgent", "RpcBackendOptions", "TensorPipeAgent"]
