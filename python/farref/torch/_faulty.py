"""The agent that PyTorch's tests use to lose and delay messages.

farref's wire loses none by itself, so the faults are made above it: a call that is to fail is not sent, one that is to be late
waits on the other worker. Messages of PyTorch's reference counting do not exist here, and cannot be lost.
"""

from . import _agent, _options

_KNOWN = frozenset(
    {
        "RREF_FORK_REQUEST",
        "RREF_CHILD_ACCEPT",
        "RREF_USER_DELETE",
        "CLEANUP_AUTOGRAD_CONTEXT_REQ",
        "PYTHON_REMOTE_CALL",
        "SCRIPT_REMOTE_CALL",
        "PYTHON_CALL",
        "SCRIPT_CALL",
        "PYTHON_RREF_FETCH_CALL",
        "SCRIPT_RREF_FETCH_CALL",
    }
)


class FaultyTensorPipeRpcBackendOptions(_options._TensorPipeRpcBackendOptionsBase):
    """Which messages are to fail, and how long others are to take."""

    def __init__(
        self, num_worker_threads, rpc_timeout, init_method, messages_to_fail, messages_to_delay, num_fail_sends=0
    ):
        super().__init__(num_worker_threads, rpc_timeout=rpc_timeout, init_method=init_method)
        for kind in [*messages_to_fail, *messages_to_delay]:
            if kind not in _KNOWN:
                raise RuntimeError(f"No such message type: {kind}")
        self._fail = list(messages_to_fail)
        self._delay = dict(messages_to_delay)
        self._fails = num_fail_sends

    @property
    def messages_to_fail(self):
        """Their kinds."""
        return self._fail

    @property
    def messages_to_delay(self):
        """Their kinds, and seconds."""
        return self._delay

    @property
    def num_fail_sends(self):
        """How often each fails."""
        return self._fails


class FaultyTensorPipeAgent(_agent.TensorPipeAgent):
    """An agent that loses and delays messages."""

    _is_faulty = _looks = True

    def _late(self, kind):
        return self._options.messages_to_delay.get(kind, 0.0)

    def _lost(self, kind):
        return kind in self._options.messages_to_fail and self._options.num_fail_sends > 0

    def _before_sending(self, to, kind, pickle):
        if self._lost(kind):
            fails = self._options.num_fail_sends
            raise _agent.NotSent(RuntimeError(f"RPCErr:2:Send attempt 1/{fails} failed intentionally"))
        super()._before_sending(to, kind, pickle)
