"""Who the workers are, and what they were told: the small classes of torch._C._distributed_rpc."""

import numbers
import re

DEFAULT_INIT_METHOD = "env://"
DEFAULT_NUM_WORKER_THREADS = 16
DEFAULT_RPC_TIMEOUT_SEC = 60.0
UNSET_RPC_TIMEOUT = -1.0

_NAME = re.compile(r"[A-Za-z0-9\-_:]+")


class WorkerInfo:
    """A worker: its name, and its id in the group."""

    __slots__ = ("_name", "_id", "_place")

    def __init__(self, name, id):
        if not name:
            raise RuntimeError("Worker name must be non-empty")
        if not _NAME.fullmatch(name) or len(name) >= 128:
            raise RuntimeError(
                f"Worker name must match ^[A-Za-z0-9-_:]*$ and be shorter than 128 characters, but got {name}"
            )
        self._name = name
        self._id = int(id)
        self._place = self._name, self._id

    @property
    def name(self):
        """The name of the worker."""
        return self._name

    @property
    def id(self):
        """Globally unique id to identify the worker."""
        return self._id

    def __eq__(self, other):
        if not isinstance(other, WorkerInfo):
            return NotImplemented
        return (self._name, self._id) == (other._name, other._id)

    def __hash__(self):
        return self._id

    def __reduce__(self):
        return WorkerInfo, (self._name, self._id)

    def __repr__(self):
        return f"WorkerInfo(id={self._id}, name={self._name})"


class RpcBackendOptions:
    """Options that all agents have: the default timeout, and where the workers meet."""

    def __init__(self, rpc_timeout=DEFAULT_RPC_TIMEOUT_SEC, init_method=DEFAULT_INIT_METHOD):
        self.rpc_timeout = rpc_timeout
        self.init_method = init_method

    @property
    def rpc_timeout(self):
        """Seconds that a call may take if nothing else is said."""
        return self._rpc_timeout

    @rpc_timeout.setter
    def rpc_timeout(self, seconds):
        if not isinstance(seconds, numbers.Real):
            raise TypeError(f"incompatible constructor arguments: rpc_timeout is seconds, a number, and not {seconds!r}")
        seconds = float(seconds)
        if seconds < 0:
            raise RuntimeError("RPC Timeout must be non-negative")
        self._rpc_timeout = seconds

    @property
    def init_method(self):
        """Where the workers meet."""
        return self._init_method

    @init_method.setter
    def init_method(self, place):
        self._init_method = place


class _TensorPipeRpcBackendOptionsBase(RpcBackendOptions):
    """The options of PyTorch's agent. How bytes travel is farref's matter: names of transports are checked, and that is all."""

    _TRANSPORTS = frozenset({"shm", "ibv", "uv"})
    _CHANNELS = frozenset({"cma", "mpt_uv", "basic", "cuda_xth", "cuda_ipc", "cuda_gdr", "cuda_basic"})

    def __init__(
        self,
        num_worker_threads=DEFAULT_NUM_WORKER_THREADS,
        _transports=None,
        _channels=None,
        rpc_timeout=DEFAULT_RPC_TIMEOUT_SEC,
        init_method=DEFAULT_INIT_METHOD,
        device_maps=None,
        devices=None,
    ):
        super().__init__(rpc_timeout, init_method)
        if num_worker_threads <= 0:
            raise RuntimeError(f"num_worker_threads must be positive, got {num_worker_threads}")
        for name in _transports or ():
            if name not in self._TRANSPORTS:
                raise RuntimeError(f"Unknown transport: {name}")
        for name in _channels or ():
            if name not in self._CHANNELS:
                raise RuntimeError(f"Unknown channel: {name}")
        self._num_worker_threads = num_worker_threads
        self._device_maps = dict(device_maps or {})
        self._devices = list(devices or ())

    @property
    def num_worker_threads(self):
        """How many threads PyTorch would have. Calls of farref's that wait do not count: it starts as many as are needed."""
        return self._num_worker_threads

    @property
    def device_maps(self):
        """The device map locations."""
        return self._device_maps

    @device_maps.setter
    def device_maps(self, maps):
        self._device_maps = dict(maps)

    @property
    def devices(self):
        """All devices used by the local agent."""
        return self._devices

    @devices.setter
    def devices(self, devices):
        self._devices = list(devices)

    def _set_device_map(self, to, device_map):
        known = self._device_maps.setdefault(to, {})
        for local, remote in device_map.items():
            if known.get(local, remote) != remote:
                raise ValueError(
                    "`set_device_map` only supports 1-to-1 mapping, "
                    f"trying to map {local} to {known[local]} and {remote}"
                )
            known[local] = remote
